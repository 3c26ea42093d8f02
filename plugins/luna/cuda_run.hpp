// luna's run on CUDA.  All products are in f32, in f64 where the tensors are; 16 bits are widened when a row is loaded.
//
// Causal: one kernel, a block for a head of a batch row.  It projects its part of P when the sequence begins, and keeps
// that and the sums of A k^T and A v^T in shared memory while it takes up to kTile queries at a time, with those keys
// that some of them are the first to see: scores Q K^T of these, logits from the sums and from scores times A, weights,
// and the same way back.  Few tokens of a stream take tiles of kFew, whatever their neighbours have.
// Bidirectional: three kernels.  Pack: a block for a head of the pack attention, with a running maximum for each row of
// P.  Project: Y, its keys and values, and P'.  Unpack: a block for 32 queries of a head.
//
// A long row has many blocks, so that a few heads fill a device.  Causal, with more than kSegment queries or keys: the
// same kernel sums each kSegment keys from nothing, prefixes_kernel adds these sums up in their order, the state first,
// and blocks of kSegment queries begin with what was summed of keys that all of them see.  That reads keys and values
// twice.  Bidirectional, with more than kSegment keys: blocks pack kSegment keys each, of which the first goes on with
// what was packed before, and combine_kernel brings these to one maximum.  Whether a row is split depends on its own
// lengths alone, so that neither padding nor neighbours change a bit.
#pragma once
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

#include "model.hpp"

namespace luna::cuda {

using namespace attnkit::cuda;
using attnkit::cuda::Sight;  // luna's is the CPU's

constexpr int kThreads = 128, kWarps = kThreads / 32;
template <class Real>
constexpr Real kLeast = std::numeric_limits<Real>::lowest();
// Blocks that are to fit into a multiprocessor; f64 is for checks.
template <class T>
constexpr int kBlocks = sizeof(T) == 8 ? 1 : 4;
constexpr int kTile = 32, kFew = 8;
constexpr int kColumns = 32;  // of Y's projections, of a block
constexpr int64_t kSegment = 1024;
__host__ __device__ constexpr int64_t segments_of(int64_t rows) { return (rows + kSegment - 1) / kSegment; }

struct Sizes {
  int heads, d, e, l, pack_heads;  // e: of a head's output
  bool tied, contextual, dynamic;
  Map map;
  explicit Sizes(const Shape& s)
      : heads(static_cast<int>(s.heads)),
        d(static_cast<int>(s.d)),
        e(static_cast<int>(s.values())),
        l(static_cast<int>(s.l)),
        pack_heads(static_cast<int>(s.pack_heads)),
        tied(s.tied),
        contextual(s.contextual),
        dynamic(s.dynamic),
        map(s.map) {}
  __host__ __device__ int width() const { return heads * d; }
  __host__ __device__ int pack_d() const { return width() / pack_heads; }
  __host__ __device__ int l4() const { return round4(l); }
  // Places in what is known of a batch row, as luna::Causal and luna::Packed have them; pq and the sums of the pack
  // begin it.
  __host__ __device__ int64_t rows_of_p() const { return static_cast<int64_t>(l) * width(); }
  __device__ int64_t causal_keys() const { return rows_of_p(); }
  __device__ int64_t causal_values() const { return tied ? causal_keys() : causal_keys() + rows_of_p(); }
  __device__ int64_t live() const { return causal_values() + static_cast<int64_t>(l) * heads * e; }
  __host__ __device__ int64_t largest() const { return rows_of_p(); }
  __host__ __device__ int64_t totals() const { return largest() + static_cast<int64_t>(l) * pack_heads; }
  __host__ __device__ int64_t keys() const { return totals() + static_cast<int64_t>(l) * pack_heads; }
  __device__ int64_t values() const { return tied ? keys() : keys() + rows_of_p(); }
  __device__ int64_t next() const { return values() + static_cast<int64_t>(l) * heads * e; }
  // Of a causal head, the sums of A k^T, then untied those of A v^T.
  __host__ __device__ int64_t sums() const { return static_cast<int64_t>(l) * (tied ? d : d + e); }
  // Numbers of the scratch of a batch row that may be split, of so many keys.  Causal: P W_pq, and by heads the sums of
  // the keys before each segment and before their end.  Else: what is packed of each segment, as what is known begins.
  __host__ __device__ int64_t split_row(bool causal, int64_t fresh) const {
    const int64_t segments = segments_of(fresh);
    return causal ? rows_of_p() + heads * (1 + segments) * sums() : segments * keys();
  }
  // A number of Y.
  template <class Real>
  __device__ Real packed(const Real* known, int r, int c) const {
    return quotient(known[static_cast<int64_t>(r) * width() + c],
                    known[totals() + static_cast<int64_t>(c / pack_d()) * l + r]);
  }
  // From row to row; 4: neighbours lie in different banks.
  __host__ __device__ static int row(int n) { return round4(n) + 4; }
};

// A learned projection.
template <class Real>
struct Dense {
  Rows<const Real> weight;
  const Real* bias;
  Dense(const attn_run& r, attnkit::Port w, attnkit::Port b)
      : weight(attnkit::View<const Real>(r, w)), bias(attnkit::View<const Real>(r, b).data) {}

