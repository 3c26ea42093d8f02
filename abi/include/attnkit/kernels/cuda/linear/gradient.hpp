// The gradient of the linear core on CUDA, of whole sequences, in two scans; attnkit/kernels/linear/gradient.hpp has
// the formulas.
//
//   forward   query i reads   S_i u_i,  z_i              S = sum b v^T, z = sum b over the keys that it sees
//   reverse   key j reads     R_j v_j + r_j,  R_j^T b_j  R = sum a u^T, r = sum w a over the queries that see it
//
// Both are one: readers x, y take from what the sources before them, x' and y', have summed, the last source and the
// last reader coming first in reverse.  One block is one head of a batch row; kTile readers and as many sources at a
// time are small products, y S^T + (y y'^T, hidden pairs dropped) x', and in reverse x S + (x x'^T) y', then S += x'^T
// y'.  Every sum is one chain of additions in the order of its index, so equal calls give equal bits, and a pair of a
// query and a key that it does not see is in none of them, were they NaN.  LEARNED gradients are sums over a block's
// rows of products that the map names, then over batch rows and heads.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_GRADIENT_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_GRADIENT_HPP
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/linear/kernels.hpp>

namespace attnkit::cuda::linear {

template <class Map>
concept Differentiable = ElementwiseBack<Map> ||
    requires(const Map& map, const Wide<float>& x, const Place& at, const Row<float>& row) {
  map.template gradient<true>(x, at, row, row);
} || requires(const Map& map, const Wide<float>& x, const Row<float>& row) {
  map.gradient(x, row, map.in_memory(), Nothing{});
};
// A map of LEARNED ports: a row leaves notes, and a learned gradient is the sum over all rows of two of them
// multiplied.
struct Factors {
  int left, right;
};
template <class Map>
concept Learns = requires(const Map& map) {
  map.factors(0);
};

template <class M, class R>
struct GradientWork {
  using Map = M;
  using Real = R;
  Map map;
  Sizes sizes;
  Rows<const Real> q, k, v, o, given;
  Rows<Real> dq, dk, dv;  // without data where they are skipped
  Lengths lengths;
  const Real* saved;  // sums of weights, [B][H][N]
  Real* scratch;      // of every block: S, where shared memory does not hold it, and what a scan of a kind keeps
  Real* learned;      // [B][H][2][n_learned]: of queries, of keys
  int n_learned;
  int guard;
  Real eps;
};

// Tiles of readers and sources in shared memory, and the products of scans.
template <class Work, bool kInShared>
class GradientTiles {
 public:
  __host__ __device__ static int64_t sum_floats(const Sizes& s) { return int64_t{s.f4()} * wide(s); }

 protected:
  using Real = typename Work::Real;
  using Sums = std::conditional_t<kInShared, Shared<Real>, Real*>;
  static constexpr int kTile = sizeof(Real) == 8 ? 16 : 32, kPairs = kTile + 4;

  // both: do readers take from x and from y?
  static uint64_t bytes(const Sizes& s, bool both) {
    const int64_t rows = reader(s) + 2 * s.row() + (both ? 3 : 2) * wide(s) + (both ? 2 : 1) * kPairs + s.f4();
    const int64_t sums = kInShared ? sum_floats(s) : 0;
    return static_cast<uint64_t>(sums + s.f4() + kTile * rows) * sizeof(Real) + kTile * sizeof(int);
  }
  // sums: S, where it is not in shared memory.
  __device__ GradientTiles(const Work& work, const Head& head, SharedParts& parts, bool both, Real* sums)
      : w_(work), head_(head) {
    if constexpr (kInShared)
      s_ = parts.take<Real>(sum_floats(size()));
    else
      s_ = sums;
    z_ = parts.take<Real>(size().f4());
    x_ = parts.take<Real>(kTile * reader(size()));
    y_ = parts.take<Real>(kTile * wide(size()));
    from_x_ = parts.take<Real>(kTile * size().row());
    from_y_ = parts.take<Real>(kTile * wide(size()));
    yy_ = parts.take<Real>(kTile * kPairs);
    to_x_ = parts.take<Real>(kTile * size().row());
    rest_ = parts.take<Real>(kTile * size().f4());
    if (both) {
      xx_ = parts.take<Real>(kTile * kPairs);
      to_y_ = parts.take<Real>(kTile * wide(size()));
    }
    limit_ = parts.take<int>(kTile);
    first_ = first_of(head_.queries, [&](int64_t i) { return head_.needs(i) > 0; });
    top_ = first_ < head_.queries ? head_.needs(head_.queries - 1) : 0;
  }

