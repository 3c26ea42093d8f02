// The gradient of features that are exponentials, linear/follow.hpp, on CUDA; attnkit/kernels/latents.hpp has the
// formulas.
//
//   forward   query i reads   H_i = S_i G_i,  z_i            S = sum b v^T, z = sum b over the keys that it sees
//   reverse   key j reads     R_j v_j - r_j,  R_j^T b_j      R = sum A G^T, r = sum A n over the queries that see it
//
// A and n are made of z and H, so the forward scan leaves them for the other, of kSegment queries at a time.  Segments
// come last first, each in both scans before the next.  The sums that they begin with are made once before, and those
// of up to kSlots segments kept; where there are more, those between are made again, so memory does not grow with the
// length.  A segment's blocks are queries and the keys that some of them see, a tile of each, of one scale c: where it
// rises S and z shrink, and in reverse, where it falls, R and r.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_FOLLOW_GRADIENT_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_FOLLOW_GRADIENT_HPP
#include <attnkit/kernels/cuda/linear/gradient.hpp>

namespace attnkit::cuda::linear {

constexpr int kSegment = 256, kSlots = 16;

template <class Work, bool kInShared>
class FollowScans : GradientTiles<Work, kInShared> {
  using Map = typename Work::Map;
  using Base = GradientTiles<Work, kInShared>;
  using Base::kTile, Base::w_, Base::head_, Base::s_, Base::z_, Base::x_, Base::y_, Base::from_x_, Base::from_y_,
      Base::to_x_, Base::to_y_, Base::rest_, Base::limit_, Base::first_, Base::top_, Base::size, Base::wide,
      Base::reader, Base::first_of, Base::clear, Base::sum_floats;
  using typename Base::Real;

 public:
  static uint64_t bytes(const Sizes& s) {
    return Base::bytes(s, true) + static_cast<uint64_t>(2 * s.f4() + round4(s.table)) * sizeof(Real) +
           (kTile + kSlots + 2 * kSegment) * sizeof(int);
  }
  // Of scratch, for a head.
  __host__ __device__ static int64_t scratch_floats(const Sizes& s, int64_t queries) {
    return (kInShared ? 0 : sum_floats(s)) + 3 * rows(queries) * s.f4() + (1 + slots(queries)) * kept_floats(s);
  }

  __device__ FollowScans(const Work& work, const Head& head)
      : FollowScans(work, head, SharedParts{},
                    work.scratch + blockIdx.x * scratch_floats(work.sizes, work.lengths.queries)) {}

  __device__ void run() {
    clear(w_.dq, 0, first_, size().d);
    clear(w_.dq, head_.queries, w_.lengths.queries, size().d);
    clear(w_.dk, top_, w_.lengths.keys, size().d);
    clear(w_.dv, top_, w_.lengths.keys, size().e);
    if (top_ == 0) return;
    w_.map.load_table(table_);
    Real c = kLeast<Real>;
    if constexpr (!kEach<Map>)
      if (!w_.map.follows)
        c = named_scale(
            w_.map, head_.fresh, kWarps, [&](int64_t j) { return row_of(w_.k, j); }, down_);
    for (int f = static_cast<int>(threadIdx.x); f < size().f4(); f += kThreads) c_[f] = c;
    clear_sums();
    const bool reverses = w_.dk.data || w_.dv.data;
    const int64_t segments = (head_.queries - first_ + kSegment - 1) / kSegment;
    int slot = 0;
    if (reverses) keep(slot, 0);
    for (int64_t taken = 0; taken < segments; ++taken) {
      const int64_t n = reverses ? segments - 1 - taken : taken;
      int64_t at = n;
      if (reverses) {
        while (slots_[slot] > n) --slot;
        at = slots_[slot];
        done_ = start(at);
        restore(kept_ + slot * kept_floats(size()));
      }
      int blocks = 0;
      for (bool reads = false; !reads;) {
        reads = at == n;
        if (!reads) {
          const int64_t parts = slots(w_.lengths.queries) - slot;  // one more than sums can be kept
          at += (n - at + parts - 1) / parts;
        }
        blocks = forward(begin(n), reads ? begin(n + 1) : begin(n), reads ? 0 : start(at));
        if (!reads && at < n) keep(++slot, at);
      }
      if (!reverses) continue;
      if (taken == 0)
        clear_sums();
      else
        restore(reverse_);
      reverse(n, blocks);
      store(reverse_);
    }
  }