  // Calls put(r, c, W_c . x_r + b_c) for columns [from, from + count) of n rows x(r, f), a warp to a column.
  template <class X, class Put>
  __device__ void apply(int width, int from, int count, int n, const X& x, const Put& put) const {
    for (int c = from + warp(); c < from + count; c += kWarps)
      for (int r = 0; r < n; r += 4) {
        Real sum[4] = {};
        for (int f = lane(); f < width; f += 32) {
          const Real w = weight.at(0, 0, c)[f];
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (r + i < n) sum[i] = fused(w, x(r + i, f), sum[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Real all = sum_of_warp(sum[i]);
          if (lane() == 0 && r + i < n) put(r + i, c, all + bias[c]);
        }
      }
  }
};

// The arguments of a run.  Tied, v and pv are k and pk.
template <class T>
struct Work {
  using Real = RealOf<T>;
  Sizes sizes;
  Rows<const T> q, k, v, pk, pv;
  Rows<T> o;
  Rows<const Real> p;
  bool aux;  // P is a sequence of the run, else the learned one
  Dense<Real> pq, keys, values;
  const Real *norm_weight, *norm_bias;
  Rows<Real> next;
  Lengths lengths;
  States states;
  Real* memory;  // what is known of each batch row, where there is no state
  int64_t memory_row;
  Real* split;  // NULL: no row is
  Real scale, pack_scale;
  int tiles;  // of a head's queries, in blocks of their own

  __device__ Real* known(int64_t b) const {
    if constexpr (std::is_same_v<Real, float>)
      if (states) return states.row(b);
    return memory + b * memory_row;
  }
  __device__ Real* split_row(int64_t b) const { return split + b * sizes.split_row(lengths.causal, lengths.keys); }
};

__device__ inline float magnitude(float x) { return fabsf(x); }
__device__ inline double magnitude(double x) { return fabs(x); }
__device__ inline float log_of_more(float x) { return log1pf(x); }
__device__ inline double log_of_more(double x) { return log1p(x); }
template <class Real>
__device__ Real base_of(Map map) {
  return map == Map::kLog2 ? static_cast<Real>(0.69314718055994531) : Real{1};
}
// w of the causal pack.  NaN stays NaN.
template <class Real>
__device__ Real activate(Map map, Real x) {
  if (map == Map::kElu1) return x > 0 ? x + 1 : exponential(x);
  const Real base = base_of<Real>(map);
  return (x < 0 ? 0 : x) + log_of_more(exponential(-magnitude(x) * base)) / base;
}

// Its slope.
template <class Real>
__device__ Real slope_of(Map map, Real x) {
  if (map == Map::kElu1) return x > 0 ? Real{1} : exponential(x);
  const Real power = exponential(-magnitude(x) * base_of<Real>(map));
  return quotient(x > 0 ? Real{1} : power, power + 1);
}

// Rows of numbers number(j, c); zeros where `room` has more than n rows or a row more than `count` columns.
template <class Real, class Number>
__device__ void load(int n, int room, int count, const Shared<Real>& to, int to_row, const Number& number) {
  for (int j = warp(); j < room; j += kWarps)
    for (int c = lane(); c < round4(count); c += 32)
      to[j * to_row + c] = j < n && c < count ? widened(number(j, c)) : Real{0};
}
// n rows of a head.
template <class Real, class T>
__device__ void load_head(const Rows<const T>& x, int64_t b, int h, int64_t first, int n, int count,
                          const Shared<Real>& to, int to_row) {
  load(n, round4(n), count, to, to_row, [&](int j, int c) { return x.at(b, h, first + j)[c]; });
}
// l rows in global memory.
template <class Real>
__device__ void load_rows(const Real* x, int64_t x_row, int l, int count, const Shared<Real>& to, int to_row) {
  for (int r = warp(); r < round4(l); r += kWarps)
    for (int c = lane(); c < round4(count); c += 32)
      to[r * to_row + c] = r < l && c < count ? x[r * x_row + c] : Real{0};
}
template <class Real>
__device__ void clear(const Shared<Real>& x, int count) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) x[i] = 0;
}
template <class Real>
__device__ void store_rows(const Shared<Real>& x, int x_row, int l, int count, Real* to, int64_t to_row) {
#pragma unroll 1
  for (int r = warp(); r < l; r += kWarps)
#pragma unroll 1
    for (int c = lane(); c < count; c += 32) to[r * to_row + c] = x[r * x_row + c];
}

// Four numbers of a row of outputs, of which n exist.
template <class T>
__device__ void put_four(T* to, int n, const Four<RealOf<T>>& x) {
  to[0] = narrowed<T>(x.x);
  if (n > 1) to[1] = narrowed<T>(x.y);
  if (n > 2) to[2] = narrowed<T>(x.z);
  if (n > 3) to[3] = narrowed<T>(x.w);
}

// The first of four rows of four columns, of which there are `rows` and `columns`; row(r) is where the r-th goes.
template <class Real, class Row>
__device__ void put_rows(int rows, int columns, const Four<Real> (&x)[4], const Row& row) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
    if (r < rows) put_four(row(r), columns, x[r]);
}
// Calls visit(i, c) for every four of n rows and every four of `width` columns, one to a thread.
template <class Visit>
__device__ void for_fours(int n, int width, const Visit& visit) {
  const int fours = round4(width) / 4;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < round4(n) / 4 * fours; unit += kThreads)
    visit(unit / fours * 4, unit % fours * 4);
}

