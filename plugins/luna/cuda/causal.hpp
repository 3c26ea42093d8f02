// luna's causal run on CUDA: one kernel, a block for a head of a batch row.  It projects its part of P when the
// sequence begins, and keeps that and the sums of A k^T and A v^T in shared memory while it takes up to kTile queries
// at a time, with those keys that some of them are the first to see: scores Q K^T of these, logits from the sums and
// from scores times A, weights, and the same way back.  Few tokens of a stream take tiles of kFew, whatever their
// neighbours have.
//
// A row of more than kSegment queries or keys has many blocks, so that a few heads fill a device: the same kernel sums
// each kSegment keys from nothing, prefixes_kernel adds these sums up in their order, the state first, and blocks of
// kSegment queries begin with what was summed of keys that all of them see.  That reads keys and values twice.  Whether
// a row is split depends on its own lengths alone, so that neither padding nor neighbours change a bit.
#pragma once
#include "parts.hpp"

namespace luna::cuda {

// Rows of P that count, causal: rows of zeros at the end of a P that came from an earlier block are those that it left
// out.
template <class T>
__device__ int count_live(const Work<T>& w, int64_t b) {
  int rows = w.sizes.l;
  for (bool empty = w.aux && w.sizes.dynamic; empty && rows > 0;) {
    bool any = false;
    for (int f = lane(); f < w.sizes.width(); f += 32) any = any || w.p.at(b, 0, rows - 1)[f] != 0;
    empty = __any_sync(kAll, any) == 0;
    if (empty) --rows;
  }
  return rows;
}

// sum += four rows of x times four columns of y, of any depth: what lies behind it may be anything.
template <class Real>
__device__ void multiply_some(const Shared<Real>& x, int x_row, const Shared<Real>& y, int y_row, int depth,
                              Four<Real> (&sum)[4]) {
  const int fours = depth / 4 * 4;
  multiply<Real>(x, x_row, y, y_row, fours, sum);
#pragma unroll 1
  for (int k = fours; k < depth; ++k) {
    const Four<Real> own = four<Real>(y + k * y_row);
#pragma unroll
    for (int r = 0; r < 4; ++r) add<Real>(sum[r], x[r * x_row + k], own);
  }
}

// Products of a tile's queries and its keys, of which query i sees the first limit[i], limits that do not fall; hidden
// keys take no part in any sum.
template <class Real>
struct Pairs {
  int row;  // of scores
  Shared<int> limit;

  // to_i += sum of scores_ij a_j, over the keys that i sees; `width` numbers, whole fours.
  __device__ void add_scores(const Shared<Real>& scores, int rows, const Shared<Real>& a, const Shared<Real>& to,
                             int a_row, int width) const {
    const int fours = width / 4;
#pragma unroll 1
    for (int unit = static_cast<int>(threadIdx.x); unit < rows * fours; unit += kThreads) {
      const int i = unit / fours, r = unit % fours * 4;
      const Shared<Real> at = to + (i * a_row + r);
      Four<Real> sum = four<Real>(at);
      for (int j = 0; j < limit[i]; ++j) add<Real>(sum, scores[i * row + j], four<Real>(a + (j * a_row + r)));
      as<Four<Real>>(at)[0] = sum;
    }
  }
  // The same of four numbers of queries i to i + 3; keys: those numbers of all keys.
  __device__ void multiply_seen(const Shared<Real>& scores, int i, const Shared<Real>& keys, int keys_row,
                                Four<Real> (&sum)[4]) const {
    const int every = limit[i] / 4 * 4, some = limit[i + 3];
    multiply<Real>(scores + i * row, row, keys, keys_row, every, sum);
#pragma unroll 1
    for (int j = every; j < some; ++j) {
      const Four<Real> x = four<Real>(keys + j * keys_row);
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (j < limit[i + r]) add<Real>(sum[r], scores[(i + r) * row + j], x);
    }
  }
};

// The sums of A k^T and A v^T of a head, in global memory; NULL: none.
template <class Real>
struct Sums {
  Real *keys = nullptr, *values = nullptr;
};

// A head of a causal row, of a block, and its segments.
template <class T>
struct Head {
  using Real = RealOf<T>;
  const Work<T>& w;
  const int64_t b;
  const int h;
  const Sight sight;
  __device__ explicit Head(const Work<T>& work)
      : w(work),
        b(blockIdx.x / work.sizes.heads),
        h(static_cast<int>(blockIdx.x % work.sizes.heads)),
        sight(work.lengths, b) {}