 private:
  // next: of the block's scratch.
  __device__ FollowScans(const Work& work, const Head& head, SharedParts parts, Real* next)
      : Base(work, head, parts, true, next) {
    if constexpr (!kInShared) next += sum_floats(size());
    const int64_t of_segment = rows(w_.lengths.queries) * size().f4();
    a_ = next;
    a_n_ = a_ + of_segment;
    scales_ = a_n_ + of_segment;
    reverse_ = scales_ + of_segment;
    kept_ = reverse_ + kept_floats(size());
    c_ = parts.take<Real>(size().f4());
    down_ = parts.take<Real>(size().f4());
    table_ = parts.take<Real>(round4(size().table));
    over_ = parts.take<int>(kTile);
    slots_ = parts.take<int>(kSlots);
    begins_ = parts.take<int>(kSegment);
    lows_ = parts.take<int>(kSegment);
  }

  __host__ __device__ static int64_t rows(int64_t queries) { return queries < kSegment ? queries : kSegment; }
  __host__ __device__ static int64_t slots(int64_t queries) {
    const int64_t segments = (queries + kSegment - 1) / kSegment;
    return segments < kSlots ? segments : kSlots;
  }
  // S, z and c.
  __host__ __device__ static int64_t kept_floats(const Sizes& s) { return sum_floats(s) + 2 * s.f4(); }

  // The first query of a segment, and the keys that those before it see.
  __device__ int64_t begin(int64_t n) const {
    const int64_t i = first_ + n * kSegment;
    return i < head_.queries ? i : head_.queries;
  }
  __device__ int64_t start(int64_t n) const { return n == 0 ? 0 : head_.needs(begin(n) - 1); }

  __device__ Wide<Real> row_of(const Rows<const Real>& rows, int64_t i) const { return {rows.at(head_.b, head_.h, i)}; }
  __device__ Row<Real> in(const Shared<Real>& rows, int row, int r) const { return {rows + r * row, rows + r * row}; }
  __device__ auto table() const { return w_.map.in_table(table_); }
  __device__ auto scales() const {
    return [this](int f) { return static_cast<Real>(c_[f]); };
  }

  __device__ void clear_sums() {
    for (int64_t x = threadIdx.x; x < sum_floats(size()); x += kThreads) s_[x] = 0;
    for (int f = static_cast<int>(threadIdx.x); f < size().f4(); f += kThreads) z_[f] = 0;
    __syncthreads();
  }
  __device__ void store(Real* to) const {
    for (int64_t x = threadIdx.x; x < sum_floats(size()); x += kThreads) to[x] = s_[x];
    to += sum_floats(size());
    for (int f = static_cast<int>(threadIdx.x); f < size().f4(); f += kThreads) {
      to[f] = z_[f];
      to[size().f4() + f] = c_[f];
    }
    __syncthreads();
  }
  __device__ void restore(const Real* from) {
    for (int64_t x = threadIdx.x; x < sum_floats(size()); x += kThreads) s_[x] = from[x];
    from += sum_floats(size());
    for (int f = static_cast<int>(threadIdx.x); f < size().f4(); f += kThreads) {
      z_[f] = from[f];
      c_[f] = from[size().f4() + f];
    }
    __syncthreads();
  }
  __device__ void keep(int slot, int64_t segment) {
    if (threadIdx.x == 0) slots_[slot] = static_cast<int>(segment);
    store(kept_ + slot * kept_floats(size()));
  }
  // S comes to suit the scale as z does.
  __device__ void shrink() {
    __syncthreads();
    for (int f = warp(); f < size().features; f += kWarps)
      if (const Real down = down_[f]; down != 1)
        for (int e = lane(); e < size().e; e += 32) s_[f * wide(size()) + e] *= down;
    __syncthreads();
  }