// Calls put(i, j, x_i . y_j) for `rows` rows of x and `columns` rows of y, both even, by kDown and two of them, but
// where wanted(the last i, the first j) says no.
template <int kDown, class Real, class Wanted, class Put>
__device__ void for_dots(const Shared<Real>& x, int x_row, int rows, const Shared<Real>& y, int y_row, int columns,
                         int depth, const Wanted& wanted, const Put& put) {
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < rows / kDown * (columns / 2); unit += kThreads) {
    const int i = unit / (columns / 2) * kDown, j = unit % (columns / 2) * 2;
    if (!wanted(i + kDown - 1, j)) continue;
    Real sum[kDown][2] = {};
#pragma unroll 2
    for (int f = 0; f < depth; f += 4) {
      const Four<Real> y0 = four<Real>(y + (j * y_row + f)), y1 = four<Real>(y + ((j + 1) * y_row + f));
#pragma unroll
      for (int r = 0; r < kDown; ++r) {
        const Four<Real> own = four<Real>(x + ((i + r) * x_row + f));
        sum[r][0] = dot(own, y0, sum[r][0]);
        sum[r][1] = dot(own, y1, sum[r][1]);
      }
    }
#pragma unroll
    for (int r = 0; r < kDown; ++r) {
      put(i + r, j, sum[r][0]);
      put(i + r, j + 1, sum[r][1]);
    }
  }
}
struct All {
  __device__ bool operator()(int, int) const { return true; }
};