  // Of the fresh keys.
  __device__ int64_t needs(int64_t i) const {
    const int64_t n = sight.seen(i) - sight.past;
    return n > 0 ? n : 0;
  }
  __device__ bool is_split() const { return w.split && (sight.queries > kSegment || sight.fresh > kSegment); }
  // Segments that query i sees, all of their keys.
  __device__ int64_t before(int64_t i) const {
    const int64_t n = needs(i);
    return n < sight.fresh ? n / kSegment : segments_of(n);
  }
  // Segments that are summed: a state takes them all.
  __device__ int64_t summed() const {
    if (w.states) return segments_of(sight.fresh);
    return sight.queries > 0 ? before((sight.queries - 1) / kSegment * kSegment) : 0;
  }
  // P W_pq of the row, kept for later; NULL: it is not.
  __device__ Real* pq() const {
    if (w.states) return w.known(b);
    return w.split ? w.split_row(b) : nullptr;
  }
  __device__ Sums<Real> state() const {
    const Sizes& s = w.sizes;
    if (!w.states) return {};
    Real* const known = w.known(b);
    return {known + s.causal_keys() + static_cast<int64_t>(h) * s.l * s.d,
            known + s.causal_values() + static_cast<int64_t>(h) * s.l * s.e};
  }
  // Of the keys of the first n segments, and the state.
  __device__ Sums<Real> sums(int64_t n) const {
    const Sizes& s = w.sizes;
    Real* const keys = w.split_row(b) + s.rows_of_p() + (h * (1 + segments_of(w.lengths.keys)) + n) * s.sums();
    return {keys, s.tied ? keys : keys + static_cast<int64_t>(s.l) * s.d};
  }
};

// The work of a block.
template <class Real>
struct Part {
  int64_t from, to;         // queries
  int64_t done, end;        // fresh keys: that were summed, and that are in the end
  Sums<Real> begun, ended;  // of these keys
  bool has_pq, keeps_pq;    // P W_pq: was it projected before, and is it kept?
};

template <class T>
class Recurrence {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t heads = 2 * Sizes::row(s.d) + (s.tied ? 0 : Sizes::row(s.e));
    return static_cast<uint64_t>((rows + s.l4()) * heads + 2 * rows * Sizes::row(s.l) + rows * (rows + 4)) *
               sizeof(Real) +
           rows * sizeof(int);
  }

  // rows: of a tile.
  __device__ Recurrence(const Head<T>& head, int rows) : w_(head.w), head_(head), rows_(rows) {
    SharedParts parts;
    q_ = parts.take<Real>(rows * row());
    k_ = parts.take<Real>(rows * row());
    v_ = size().tied ? k_ : parts.take<Real>(rows * values_row());
    pq_ = parts.take<Real>(size().l4() * row());
    keys_ = parts.take<Real>(size().l4() * row());
    values_ = size().tied ? keys_ : parts.take<Real>(size().l4() * values_row());
    a_ = parts.take<Real>(rows * l_row());
    weights_ = parts.take<Real>(rows * l_row());
    scores_ = parts.take<Real>(rows * scores_row());
    limit_ = parts.take<int>(rows);
  }

  __device__ void operator()(const Part<Real>& part) {
    const Sizes& s = size();
    begin(part);
    int64_t i = part.from, done = part.done;
    for (;;) {
      // Keys that are summed before the next queries come.
      const bool reads = i < part.to;
      const int64_t before = reads ? head_.needs(i) - rows_ : part.end;
      int64_t keys = before - done;
      int n = 0;
      if (keys > 0) {
        if (keys > rows_) keys = rows_;
      } else if (reads) {
        n = 1;
        while (n < rows_ && i + n < part.to && head_.needs(i + n) - done <= rows_) ++n;
        keys = head_.needs(i + n - 1) - done;
      } else {
        break;
      }
      if (keys > 0) load_keys(done, static_cast<int>(keys));
      if (n > 0) read(i, n, done);
      if (keys > 0) sum(static_cast<int>(keys));
      done += keys;
      i += n;
    }
    if (!part.ended.keys) return;
    store_rows(keys_, row(), s.l, s.d, part.ended.keys, s.d);
    if (!s.tied) store_rows(values_, values_row(), s.l, s.e, part.ended.values, s.e);
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }
  __device__ int scores_row() const { return rows_ + 4; }