  // Rows of values or of G; zeros behind the last.
  template <class Index>
  __device__ void load_wide(const Rows<const Real>& from, int n, const Shared<Real>& to, const Index& index) const {
    for (int r = warp(); r < kTile; r += kWarps)
      for (int c = lane(); c < size().e4(); c += 32)
        to[r * wide(size()) + c] = r < n && c < size().e ? from.at(head_.b, head_.h, index(r))[c] : Real{0};
  }
  // Of n rows what finish(r, x, row) makes of their logits; zeros behind the last.
  template <bool kQuery, class Index, class Finish>
  __device__ void load_features(const Rows<const Real>& from, int n, const Shared<Real>& to, int to_row,
                                const Index& index, const Finish& finish) const {
    for (int r = warp(); r < kTile; r += kWarps) {
      const Row<Real> row = in(to, to_row, r);
      if (r < n) {
        const Wide<Real> x = row_of(from, index(r));
        w_.map.template logits<kQuery>(x, row, table());
        finish(r, x, row);
      }
      for (int f = (r < n ? size().features : 0) + lane(); f < size().f4(); f += 32) row.s[f] = 0;
    }
  }

  // The next n keys; returns how many of them suit the scale.
  __device__ int load_keys(int n) {
    const auto index = [this](int r) { return done_ + r; };
    load_wide(w_.v, n, from_y_, index);
    load_features<false>(w_.k, n, from_x_, size().row(), index, [this](int r, const auto&, const Row<Real>& row) {
      const bool over = w_.map.follows && outgrows<Real>(row.s, size().features, scales());
      if (lane() == 0) over_[r] = over;
      if (!over || r > 0) w_.map.key(row, scales());  // else its logits are left for raise
    });
    __syncthreads();
    return rows_before(over_, n);
  }
  // c comes to suit the next key, which was loaded, and S and z to c.
  __device__ void raise() {
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      Real c = c_[f];
      down_[f] = risen<Real>(static_cast<Real>(from_x_[f]), c);
      c_[f] = c;
      z_[f] *= down_[f];
    }
    shrink();
  }

