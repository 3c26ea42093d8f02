// luna's run on CUDA.  All products are in f32, in f64 where the tensors are; 16 bits are widened when a row is loaded.
//
// Causal: one kernel, a block for a head of a batch row.  It projects its part of P when the sequence begins, and keeps
// that and the sums of A k^T and A v^T in shared memory while it takes up to kRows queries at a time, with those keys
// that some of them are the first to see: scores Q K^T of these, logits from the sums and from scores times A, weights,
// and the same way back.  Few tokens of a stream take tiles of kFew, whatever their neighbours have.
// Bidirectional: three kernels.  Pack: a block for a head of the pack attention, with a running maximum for each row of
// P.  Project: Y, its keys and values, and P'.  Unpack: a block for 32 queries of a head.
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
  __device__ int64_t rows_of_p() const { return static_cast<int64_t>(l) * width(); }
  __device__ int64_t causal_keys() const { return rows_of_p(); }
  __device__ int64_t causal_values() const { return tied ? causal_keys() : causal_keys() + rows_of_p(); }
  __device__ int64_t live() const { return causal_values() + static_cast<int64_t>(l) * heads * e; }
  __device__ int64_t largest() const { return rows_of_p(); }
  __device__ int64_t totals() const { return largest() + static_cast<int64_t>(l) * pack_heads; }
  __device__ int64_t keys() const { return totals() + static_cast<int64_t>(l) * pack_heads; }
  __device__ int64_t values() const { return tied ? keys() : keys() + rows_of_p(); }
  __device__ int64_t next() const { return values() + static_cast<int64_t>(l) * heads * e; }
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
  Real scale, pack_scale;
  int tiles;  // of a head's queries, in blocks of their own

  __device__ Real* known(int64_t b) const {
    if constexpr (std::is_same_v<Real, float>)
      if (states) return states.row(b);
    return memory + b * memory_row;
  }
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
__device__ void store_rows(const Shared<Real>& x, int x_row, int l, int count, Real* to, int64_t to_row) {
  for (int r = warp(); r < l; r += kWarps)
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
  for (int unit = static_cast<int>(threadIdx.x); unit < round4(n) / 4 * fours; unit += kThreads)
    visit(unit / fours * 4, unit % fours * 4);
}