  __device__ const Sizes& size() const { return w_.sizes; }
  __host__ __device__ static int wide(const Sizes& s) { return s.e4() + 4; }
  // From row to row of x, where notes take the place of features.
  __host__ __device__ static int reader(const Sizes& s) {
    const int notes = round4(s.notes);
    return notes > s.row() ? notes : s.row();
  }
  // The first of n indices for which f holds, as it then does for all behind it.
  template <class F>
  __device__ static int64_t first_of(int64_t n, const F& f) {
    int64_t from = 0, to = n;
    while (from < to) {
      const int64_t middle = (from + to) / 2;
      if (f(middle))
        to = middle;
      else
        from = middle + 1;
    }
    return from;
  }
  __device__ void clear(const Rows<Real>& rows, int64_t from, int64_t to, int width) const {
    if (!rows.data) return;
    for (int64_t i = from + warp(); i < to; i += kWarps)
      for (int c = lane(); c < width; c += 32) rows.at(head_.b, head_.h, i)[c] = 0;
  }

  // The S and z that readers find.
  template <bool kBoth>
  __device__ void read_sums() {
    dots<4>(y_, wide(size()), s_, wide(size()), size().e4(), size().f4(), to_x_, size().row());
    if constexpr (kBoth)
      for_fours(size().e4(), [&](int i, int c) {
        Four<Real> acc[4] = {};
        multiply<Real>(x_ + i * reader(size()), reader(size()), s_ + c, wide(size()), size().f4(), acc);
#pragma unroll
        for (int r = 0; r < 4; ++r) as<Four<Real>>(to_y_ + ((i + r) * wide(size()) + c))[0] = acc[r];
      });
    for (int f = static_cast<int>(threadIdx.x); f < size().f4(); f += kThreads)
      for (int i = 0; i < kTile; ++i) rest_[i * size().f4() + f] = z_[f];
  }

  // Adds to the gradients of readers what they find in the sources that they see.
  template <bool kBoth>
  __device__ void read_sources() {
    dots<2>(y_, wide(size()), from_y_, wide(size()), size().e4(), kTile, yy_, kPairs);
    if constexpr (kBoth) dots<2>(x_, reader(size()), from_x_, size().row(), size().f4(), kTile, xx_, kPairs);
    __syncthreads();
    add_seen(yy_, from_x_, size().row(), size().f4(), to_x_, size().row());
    if constexpr (kBoth) add_seen(xx_, from_y_, wide(size()), size().e4(), to_y_, wide(size()));
  }