  // Queries [first, end), their gradients and what the other scan takes; then keys are summed up to `to`.  Returns the
  // number of blocks.
  __device__ int forward(int64_t first, int64_t end, int64_t to) {
    int blocks = 0;
    for (int64_t i = first; i < end || done_ < to;) {
      const int64_t first_sees = i < end ? head_.needs(i) : to;
      int queries = 0;
      int64_t last = first_sees;
      while (queries < kTile && i + queries < end && head_.needs(i + queries) - done_ <= kTile)
        last = head_.needs(i + queries++);
      int keys = static_cast<int>(last - done_ < kTile ? last - done_ : kTile);
      if (keys > 0) {
        const int fit = load_keys(keys);
        if (fit == 0 && first_sees > done_) {  // queries that do not see the key come before the scale rises
          raise();
          continue;
        }
        if (fit < keys) {
          while (queries > 0 && head_.needs(i + queries - 1) - done_ > fit) --queries;
          keys = queries > 0 ? static_cast<int>(head_.needs(i + queries - 1) - done_) : fit;
        }
      }
      if (queries > 0) {
        if (threadIdx.x == 0) {
          begins_[blocks] = static_cast<int>(i - first);
          lows_[blocks] = static_cast<int>(done_);
        }
        for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads)
          scales_[blocks * size().f4() + f] = c_[f];
        load_queries(i, queries);
        __syncthreads();
        Base::template read_sums<false>();
        if (keys > 0) Base::template read_sources<false>();
      }
      if (keys > 0)
        Base::sum(keys, queries > 0, [this](int j, int f, Real z) { return z + from_x_[j * size().row() + f]; });
      __syncthreads();
      if (queries > 0) {
        give_queries(first, i, queries);
        __syncthreads();
        ++blocks;
      }
      i += queries;
      done_ += keys;
    }
    return blocks;
  }

  // As readers, with the keys from done_ on that they see.
  __device__ void load_queries(int64_t i, int n) {
    const auto index = [i](int r) { return i + r; };
    load_wide(w_.given, n, y_, index);
    load_features<true>(w_.q, n, x_, reader(size()), index, [this](int, const auto& x, const Row<Real>& row) {
      w_.map.query(x, row, scales());
      if constexpr (kEach<Map>) {
        Real sum = 0;
        for (int f = lane(); f < size().features; f += 32) sum += row.s[f];
        const Real by = reciprocal(sum_of_warp(sum));
        for (int f = lane(); f < size().features; f += 32) row.s[f] *= by;
      }
    });
    const int t = static_cast<int>(threadIdx.x);
    if (t < kTile) limit_[t] = static_cast<int>(head_.needs(i + (t < n ? t : n - 1)) - done_);  // so that limits rise
  }

  // From H and z of n queries their gradients; leaves A and A n.
  __device__ void give_queries(int64_t first, int64_t i, int n) {
    for (int r = warp(); r < n; r += kWarps) {
      const Row<Real> row = in(x_, reader(size()), r), given = in(to_x_, size().row(), r);
      const Shared<Real> z = rest_ + r * size().f4();
      Real *a = a_ + (i - first + r) * size().f4(), *a_n = a_n_ + (i - first + r) * size().f4();
      if constexpr (kEach<Map>) {
        Real product = 0;  // G . o
        for (int f = lane(); f < size().features; f += 32) {
          const Real by = reciprocal(static_cast<Real>(z[f])), n_f = given.s[f] * by;
          a[f] = row.s[f] * by;
          a_n[f] = a[f] * n_f;
          given.s[f] = row.s[f] * n_f;
          product += given.s[f];
        }
        product = sum_of_warp(product);
        for (int f = lane(); f < size().features; f += 32) given.s[f] = fused(-product, row.s[f], given.s[f]);
      } else {
        Real sum = 0;
        double product = 0;  // n z cancels much of H, and z is large
        for (int f = lane(); f < size().features; f += 32) {
          sum = fused(row.s[f], z[f], sum);
          product = fused(static_cast<double>(row.s[f]), static_cast<double>(given.s[f]), product);
        }
        sum = sum_of_warp(sum);
        const Real by = reciprocal(guarded(sum, w_.guard, w_.eps));
        const Real slope = w_.guard == Guard::kClamp && sum < w_.eps ? Real{0} : Real{1};
        const Real n_i = slope * by * static_cast<Real>(sum_of_warp(product)),
                   rest = w_.map.template floor<true>() * by;
        for (int f = lane(); f < size().features; f += 32) {
          a[f] = row.s[f] * by;
          a_n[f] = a[f] * n_i;
          given.s[f] = (a[f] - rest) * fused(-n_i, z[f], given.s[f]);
        }
      }
      __syncwarp();
      give(w_.q, w_.dq, i + r, given);
    }
  }
  // From the gradient of a row's logits that of the row.
  __device__ void give(const Rows<const Real>& from, const Rows<Real>& to, int64_t i, const Row<Real>& given) const {
    if (!to.data) return;
    Real* out = to.at(head_.b, head_.h, i);
    w_.map.gradient(row_of(from, i), given, table(), [out](int c, Real x) { out[c] = x; });
  }

  // The keys that no query before segment n sees and that no segment behind it has given theirs.
  __device__ void reverse(int64_t n, int blocks) {
    const int64_t first = begin(n);
    for (int64_t end = begin(n + 1); blocks-- > 0;) {
      const int64_t from = first + begins_[blocks], low = lows_[blocks], high = head_.needs(end - 1);
      const int queries = static_cast<int>(end - from);
      for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
        const Real c = scales_[blocks * size().f4() + f];
        down_[f] = exponential(c - c_[f]);
        c_[f] = c;
        z_[f] *= down_[f];
      }
      shrink();
      const auto index = [end](int s) { return end - 1 - s; };
      const auto at = [&](const Real* rows, int s) { return rows + (index(s) - first) * size().f4(); };
      load_wide(w_.given, queries, from_y_, index);
      for (int s = warp(); s < kTile; s += kWarps)
        for (int f = lane(); f < size().f4(); f += 32)
          from_x_[s * size().row() + f] = s < queries && f < size().features ? at(a_, s)[f] : Real{0};
      const int t = static_cast<int>(threadIdx.x), keys = static_cast<int>(high - low);
      if (t < kTile) {
        const int64_t j = high - 1 - (t < keys ? t : keys - 1);
        limit_[t] = queries - static_cast<int>(first_of(queries, [&](int64_t i) { return head_.needs(from + i) > j; }));
      }
      const int64_t rest = from > first_ ? head_.needs(from - 1) : 0;
      int64_t to = high;
      for (bool reads = true; reads || to > rest; reads = false) {
        const int some = reads ? keys : static_cast<int>(to - rest < kTile ? to - rest : kTile);
        to -= some;
        if (some > 0) load_readers(to, some);
        __syncthreads();
        if (some > 0) Base::template read_sums<true>();
        if (reads) {
          if (some > 0) Base::template read_sources<true>();
          Base::sum(queries, some > 0, [&](int s, int f, Real r) { return r + at(a_n_, s)[f]; });
        }
        __syncthreads();
        if (some > 0) give_keys(to, some);
        __syncthreads();
      }
      end = from;
    }
  }

  // Keys [from, from + n), the last first.
  __device__ void load_readers(int64_t from, int n) {
    const auto index = [from, n](int r) { return from + n - 1 - r; };
    load_wide(w_.v, n, y_, index);
    load_features<false>(w_.k, n, x_, reader(size()), index,
                         [this](int, const auto&, const Row<Real>& row) { w_.map.key(row, scales()); });
  }
  // Their gradients, from what they found.
  __device__ void give_keys(int64_t from, int n) const {
    Real floor = 0;
    if constexpr (!kEach<Map>) floor = w_.map.template floor<false>();
    for (int r = warp(); r < n; r += kWarps) {
      const Row<Real> row = in(x_, reader(size()), r), given = in(to_x_, size().row(), r);
      const int64_t j = from + n - 1 - r;
      for (int f = lane(); f < size().features; f += 32)
        given.s[f] = (row.s[f] - floor) * (given.s[f] - rest_[r * size().f4() + f]);
      __syncwarp();
      give(w_.k, w_.dk, j, given);
      for (int c = lane(); w_.dv.data && c < size().e; c += 32)
        w_.dv.at(head_.b, head_.h, j)[c] = to_y_[r * wide(size()) + c];
    }
  }

  Real *a_, *a_n_, *scales_;  // of a segment's queries, of its blocks
  Real *reverse_, *kept_;     // sums and their scale: of the scan in reverse, and those that segments begin with
  Shared<Real> c_, down_, table_;
  Shared<int> over_, slots_, begins_, lows_;  // over_: of keys; the segments kept; a block's first query, and its keys
  int64_t done_ = 0;                          // keys in S and z
};

template <class Work, bool kInShared>
static __global__ void __launch_bounds__(kThreads, sizeof(typename Work::Real) == 8 ? 1 : 2)
    follow_gradient_kernel(const Work work) {
  const Head head(work.lengths, work.sizes.heads);
  FollowScans<Work, kInShared>(work, head).run();
}

// Enqueues the gradient.
template <class Work>
requires kFollows<typename Work::Map>
void run_backward(const char* name, const attn_exec& exec, const Work& w, int64_t batch, bool in_shared, bool) {
  if (!w.dq.data && !w.dk.data && !w.dv.data) return;
  const auto start = [&](auto has_sums) {
    using Scans = FollowScans<Work, decltype(has_sums)::value>;
    launch(name, follow_gradient_kernel<Work, decltype(has_sums)::value>,
           {dim3(static_cast<unsigned>(batch * w.sizes.heads)), kThreads, Scans::bytes(w.sizes)}, exec, w);
  };
  if constexpr (sizeof(typename Work::Real) == sizeof(float))
    if (in_shared) return start(std::true_type{});
  start(std::false_type{});
}

}  // namespace attnkit::cuda::linear
#endif