// to_r = to_r down(r) + sum over n rows j of a_jr x_j, for l4 rows of `width` columns.
template <class Real, class Down>
__device__ void add_outer(const Shared<Real>& a, int a_row, const Shared<Real>& x, int x_row, int n, int l4, int width,
                          const Shared<Real>& to, int to_row, const Down& down) {
  const int fours = round4(width) / 4;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < l4 / 2 * fours; unit += kThreads) {
    const int r = unit / fours * 2, c = unit % fours * 4;
    Four<Real> sum[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Real by = down(r + i);
      sum[i] = four<Real>(to + ((r + i) * to_row + c));
      sum[i] = {sum[i].x * by, sum[i].y * by, sum[i].z * by, sum[i].w * by};
    }
    for (int j = 0; j < n; ++j) {
      const Four<Real> own = four<Real>(x + (j * x_row + c));
      add<Real>(sum[0], a[j * a_row + r], own);
      add<Real>(sum[1], a[j * a_row + r + 1], own);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) as<Four<Real>>(to + ((r + i) * to_row + c))[0] = sum[i];
  }
}

// Logits of n queries over `live` rows become weights: softmax(by(i) logits) / divisor(i), zeros behind them and in the
// rows that make n a multiple of 4.
template <class Real, class By, class Divisor>
__device__ void weigh(const Shared<Real>& w, int row, int n, int live, int l4, const By& by, const Divisor& divisor) {
#pragma unroll 1
  for (int i = warp(); i < round4(n); i += kWarps) {
    const int count = i < n ? live : 0;
    const Real scale = i < n ? by(i) : 0;
    Real most = kLeast<Real>, sum = 0;
#pragma unroll 1
    for (int r = lane(); r < count; r += 32) most = larger(most, w[i * row + r] * scale);
    for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
#pragma unroll 1
    for (int r = lane(); r < count; r += 32) {
      const Real x = exponential(w[i * row + r] * scale - most);
      w[i * row + r] = x;
      sum += x;
    }
    const Real share = count > 0 ? reciprocal(sum_of_warp(sum) * divisor(i)) : 0;
#pragma unroll 1
    for (int r = lane(); r < l4; r += 32) w[i * row + r] = r < count ? w[i * row + r] * share : Real{0};
  }
}

// Rows of outputs past the last query.
template <class T>
__device__ void clear_outputs(const Work<T>& w, int64_t b, int h, int64_t from) {
  for (int64_t i = from + warp(); i < w.lengths.queries; i += kWarps)
    for (int c = lane(); c < w.sizes.e; c += 32) w.o.at(b, h, i)[c] = narrowed<T>(0);
}

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