  // P W_pq of this head, how many rows of P count, and the sums so far.
  __device__ void begin(const Part<Real>& part) {
    const Sizes& s = size();
    const Sight& sight = head_.sight;
    Real* const known = w_.states ? w_.known(head_.b) : nullptr;
    if (sight.past > 0) {
      const Real rows = known[s.live()];  // of a state whose bytes got lost anything
      live_ = rows >= 0 && rows <= s.l ? static_cast<int>(rows) : 0;
    } else if (sight.fresh > 0) {
      live_ = count_live(w_, head_.b);
      if (known && part.keeps_pq && head_.h == 0 && threadIdx.x == 0) known[s.live()] = static_cast<Real>(live_);
    }
    Real* const pq = head_.pq();
    const int first = head_.h * s.d;
    if (part.has_pq) {
      load_rows(pq + first, s.width(), s.l, s.d, pq_, row());
    } else if (sight.fresh > 0) {
      clear(pq_, s.l4() * row());
      __syncthreads();
      w_.pq.apply(
          s.width(), first, s.d, s.l, [&](int r, int f) { return w_.p.at(head_.b, 0, r)[f]; },
          [&](int r, int c, Real y) {
            pq_[r * row() + c - first] = y * w_.scale;
            if (pq && part.keeps_pq) pq[static_cast<int64_t>(r) * s.width() + c] = y * w_.scale;
          });
    }
    const auto sums = [&](const Real* from, int width, const Shared<Real>& to, int to_row) {
      if (from)
        load_rows(from, width, s.l, width, to, to_row);
      else
        clear(to, s.l4() * to_row);
    };
    sums(part.begun.keys, s.d, keys_, row());
    if (!s.tied) sums(part.begun.values, s.e, values_, values_row());
    __syncthreads();
  }
  // Keys, values, and A of n keys.
  __device__ void load_keys(int64_t first, int n) {
    const Sizes& s = size();
    load_head(w_.pk, head_.b, head_.h, first, n, s.d, q_, row());  // in the place of queries
    load_head(w_.k, head_.b, head_.h, first, n, s.d, k_, row());
    if (!s.tied) load_head(w_.v, head_.b, head_.h, first, n, s.e, v_, values_row());
    __syncthreads();
    for_dots<2>(q_, row(), round4(n), pq_, row(), s.l4(), round4(s.d), All{},
                [&](int j, int r, Real y) { a_[j * l_row() + r] = r < s.l ? activate(s.map, y) : Real{0}; });
    __syncthreads();
  }
  __device__ void sum(int n) {
    const auto stays = [](int) { return Real{1}; };
    add_outer(a_, l_row(), k_, row(), n, size().l4(), size().d, keys_, row(), stays);
    if (!size().tied) add_outer(a_, l_row(), v_, values_row(), n, size().l4(), size().e, values_, values_row(), stays);
    __syncthreads();
  }