// Calls put(i, j, x_i . y_j) for `rows` rows of x and `columns` rows of y, both even, by kDown and two of them, but
// where wanted(the last i, the first j) says no.
template <int kDown, class Real, class Wanted, class Put>
__device__ void for_dots(const Shared<Real>& x, int x_row, int rows, const Shared<Real>& y, int y_row, int columns,
                         int depth, const Wanted& wanted, const Put& put) {
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
  for (int i = warp(); i < round4(n); i += kWarps) {
    const int count = i < n ? live : 0;
    const Real scale = i < n ? by(i) : 0;
    Real most = kLeast<Real>, sum = 0;
    for (int r = lane(); r < count; r += 32) most = larger(most, w[i * row + r] * scale);
    for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
    for (int r = lane(); r < count; r += 32) {
      const Real x = exponential(w[i * row + r] * scale - most);
      w[i * row + r] = x;
      sum += x;
    }
    const Real share = count > 0 ? reciprocal(sum_of_warp(sum) * divisor(i)) : 0;
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

// One head of a causal row.
template <class T, int kRows>
class Recurrence {
  using Real = RealOf<T>;
  static constexpr int kScores = kRows + 4;

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t heads = 2 * Sizes::row(s.d) + (s.tied ? 0 : Sizes::row(s.e));
    return static_cast<uint64_t>((kRows + s.l4()) * heads + 2 * kRows * Sizes::row(s.l) + kRows * kScores) *
               sizeof(Real) +
           kRows * sizeof(int);
  }

  __device__ Recurrence(const Work<T>& work, int64_t b, int h, const Sight& sight)
      : w_(work), sight_(sight), b_(b), h_(h) {
    SharedParts parts;
    q_ = parts.take<Real>(kRows * row());
    k_ = parts.take<Real>(kRows * row());
    v_ = size().tied ? k_ : parts.take<Real>(kRows * values_row());
    pq_ = parts.take<Real>(size().l4() * row());
    keys_ = parts.take<Real>(size().l4() * row());
    values_ = size().tied ? keys_ : parts.take<Real>(size().l4() * values_row());
    a_ = parts.take<Real>(kRows * l_row());
    weights_ = parts.take<Real>(kRows * l_row());
    scores_ = parts.take<Real>(kRows * kScores);
    limit_ = parts.take<int>(kRows);
  }

  __device__ void operator()() {
    begin();
    int64_t done = 0;
    const auto sum_to = [&](int64_t to) {
      while (done < to) {
        const int n = static_cast<int>(to - done < kRows ? to - done : kRows);
        load_keys(done, n);
        sum(n);
        done += n;
      }
    };
    for (int64_t i = 0; i < sight_.queries;) {
      const int64_t first = needs(i);
      if (first - done > kRows) sum_to(first - kRows);
      int n = 1;
      while (n < kRows && i + n < sight_.queries && needs(i + n) - done <= kRows) ++n;
      const auto keys = static_cast<int>(needs(i + n - 1) - done);
      if (keys > 0) load_keys(done, keys);
      read(i, n, done);
      if (keys > 0) sum(keys);
      done += keys;
      i += n;
    }
    if (w_.states && sight_.fresh > 0) {
      sum_to(sight_.fresh);
      Real* known = w_.known(b_);
      store_rows(keys_, row(), size().l, size().d, known + keys_at(), size().d);
      if (!size().tied) store_rows(values_, values_row(), size().l, size().e, known + values_at(), size().e);
    }
    clear_outputs(w_, b_, h_, sight_.queries);
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int row() const { return Sizes::row(size().d); }
  __device__ int values_row() const { return Sizes::row(size().e); }
  __device__ int l_row() const { return Sizes::row(size().l); }
  __device__ int64_t keys_at() const { return size().causal_keys() + static_cast<int64_t>(h_) * size().l * size().d; }
  __device__ int64_t values_at() const {
    return size().causal_values() + static_cast<int64_t>(h_) * size().l * size().e;
  }
  // Of the fresh keys.
  __device__ int64_t needs(int64_t i) const {
    const int64_t n = sight_.seen(i) - sight_.past;
    return n > 0 ? n : 0;
  }

  // P W_pq of this head, how many rows of P count, and the sums so far.
  __device__ void begin() {
    const Sizes& s = size();
    Real* known = w_.states ? w_.known(b_) : nullptr;
    const int64_t pq_at = static_cast<int64_t>(h_) * s.d;
    if (sight_.past > 0) {
      load_rows(known + pq_at, s.width(), s.l, s.d, pq_, row());
      const Real rows = known[s.live()];  // of a state whose bytes got lost anything
      live_ = rows >= 0 && rows <= s.l ? static_cast<int>(rows) : 0;
    } else if (sight_.fresh > 0) {
      for (int x = static_cast<int>(threadIdx.x); x < s.l4() * row(); x += kThreads) pq_[x] = 0;
      __syncthreads();
      w_.pq.apply(
          s.width(), h_ * s.d, s.d, s.l, [&](int r, int f) { return w_.p.at(b_, 0, r)[f]; },
          [&](int r, int c, Real y) {
            pq_[r * row() + c - h_ * s.d] = y * w_.scale;
            if (known) known[static_cast<int64_t>(r) * s.width() + c] = y * w_.scale;
          });
      live_ = count_live(w_, b_);
      if (known && h_ == 0 && threadIdx.x == 0) known[s.live()] = static_cast<Real>(live_);
    }
    const auto sums = [&](int64_t at, int width, const Shared<Real>& to, int to_row) {
      load_rows(known ? known + at : nullptr, width, known ? s.l : 0, width, to, to_row);
      for (int x = static_cast<int>(threadIdx.x); !known && x < s.l4() * to_row; x += kThreads) to[x] = 0;
    };
    sums(keys_at(), s.d, keys_, row());
    if (!s.tied) sums(values_at(), s.e, values_, values_row());
    __syncthreads();
  }
  // Keys, values, and A of n keys.
  __device__ void load_keys(int64_t first, int n) {
    const Sizes& s = size();
    load_head(w_.pk, b_, h_, first, n, s.d, q_, row());  // in the place of queries
    load_head(w_.k, b_, h_, first, n, s.d, k_, row());
    if (!s.tied) load_head(w_.v, b_, h_, first, n, s.e, v_, values_row());
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

  __device__ Pairs<Real> pairs() const { return {kScores, limit_}; }
  // n queries.
  __device__ void read(int64_t from, int n, int64_t first) {
    const Sizes& s = size();
    const int rows = round4(n), t = static_cast<int>(threadIdx.x);
    load_head(w_.q, b_, h_, from, n, s.d, q_, row());
    if (t < rows) {  // a row beyond the last has its limit, so that limits rise
      const int64_t sees = needs(from + (t < n ? t : n - 1)) - first;
      limit_[t] = static_cast<int>(sees < 0 ? 0 : sees);
    }
    __syncthreads();
    const int keys = limit_[rows - 1];
    const auto seen = [&](int i, int j) { return j < limit_[i]; };
    for_dots<4>(q_, row(), rows, k_, row(), round4(keys), round4(s.d), seen,
                [&](int i, int j, Real y) { scores_[i * kScores + j] = y; });
    for_dots<2>(q_, row(), rows, keys_, row(), s.l4(), round4(s.d), All{},
                [&](int i, int r, Real y) { weights_[i * l_row() + r] = y; });
    __syncthreads();
    pairs().add_scores(scores_, rows, a_, weights_, l_row(), s.l4());
    __syncthreads();
    const auto seen_keys = [&](int i) { return static_cast<Real>(sight_.seen(from + i)); };
    weigh(
        weights_, l_row(), n, live_, s.l4(), [&](int i) { return w_.scale / seen_keys(i); }, seen_keys);
    __syncthreads();
    for_dots<4>(weights_, l_row(), rows, a_, l_row(), round4(keys), s.l4(), seen,
                [&](int i, int j, Real y) { scores_[i * kScores + j] = y; });
    __syncthreads();
    write(from, n);
    __syncthreads();
  }
  // o = weights times the sums of A v^T, and scores, which are weights times A by now, times the values seen.
  __device__ void write(int64_t from, int n) {
    for_fours(n, size().e, [&](int i, int c) {
      Four<Real> sum[4] = {};
      multiply<Real>(weights_ + i * l_row(), l_row(), values_ + c, values_row(), size().l4(), sum);
      pairs().multiply_seen(scores_, i, v_ + c, values_row(), sum);
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (i + r < n)
          put_four(w_.o.at(b_, h_, from + i + r) + c, size().e - c,
                   live_ > 0 && sight_.seen(from + i + r) > 0 ? sum[r] : Four<Real>{});
    });
  }

  const Work<T>& w_;
  const Sight& sight_;
  const int64_t b_;
  const int h_;
  int live_ = 0;
  Shared<Real> q_, k_, v_, pq_, keys_, values_, a_, weights_, scores_;
  Shared<int> limit_;
};

// kRows: of a tile, where few tokens of a stream are not the reason for kFew.
template <class T, int kRows>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) causal_kernel(const Work<T> w) {
  const int64_t b = blockIdx.x / w.sizes.heads;
  const auto h = static_cast<int>(blockIdx.x % w.sizes.heads);
  const Sight sight(w.lengths, b);
  if (kRows != kFew && w.states && sight.queries <= kFew && sight.fresh <= kFew)
    Recurrence<T, kFew>(w, b, h, sight)();
  else
    Recurrence<T, kRows>(w, b, h, sight)();
}

// One head of the pack attention over the fresh keys of a batch row.
template <class T, int kRows>
class Pack {
  using Real = RealOf<T>;

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t rows = 2 * s.l4() + (s.tied ? 1 : 2) * kRows;
    return static_cast<uint64_t>(rows * Sizes::row(s.pack_d()) + kRows * Sizes::row(s.l) + 3 * s.l4()) * sizeof(Real);
  }
  __device__ Pack(const Work<T>& work, int64_t b, int head) : w_(work), b_(b), head_(head) {
    SharedParts parts;
    k_ = parts.take<Real>(kRows * row());
    v_ = size().tied ? k_ : parts.take<Real>(kRows * row());
    pq_ = parts.take<Real>(size().l4() * row());
    sums_ = parts.take<Real>(size().l4() * row());
    a_ = parts.take<Real>(kRows * l_row());
    most_ = parts.take<Real>(size().l4());
    total_ = parts.take<Real>(size().l4());
    down_ = parts.take<Real>(size().l4());
  }

  __device__ void operator()(const Sight& sight) {
    const Sizes& s = size();
    const int dp = s.pack_d(), from = head_ * dp;
    begin(sight.past > 0);
    for (int64_t j = 0; j < sight.fresh; j += kRows) {
      const int n = static_cast<int>(sight.fresh - j < kRows ? sight.fresh - j : kRows);
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
    Real* known = w_.known(b_);
    store_rows(sums_, row(), s.l, dp, known + from, s.width());
    for (int r = static_cast<int>(threadIdx.x); r < s.l; r += kThreads) {
      known[s.largest() + static_cast<int64_t>(head_) * s.l + r] = most_[r];
      known[s.totals() + static_cast<int64_t>(head_) * s.l + r] = total_[r];
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
    for (int x = static_cast<int>(threadIdx.x); x < s.l4() * row(); x += kThreads) pq_[x] = 0;
    load_rows(known + from, s.width(), goes_on ? s.l : 0, dp, sums_, row());
    for (int x = static_cast<int>(threadIdx.x); !goes_on && x < s.l4() * row(); x += kThreads) sums_[x] = 0;
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
    for (int r = warp(); r < size().l4(); r += kWarps) {
      const Real before = most_[r];
      Real most = before, sum = 0;
      for (int j = lane(); j < n; j += 32) most = larger(most, static_cast<Real>(a_[j * l_row() + r]));
      for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
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
  const int head_;
  Shared<Real> k_, v_, pq_, sums_, a_, most_, total_, down_;
};

template <class T, int kRows>
static __global__ void __launch_bounds__(kThreads, kBlocks<T>) pack_kernel(const Work<T> w) {
  const int64_t b = blockIdx.x / w.sizes.pack_heads;
  const Sight sight(w.lengths, b);
  if (sight.fresh > 0) Pack<T, kRows>(w, b, static_cast<int>(blockIdx.x % w.sizes.pack_heads))(sight);
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