// One head of the pack attention over fresh keys of a batch row.
template <class T>
class Pack {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t wide = 2 * s.l4() + (s.tied ? 1 : 2) * rows;
    return static_cast<uint64_t>(wide * Sizes::row(s.pack_d()) + rows * Sizes::row(s.l) + 3 * s.l4()) * sizeof(Real);
  }
  // rows: of a tile.
  __device__ Pack(const Work<T>& work, int64_t b, int head, int rows) : w_(work), b_(b), head_(head), rows_(rows) {
    SharedParts parts;
    k_ = parts.take<Real>(rows * row());
    v_ = size().tied ? k_ : parts.take<Real>(rows * row());
    pq_ = parts.take<Real>(size().l4() * row());
    sums_ = parts.take<Real>(size().l4() * row());
    a_ = parts.take<Real>(rows * l_row());
    most_ = parts.take<Real>(size().l4());
    total_ = parts.take<Real>(size().l4());
    down_ = parts.take<Real>(size().l4());
  }

  // Keys [from, to); goes_on: with what is known.  to_known: where what is packed goes.
  __device__ void operator()(int64_t from, int64_t to, bool goes_on, Real* to_known) {
    const Sizes& s = size();
    const int dp = s.pack_d();
    begin(goes_on);
    for (int64_t j = from; j < to; j += rows_) {
      const int n = static_cast<int>(to - j < rows_ ? to - j : rows_);
      load_part(w_.pk, j, n, k_);
      if (!s.tied) load_part(w_.pv, j, n, v_);
      __syncthreads();
      for_dots<2>(k_, row(), round4(n), pq_, row(), s.l4(), round4(dp), All{},
                  [&](int i, int r, Real y) { a_[i * l_row() + r] = y; });
      __syncthreads();
      rescale(n);
      __syncthreads();
      add_outer(a_, l_row(), v_, row(), n, s.l4(), dp, sums_, row(),
                [&](int r) { return static_cast<Real>(down_[r]); });
      __syncthreads();
    }
    store_rows(sums_, row(), s.l, dp, to_known + head_ * dp, s.width());
    for (int r = static_cast<int>(threadIdx.x); r < s.l; r += kThreads) {
      to_known[s.largest() + static_cast<int64_t>(head_) * s.l + r] = most_[r];
      to_known[s.totals() + static_cast<int64_t>(head_) * s.l + r] = total_[r];
    }
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().pack_d()); }
  __device__ int l_row() const { return Sizes::row(size().l); }

  // Columns of this head, which those of the block need not share.
  __device__ void load_part(const Rows<const T>& x, int64_t first, int n, const Shared<Real>& to) const {
    const int d = size().d, from = head_ * size().pack_d();
    load(n, round4(n), size().pack_d(), to, row(),
         [&](int j, int c) { return x.at(b_, (from + c) / d, first + j)[(from + c) % d]; });
  }
  // P W_pq of this head and what was packed before.
  __device__ void begin(bool goes_on) {
    const Sizes& s = size();
    const int dp = s.pack_d(), from = head_ * dp;
    const Real* known = w_.known(b_);
    clear(pq_, s.l4() * row());
    if (goes_on)
      load_rows(known + from, s.width(), s.l, dp, sums_, row());
    else
      clear(sums_, s.l4() * row());
#pragma unroll 1
    for (int r = static_cast<int>(threadIdx.x); r < s.l4(); r += kThreads) {
      const bool has = goes_on && r < s.l;
      most_[r] = has ? known[s.largest() + static_cast<int64_t>(head_) * s.l + r] : kLeast<Real>;
      total_[r] = has ? known[s.totals() + static_cast<int64_t>(head_) * s.l + r] : Real{0};
    }
    __syncthreads();
    w_.pq.apply(
        s.width(), from, dp, s.l, [&](int r, int f) { return w_.p.at(b_, 0, r)[f]; },
        [&](int r, int c, Real y) { pq_[r * row() + c - from] = y * w_.pack_scale; });
    __syncthreads();
  }
  // Scores of n keys become e^(score - m), a warp to a row of P, m the largest so far; a NaN is never the largest.
  __device__ void rescale(int n) {
#pragma unroll 1
    for (int r = warp(); r < size().l4(); r += kWarps) {
      const Real before = most_[r];
      Real most = before, sum = 0;
#pragma unroll 1
      for (int j = lane(); j < n; j += 32) most = larger(most, static_cast<Real>(a_[j * l_row() + r]));
      for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
#pragma unroll 1
      for (int j = lane(); j < n; j += 32) {
        const Real x = exponential(a_[j * l_row() + r] - most);
        a_[j * l_row() + r] = x;
        sum += x;
      }
      sum = sum_of_warp(sum);
      const Real all = total_[r];
      __syncwarp();  // all have read the row's m and total
      if (lane() == 0) {
        const Real down = exponential(before - most);
        down_[r] = down;
        most_[r] = most;
        total_[r] = fused(all, down, sum);
      }
    }
  }

  const Work<T>& w_;
  const int64_t b_;
  const int head_, rows_;
  Shared<Real> k_, v_, pq_, sums_, a_, most_, total_, down_;
};

// rows: of a tile.
template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) pack_kernel(const Work<T> w, int rows) {
  const int64_t b = blockIdx.x / w.sizes.pack_heads, segment = blockIdx.y, from = segment * kSegment;
  const Sight sight(w.lengths, b);
  const bool is_split = w.split && sight.fresh > kSegment;
  if (is_split ? from >= sight.fresh : segment > 0 || sight.fresh == 0) return;
  const int64_t to = is_split && from + kSegment < sight.fresh ? from + kSegment : sight.fresh;
  Pack<T>(w, b, static_cast<int>(blockIdx.x % w.sizes.pack_heads), rows)(
      from, to, sight.past > 0 && segment == 0, is_split ? w.split_row(b) + segment * w.sizes.keys() : w.known(b));
}