  __device__ Pairs<Real> pairs() const { return {scores_row(), limit_}; }
  // n queries.
  __device__ void read(int64_t from, int n, int64_t first) {
    const Sizes& s = size();
    const int rows = round4(n), t = static_cast<int>(threadIdx.x);
    load_head(w_.q, head_.b, head_.h, from, n, s.d, q_, row());
    if (t < rows) {  // a row beyond the last has its limit, so that limits rise
      const int64_t sees = head_.needs(from + (t < n ? t : n - 1)) - first;
      limit_[t] = static_cast<int>(sees < 0 ? 0 : sees);
    }
    __syncthreads();
    const int keys = limit_[rows - 1];
    const auto seen = [&](int i, int j) { return j < limit_[i]; };
    for_dots<4>(q_, row(), rows, k_, row(), round4(keys), round4(s.d), seen,
                [&](int i, int j, Real y) { scores_[i * scores_row() + j] = y; });
    for_dots<2>(q_, row(), rows, keys_, row(), s.l4(), round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    __syncthreads();
    pairs().add_scores(scores_, rows, a_, weights_, l_row(), s.l4());
    __syncthreads();
    const auto seen_keys = [&](int i) { return static_cast<Real>(head_.sight.seen(from + i)); };
    weigh(
        weights_, l_row(), n, live_, s.l4(), [&](int i) { return w_.scale / seen_keys(i); }, seen_keys);
    __syncthreads();
    for_dots<4>(weights_, l_row(), rows, a_, l_row(), round4(keys), s.l4(), seen,
                [&](int i, int j, Real y) { scores_[i * scores_row() + j] = y; });
    __syncthreads();
    write(from, n);
    __syncthreads();
  }
  // o = weights times the sums of A v^T, and scores, which are weights times A by now, times the values seen.
  __device__ void write(int64_t from, int n) {
    for_fours(n, size().e, [&](int i, int c) {
      Four<Real> sum[4] = {};
      multiply_some<Real>(weights_ + i * l_row(), l_row(), values_ + c, values_row(), live_, sum);
      pairs().multiply_seen(scores_, i, v_ + c, values_row(), sum);
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (i + r < n)
          put_four(w_.o.at(head_.b, head_.h, from + i + r) + c, size().e - c,
                   live_ > 0 && head_.sight.seen(from + i + r) > 0 ? sum[r] : Four<Real>{});
    });
  }

  const Work<T>& w_;
  const Head<T>& head_;
  const int rows_;
  int live_ = 0;
  Shared<Real> q_, k_, v_, pq_, keys_, values_, a_, weights_, scores_;
  Shared<int> limit_;
};

// rows: of a tile, where few tokens of a stream are not the reason for kFew.  sums: of segments of keys; then come the
// queries of all rows.
template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) causal_kernel(const Work<T> w, int rows, bool sums) {
  using Real = RealOf<T>;
  const Head<T> head(w);
  const Sight& sight = head.sight;
  const int64_t segment = blockIdx.y, from = segment * kSegment;
  const bool is_split = head.is_split();
  const auto end = [&](int64_t all) { return from + kSegment < all ? from + kSegment : all; };
  Part<Real> part;
  if (sums) {  // the first also keeps P W_pq
    if (!is_split || (segment > 0 && segment >= head.summed())) return;
    part = {0, 0, from, end(sight.fresh), {}, head.sums(segment + 1), sight.past > 0, segment == 0};
  } else if (is_split) {
    if (segment > 0 && from >= sight.queries) return;
    const int64_t before = head.before(from), done = before * kSegment;
    part = {from, end(sight.queries), done < sight.fresh ? done : sight.fresh, 0, head.sums(before), {}, true, false};
  } else {
    if (segment > 0) return;
    const Sums<Real> state = head.state();
    part = {0, sight.queries, 0, 0, state, {}, sight.past > 0, true};
    if (w.states && sight.fresh > 0) {
      part.end = sight.fresh;
      part.ended = state;
    }
  }
  const bool few = w.states && sight.queries <= kFew && sight.fresh <= kFew;
  Recurrence<T>(head, few ? kFew : rows)(part);
  if (!sums && segment == 0) clear_outputs(w, head.b, head.h, sight.queries);
}

// A thread per number of a head's sums.
template <class T>
static __global__ void __launch_bounds__(kThreads) prefixes_kernel(const Work<T> w) {
  using Real = RealOf<T>;
  const Head<T> head(w);
  const Sizes& s = w.sizes;
  const int64_t f = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x, keys = static_cast<int64_t>(s.l) * s.d;
  if (!head.is_split() || f >= s.sums()) return;
  const Sums<Real> of = head.state();
  Real* const state = !w.states ? nullptr : f < keys ? of.keys + f : of.values + (f - keys);
  Real* at = head.sums(0).keys + f;
  Real sum = state ? *state : 0;
  *at = sum;
  const int64_t summed = head.summed();
  for (int64_t n = 0; n < summed; ++n) {
    at += s.sums();
    sum += *at;
    *at = sum;
  }
  if (state && head.sight.fresh > 0) *state = sum;
}

}  // namespace luna::cuda