  // S += x'^T y', and z takes the n sources, as added(j, f, z), which readers that see some of them leave with on the
  // way.
  template <class Added>
  __device__ void sum(int n, bool some_see, const Added& added) {
    const int fours = size().e4() / 4;
    for (int unit = static_cast<int>(threadIdx.x); unit < size().f4() / 4 * fours; unit += kThreads) {
      const int f = unit / fours * 4, c = unit % fours * 4;
      Four<Real> acc[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[r] = four<Real>(s_ + ((f + r) * wide(size()) + c));
      for (int j = 0; j < n; ++j) {
        const Four<Real> x = four<Real>(from_x_ + (j * size().row() + f)),
                         y = four<Real>(from_y_ + (j * wide(size()) + c));
        add<Real>(acc[0], x.x, y);
        add<Real>(acc[1], x.y, y);
        add<Real>(acc[2], x.z, y);
        add<Real>(acc[3], x.w, y);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Four<Real>>(s_ + ((f + r) * wide(size()) + c))[0] = acc[r];
    }
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      Real z = z_[f];
      int j = 0;
      const auto add_to = [&](int limit) {
        for (; j < limit; ++j) z = added(j, f, z);
      };
      for (int i = 0; some_see && i < kTile; ++i) {
        if (limit_[i] == 0) continue;
        add_to(limit_[i]);
        rest_[i * size().f4() + f] = z;
      }
      add_to(n);
      z_[f] = z;
    }
  }

  // to[i][c] = sum over k of left[i][k] right[c][k]; columns is a multiple of kColumns, which lie apart so that threads
  // side by side read rows side by side.
  template <int kColumns, class Right>
  __device__ void dots(const Shared<Real>& left, int left_row, const Right& right, int right_row, int depth,
                       int columns, const Shared<Real>& to, int to_row) const {
    const int step = columns / kColumns;
    for (int unit = static_cast<int>(threadIdx.x); unit < kTile / 4 * step; unit += kThreads) {
      const int i = unit / step * 4, c = unit % step;
      Real acc[4][kColumns] = {};
#pragma unroll 2
      for (int k = 0; k < depth; k += 4) {
        Four<Real> b[kColumns];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) b[n] = four<Real>(right + ((c + n * step) * right_row + k));
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const Four<Real> a = four<Real>(left + ((i + r) * left_row + k));
#pragma unroll
          for (int n = 0; n < kColumns; ++n) acc[r][n] = dot(a, b[n], acc[r][n]);
        }
      }
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int n = 0; n < kColumns; ++n) to[(i + r) * to_row + c + n * step] = acc[r][n];
    }
  }

  // to[i][...] += sum over j < limit[i] of weights[i][j] rows[j][...].
  __device__ void add_seen(const Shared<Real>& weights, const Shared<Real>& rows, int row, int width,
                           const Shared<Real>& to, int to_row) const {
    for_fours(width, [&](int i, int c) {
      const int every = limit_[i] / 4 * 4, some = limit_[i + 3];
      Four<Real> acc[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[r] = four<Real>(to + ((i + r) * to_row + c));
      multiply<Real>(weights + i * kPairs, kPairs, rows + c, row, every, acc);
#pragma unroll 1
      for (int j = every; j < some; ++j) {
        const Four<Real> y = four<Real>(rows + (j * row + c));
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (j < limit_[i + r]) add<Real>(acc[r], weights[(i + r) * kPairs + j], y);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Four<Real>>(to + ((i + r) * to_row + c))[0] = acc[r];
    });
  }
  template <class Visit>
  __device__ static void for_fours(int width, const Visit& visit) {
    const int fours = width / 4;
    for (int unit = static_cast<int>(threadIdx.x); unit < kTile / 4 * fours; unit += kThreads)
      visit(unit / fours * 4, unit % fours * 4);
  }

  const Work& w_;
  const Head& head_;
  Sums s_;
  Shared<Real> z_, x_, y_, from_x_, from_y_, yy_, xx_, to_x_, to_y_, rest_;
  Shared<int> limit_;
  int64_t first_, top_;  // the first query that sees a key, keys that a query sees
};

template <class Work, bool kForward, bool kInShared>
class Scan : GradientTiles<Work, kInShared> {
  using Map = typename Work::Map;
  using Base = GradientTiles<Work, kInShared>;
  using Base::kTile, Base::w_, Base::head_, Base::s_, Base::z_, Base::x_, Base::y_, Base::from_x_, Base::from_y_,
      Base::to_x_, Base::to_y_, Base::rest_, Base::limit_, Base::first_, Base::top_, Base::size, Base::wide,
      Base::reader, Base::first_of, Base::clear;
  using typename Base::Real;

 public:
  using Base::sum_floats;
  static uint64_t bytes(const Sizes& s) { return Base::bytes(s, !kForward) + 2 * kTile * sizeof(Real); }
  // Of a head's scratch.
  static int64_t scratch_floats(const Sizes& s, int64_t) { return kInShared ? 0 : sum_floats(s); }

  __device__ Scan(const Work& work, const Head& head) : Scan(work, head, SharedParts{}) {}

  __device__ void run() {
    if constexpr (kForward) {
      clear(w_.dq, 0, first_, size().d);
      clear(w_.dq, head_.queries, w_.lengths.queries, size().d);
    } else {
      clear(w_.dk, top_, w_.lengths.keys, size().d);
      clear(w_.dv, top_, w_.lengths.keys, size().e);
    }
    for (int64_t x = threadIdx.x; x < sum_floats(size()); x += kThreads) s_[x] = 0;
    for (int x = static_cast<int>(threadIdx.x); x < size().f4(); x += kThreads) z_[x] = 0;
    for (int x = static_cast<int>(threadIdx.x); x < w_.n_learned; x += kThreads) learned()[x] = 0;
    const int64_t readers = kForward ? head_.queries - first_ : top_;
    int64_t i = 0, done = 0;
    int n = 0;  // readers that are loaded: from i on
    while (i < readers) {
      const int64_t end = needs(n > 0 ? i + n - 1 : i);
      if (n == 0 && end - done < kTile) {
        n = static_cast<int>(readers - i < kTile ? readers - i : kTile);
        load<kForward>(i, n, x_, reader(size()), y_, inverse_);
        __syncthreads();
        Base::template read_sums<!kForward>();
      } else if (done < end) {
        done += take(done, end, i, n);
      } else {
        __syncthreads();
        give(i, n);
        __syncthreads();
        i += n;
        n = 0;
      }
    }
  }

 private:
  __device__ Scan(const Work& work, const Head& head, SharedParts parts)
      : Base(work, head, parts, !kForward, work.scratch + blockIdx.x * sum_floats(work.sizes)),
        inverse_(parts.take<Real>(kTile)),
        weight_(parts.take<Real>(kTile)) {}

  __device__ Real* learned() const {
    return w_.learned + ((head_.b * size().heads + head_.h) * 2 + (kForward ? 0 : 1)) * w_.n_learned;
  }

  // The position in its sequence of a query, or a key, of the order in which this scan has them.
  template <bool kQuery>
  __device__ int64_t index(int64_t i) const {
    if (kForward) return kQuery ? first_ + i : i;
    return kQuery ? head_.queries - 1 - i : top_ - 1 - i;
  }
  // Sources that a reader sees.
  __device__ int64_t needs(int64_t reader) const {
    if (kForward) return head_.needs(first_ + reader);
    const int64_t j = top_ - 1 - reader;
    return head_.queries - first_of(head_.queries, [&](int64_t i) { return head_.needs(i) > j; });
  }

  // Features and u of queries, or features and values of keys; zeros behind the last.  of_query: the inverse of a
  // query's denominator for one that reads, w for a source.
  template <bool kQuery>
  __device__ void load(int64_t first, int n, const Shared<Real>& x, int x_row, const Shared<Real>& y,
                       const Shared<Real>& of_query) const {
    for (int r = warp(); r < kTile; r += kWarps) {
      const Row<Real> row{x + r * x_row, x + (r * x_row + size().z_at())};
      const int64_t i = r < n ? index<kQuery>(first + r) : 0;
      if (r < n) {
        const Rows<const Real>& from = kQuery ? w_.q : w_.k;
        const Place at{head_.b, head_.h, (kQuery ? head_.q_pos : head_.past) + i};
        write_features<kQuery>(w_.map, Wide<Real>{from.at(head_.b, head_.h, i)}, at, row);
      }
      for (int f = (r < n ? size().features : 0) + lane(); f < size().f4(); f += 32) {
        row.s[f] = 0;
        if constexpr (Map::kSplits) row.z[f] = 0;
      }
      Real by = 1;
      if (kQuery && r < n) by = inverse_of(i);
      const Real* values = r < n ? (kQuery ? w_.given : w_.v).at(head_.b, head_.h, i) : nullptr;
      for (int c = lane(); c < size().e4(); c += 32)
        y[r * wide(size()) + c] = r < n && c < size().e ? values[c] * by : 0;
      if constexpr (kQuery) {
        if (!kForward && r < n) {
          const Real* o = w_.o.at(head_.b, head_.h, i);
          Real product = 0;
          for (int c = lane(); c < size().e; c += 32) product = fused(values[c], o[c], product);
          by *= -slope(i) * sum_of_warp(product);
        }
        if (lane() == 0) of_query[r] = by;
      }
    }
  }
  __device__ Real sum_of_weights(int64_t i) const {
    return w_.saved[(head_.b * size().heads + head_.h) * w_.lengths.queries + i];
  }
  // Newton's step brings it to the last bit: what S u and w z leave of each other is no larger than that.
  __device__ Real inverse_of(int64_t i) const {
    const Real x = guarded(sum_of_weights(i), w_.guard, w_.eps), y = reciprocal(x);
    return fused(fused(-x, y, Real{1}), y, y);
  }
  __device__ Real slope(int64_t i) const {
    return w_.guard == Guard::kClamp && sum_of_weights(i) < w_.eps ? Real{0} : Real{1};
  }

  // Sources [done, to) as far as they fit, read by readers [i, i + n), of which there may be none, then summed.
  __device__ int take(int64_t done, int64_t to, int64_t i, int n) {
    const int sources = static_cast<int>(to - done < kTile ? to - done : kTile);
    load<!kForward>(done, sources, from_x_, size().row(), from_y_, weight_);
    const int t = static_cast<int>(threadIdx.x);
    if (n > 0 && t < kTile) {  // a row beyond the last has its limit, so that limits rise
      const int64_t sees = needs(i + (t < n ? t : n - 1)) - done;
      limit_[t] = static_cast<int>(sees < 0 ? 0 : sees < kTile ? sees : kTile);
    }
    __syncthreads();
    if (n > 0) Base::template read_sources<!kForward>();
    Base::sum(sources, n > 0, [this](int j, int f, Real z) {
      return fused(kForward ? Real{1} : static_cast<Real>(weight_[j]), from_x_[j * size().row() + size().z_at() + f],
                   z);
    });
    __syncthreads();
    return sources;
  }

  // From the gradients of n rows of features those of the rows.
  __device__ void give(int64_t first, int n) {
    for (int r = warp(); r < n; r += kWarps) {
      const int64_t i = index<kForward>(first + r);
      const Row<Real> row{x_ + r * reader(size()), x_ + (r * reader(size()) + size().z_at())};
      const Row<Real> given{to_x_ + r * size().row(), to_x_ + (r * size().row() + size().z_at())};
      Real weight = 1;
      if constexpr (kForward) {  // G . o = a . S u: with the rounding of S u, which it is to cancel, and no more
        double product = 0;
        for (int f = lane(); f < size().features; f += 32)
          product += static_cast<double>(row.s[f]) * static_cast<double>(given.s[f]);
        weight = -slope(i) * inverse_[r] * static_cast<Real>(sum_of_warp(product));
      }
      for (int f = lane(); f < size().features; f += 32) {
        const Real rest = weight * rest_[r * size().f4() + f];
        given.z[f] = Map::kSplits ? rest : given.s[f] + rest;
      }
      __syncwarp();
      const Rows<const Real>& from = kForward ? w_.q : w_.k;
      const Rows<Real>& to = kForward ? w_.dq : w_.dk;
      const Place at{head_.b, head_.h, (kForward ? head_.q_pos : head_.past) + i};
      write_gradient<kForward>(w_.map, Wide<Real>{from.at(head_.b, head_.h, i)}, at, row, given);
      __syncwarp();
      for (int f = lane(); to.data && f < size().d; f += 32) to.at(head_.b, head_.h, i)[f] = given.s[f];
      for (int c = lane(); !kForward && w_.dv.data && c < size().e; c += 32)
        w_.dv.at(head_.b, head_.h, i)[c] = to_y_[r * wide(size()) + c];
    }
    if constexpr (Learns<Map>) {
      __syncthreads();
      for (int x = static_cast<int>(threadIdx.x); x < w_.n_learned; x += kThreads) {
        const Factors note = w_.map.factors(x);
        Real sum = learned()[x];
        for (int r = 0; r < n; ++r)
          sum = fused(x_[r * reader(size()) + note.left], x_[r * reader(size()) + note.right], sum);
        learned()[x] = sum;
      }
    }
  }

  Shared<Real> inverse_, weight_;
};

template <class Work, bool kForward, bool kInShared>
static __global__ void __launch_bounds__(kThreads, sizeof(typename Work::Real) == 8 ? 1 : 3)
    gradient_kernel(const Work work) {
  const Head head(work.lengths, work.sizes.heads);
  Scan<Work, kForward, kInShared>(work, head).run();
}

// A port's part of the sums of blocks, added to its gradient.
template <class Real>
struct Collected {
  const Real* sums;  // [B][H][all], beginning at the port's
  int64_t all, floats, batch, heads;
  bool by_head;
  attn_tensor to;
};
// A thread to an element, which it adds up in the order of heads and of their rows.
template <class Real>
static __global__ void __launch_bounds__(kThreads) collect_kernel(const Collected<Real> c) {
  const int64_t x = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (x >= c.floats * (c.by_head ? c.heads : 1)) return;
  auto* at = static_cast<Real*>(c.to.data);
  int64_t rest = x;
  for (int n = static_cast<int>(c.to.ndim) - 1; n >= 0; --n) {
    at += rest % c.to.shape[n] * c.to.stride[n];
    rest /= c.to.shape[n];
  }
  for (int64_t h = c.by_head ? x / c.floats : 0; h < (c.by_head ? x / c.floats + 1 : c.heads); ++h) {
    Real sum = 0;
    for (int64_t b = 0; b < c.batch; ++b) sum += c.sums[(b * c.heads + h) * c.all + x % c.floats];
    *at += sum;
  }
}

// LEARNED ports, in the order of a map's gradients of them, first those of queries, then those of keys.
class Learned {
 public:
  // floats: of all heads, or, when each head has its own part of the tensor, of one.
  void add(Port port, int64_t floats, bool by_head) { parts_.push_back({port, floats, by_head}); }
  int64_t floats() const {
    int64_t all = 0;
    for (const Part& part : parts_) all += part.floats;
    return all;
  }
  bool is_wanted(const attn_grad& grad) const {
    for (const Part& part : parts_)
      if (part.port.of(grad.grads).data) return true;
    return false;
  }
  // Adds `sums`, [batch][heads][floats()], to the gradients that are not skipped.
  template <class Real>
  void collect(const char* name, const attn_grad& grad, int64_t heads, const Real* sums) const {
    for (const Part& part : parts_) {
      const attn_tensor to = part.port.of(grad.grads);
      const int64_t threads = part.floats * (part.by_head ? heads : 1);
      if (to.data)
        launch(name, collect_kernel<Real>, {dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)), kThreads},
               *grad.run->exec, Collected<Real>{sums, floats(), part.floats, grad.run->batch, heads, part.by_head, to});
      sums += part.floats;
    }
  }

 private:
  struct Part {
    Port port;
    int64_t floats;
    bool by_head;
  };
  std::vector<Part> parts_;
};

// Enqueues both scans; in f64, which is for checks, S is never in shared memory.
template <class Work>
void run_backward(const char* name, const attn_exec& exec, const Work& w, int64_t batch, bool in_shared, bool learns) {
  const auto start = [&](auto forward, auto has_sums) {
    using Kernel = Scan<Work, decltype(forward)::value, decltype(has_sums)::value>;
    launch(name, gradient_kernel<Work, decltype(forward)::value, decltype(has_sums)::value>,
           {dim3(static_cast<unsigned>(batch * w.sizes.heads)), kThreads, Kernel::bytes(w.sizes)}, exec, w);
  };
  const auto scan = [&](auto forward) {
    if constexpr (sizeof(typename Work::Real) == sizeof(float))
      if (in_shared) return start(forward, std::true_type{});
    start(forward, std::false_type{});
  };
  if (w.dq.data || learns) scan(std::true_type{});
  if (w.dk.data || w.dv.data || learns) scan(std::false_type{});
}

}  // namespace attnkit::cuda::linear
#endif