// Brings what was packed of a split row's segments to one maximum; a thread per sum of the pack softmax and per total.
template <class T>
static __global__ void __launch_bounds__(kThreads) combine_kernel(const Work<T> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int64_t blocks = (s.totals() + kThreads - 1) / kThreads, b = blockIdx.x / blocks;
  const int64_t f = blockIdx.x % blocks * kThreads + threadIdx.x;
  const Sight sight(w.lengths, b);
  const int64_t totals = static_cast<int64_t>(s.l) * s.pack_heads;
  if (!w.split || sight.fresh <= kSegment || f >= s.largest() + totals) return;
  const bool is_total = f >= s.largest();
  const int64_t r = f / s.width(), head = f % s.width() / s.pack_d(), sum_at = is_total ? f + totals : f,
                most_at = is_total ? f : s.largest() + head * s.l + r;
  const Real* part = w.split_row(b);
  Real most = part[most_at], sum = part[sum_at];
  for (int64_t n = 1; n < segments_of(sight.fresh); ++n) {
    part += s.keys();
    const Real own = part[most_at], next = larger(most, own);
    sum = fused(sum, exponential(most - next), part[sum_at] * exponential(own - next));
    most = next;
  }
  Real* const known = w.known(b);
  known[sum_at] = sum;
  if (is_total) known[most_at] = most;
}

// Blocks of a batch row that project Y: kColumns keys or values each, and one for P'.
__host__ __device__ inline int project_blocks(const Sizes& s) {
  const int all = s.width() + (s.tied ? 0 : s.heads * s.e);
  return (all + kColumns - 1) / kColumns + 1;
}

// Rows of P that count once so many keys are known.
__device__ inline int live_rows(const Sizes& s, int64_t known) {
  return known == 0 ? 0 : s.dynamic && known < s.l ? static_cast<int>(known) : s.l;
}

// LN(x) is (x - mean) factor weight + bias.
struct Moments {
  double mean, factor;
};
// Of a row of Y + P; a warp.
template <class X>
__device__ Moments moments_of(int width, const X& x) {
  double sum = 0, square = 0;
  for (int c = lane(); c < width; c += 32) sum += x(c);
  const double mean = sum_of_warp(sum) / width;
  for (int c = lane(); c < width; c += 32) square = fused(x(c) - mean, x(c) - mean, square);
  return {mean, 1 / sqrt(sum_of_warp(square) / width + 1e-5)};
}

// P' = LN(Y + P), a warp to a row, its moments in f64; zeros in the rows that do not count.
template <class T, class Y>
__device__ void normalise(const Work<T>& w, int64_t b, int live, const Y& y, RealOf<T>* to) {
  using Real = RealOf<T>;
  const int width = w.sizes.width();
  for (int r = warp(); r < w.sizes.l; r += kWarps) {
    Real* next = to + static_cast<int64_t>(r) * width;
    const auto x = [&](int c) { return static_cast<double>(y(r, c)) + w.p.at(b, 0, r)[c]; };
    const Moments of = moments_of(width, x);
    for (int c = lane(); c < width; c += 32)
      next[c] =
          r < live ? static_cast<Real>((x(c) - of.mean) * of.factor) * w.norm_weight[c] + w.norm_bias[c] : Real{0};
  }
}

template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) project_kernel(const Work<T> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int blocks = project_blocks(s), block = static_cast<int>(blockIdx.x) % blocks, width = s.width();
  const int64_t b = blockIdx.x / blocks;
  const Sight sight(w.lengths, b);
  if (sight.fresh == 0) return;
  Real* known = w.known(b);
  const auto y = [&](int r, int c) { return s.packed(known, r, c); };
  if (block == blocks - 1) {
    if (s.contextual) normalise(w, b, live_rows(s, sight.past + sight.fresh), y, known + s.next());
    return;
  }
  const int from = block * kColumns, all = width + (s.tied ? 0 : s.heads * s.e);
  const int to = from + kColumns < all ? from + kColumns : all;
  const auto project = [&](const Dense<Real>& dense, int begin, int end, int64_t at, int columns) {
    if (begin < end)
      dense.apply(width, begin, end - begin, s.l, y,
                  [&](int r, int c, Real x) { known[at + static_cast<int64_t>(r) * columns + c] = x; });
  };
  project(w.keys, from, to < width ? to : width, s.keys(), width);
  if (!s.tied) project(w.values, from > width ? from - width : 0, to - width, s.values(), s.heads * s.e);
}

// Queries of a head against the packed sequence.
template <class T>
class Unpack {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s, int rows) {
    const int64_t packed = Sizes::row(s.d) + (s.tied ? 0 : Sizes::row(s.e));
    return static_cast<uint64_t>(s.l4() * packed + rows * (Sizes::row(s.d) + Sizes::row(s.l))) * sizeof(Real);
  }
  __device__ Unpack(const Work<T>& work, int64_t b, int h, int rows) : w_(work), b_(b), h_(h) {
    SharedParts parts;
    q_ = parts.take<Real>(rows * row());
    weights_ = parts.take<Real>(rows * l_row());
    keys_ = parts.take<Real>(size().l4() * row());
    values_ = size().tied ? keys_ : parts.take<Real>(size().l4() * values_row());
  }
  __device__ void operator()(int64_t from, int n, int live) {
    const Sizes& s = size();
    const int rows = round4(n);
    if (live == 0) {
      for (int i = warp(); i < n; i += kWarps)
        for (int c = lane(); c < s.e; c += 32) w_.o.at(b_, h_, from + i)[c] = narrowed<T>(0);
      return;
    }
    const int live4 = round4(live);
    const Real* known = w_.known(b_);
    load_head(w_.q, b_, h_, from, n, s.d, q_, row());
    load_rows(known + s.keys() + static_cast<int64_t>(h_) * s.d, s.width(), live, s.d, keys_, row());
    if (!s.tied)
      load_rows(known + s.values() + static_cast<int64_t>(h_) * s.e, s.heads * s.e, live, s.e, values_, values_row());
    __syncthreads();
    for_dots<2>(q_, row(), rows, keys_, row(), live4, round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    __syncthreads();
    weigh(
        weights_, l_row(), n, live, live4, [&](int) { return w_.scale; }, [](int) { return Real{1}; });
    __syncthreads();
    for_fours(n, s.e, [&](int i, int c) {
      Four<Real> sum[4] = {};
      multiply<Real>(weights_ + i * l_row(), l_row(), values_ + c, values_row(), live4, sum);
      put_rows(n - i, s.e - c, sum, [&](int r) { return w_.o.at(b_, h_, from + i + r) + c; });
    });
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }

  const Work<T>& w_;
  const int64_t b_;
  const int h_;
  Shared<Real> q_, weights_, keys_, values_;
};

// rows: of a tile; no number depends on it.
template <class T>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) unpack_kernel(const Work<T> w, int rows) {
  const Sizes& s = w.sizes;
  const int pair = static_cast<int>(blockIdx.x) / w.tiles, tile = static_cast<int>(blockIdx.x) % w.tiles;
  const int64_t b = pair / s.heads, from = static_cast<int64_t>(tile) * rows;
  const int h = pair % s.heads;
  const Sight sight(w.lengths, b);
  const int64_t known = sight.past + sight.fresh, left = sight.queries - from;
  if (left > 0) Unpack<T>(w, b, h, rows)(from, static_cast<int>(left < rows ? left : rows), live_rows(s, known));
  if (tile == 0) clear_outputs(w, b, h, sight.queries);
  if (tile != 0 || h != 0 || !s.contextual) return;
  for (int r = warp(); r < s.l; r += kWarps)
    for (int c = lane(); c < s.width(); c += 32)
      w.next.at(b, 0, r)[c] = known > 0 ? w.known(b)[s.next() + static_cast<int64_t>(r) * s.width() + c] : 0;
}

}  // namespace luna::cuda
