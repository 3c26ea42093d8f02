// The gradient of softmax attention on CUDA, of whole sequences.  With G the gradient of o, and lse_i = log sum_j
// exp(s_ij) as the run saved it:
//
//   p_ij = exp(s_ij - lse_i),   t_ij = scale p_ij (G_i . v_j - G_i . o_i)
//   dv_j = sum_i p_ij G_i,   dk_j = sum_i t_ij q_i,   dq_i = sum_j t_ij k_j
//
// Three kernels: G . o of each row; dq by tiles of rows that walk the keys; dk and dv by tiles of keys that walk the
// rows, a row being a query of one of the heads that share a head of keys.  Each makes the scores again.  Every sum is
// one chain of additions in the order of its index, and a pair of a query and a key that it does not see is in none of
// them, were they NaN.  Tiles that no window touches are not walked.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_GRADIENT_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_GRADIENT_HPP
#include <attnkit/kernels/cuda/attend.hpp>

namespace attnkit::cuda::attend {

constexpr int kGradientTile = 32, kWideGradientTile = 8;

template <class Real, class Reach>
struct GradientWork {
  Sizes sizes;
  Rows<const Real> q, k, v, o, given;
  Rows<Real> dq, dk, dv;  // without data where they are skipped
  Lengths lengths;
  const Real* lse;  // [B][H][N]
  Real* given_out;  // G . o, the same
  Real scale;
  int pairs;
  Reach reach = {};
  bool by_four = false;
};

// Tiles of rows and of keys, and what they have to do with each other.
template <class Real, class Reach, int kTile>
class Gradient {
  static constexpr int kPairs = kTile + 4;
  static constexpr bool kNear = Reach::kNear;

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t keys = int64_t{kTile} * (s.row() + wide(s)), sums = int64_t{kTile} * (s.d4() + s.e4());
    return static_cast<uint64_t>(2 * keys + 2 * kTile * kPairs + sums + 2 * kTile) * sizeof(Real) +
           (kNear ? 2 : 1) * kTile * sizeof(int);
  }

  __device__ Gradient(const GradientWork<Real, Reach>& work, int64_t b, int kv, const Sight& sight)
      : w_(work), sight_(sight), b_(b), kv_(kv), group_(work.sizes.group()) {
    SharedParts parts;
    q_ = parts.take<Real>(kTile * size().row());
    g_ = parts.take<Real>(kTile * wide(size()));
    k_ = parts.take<Real>(kTile * size().row());
    v_ = parts.take<Real>(kTile * wide(size()));
    p_ = parts.take<Real>(kTile * kPairs);
    t_ = parts.take<Real>(kTile * kPairs);
    first_ = parts.take<Real>(kTile * size().d4());
    second_ = parts.take<Real>(kTile * size().e4());
    lse_ = parts.take<Real>(kTile);
    out_ = parts.take<Real>(kTile);
    seen_ = parts.take<int>(kTile);
    if constexpr (kNear) begin_ = parts.take<int>(kTile);
  }

  // dq of the rows [first, first + kTile), as many as lie before `last`; zeros past the last that there is.
  __device__ void of_queries(int64_t first, int64_t last) {
    const int rows = count(first, smaller(last, all_rows()));
    load_rows(first, rows);
    clear(first_, size().d4());
    __syncthreads();
    const auto walk = [&](int begin, int end) {
      end_ = end;
      for (int from = begin; from < end; from += kTile) {
        load_keys(from, count(from, end));
        __syncthreads();
        compare<false>(rows);
        __syncthreads();
        const auto sees = [&](int r, int j) { return j >= before(r, from) && j < live(r, from); };
        const auto range = [&](int i) {
          return i < rows ? Range(before(i, from), before(i + 3, from), live(i, from) / 4 * 4, live(i + 3, from))
                          : Range(0, 0, 0, 0);
        };
        add_products(t_, k_, size().row(), size().d4(), first_, range, sees);
        __syncthreads();
      }
    };
    if constexpr (Reach::kListed) {
      if (rows > 0) w_.reach.for_keys(sight_, kv_, first, walk);
    } else {
      const auto least = static_cast<int>(w_.reach.begin(sight_, first / group_));
      walk(least / kTile * kTile, rows > 0 ? static_cast<int>(w_.reach.end(sight_, (first + rows - 1) / group_)) : 0);
    }
    write(first, rows, w_.dq, size().d, first_, size().d4(), smaller(last, w_.lengths.queries * group_),
          [&](int64_t row) { return w_.dq.at(b_, head(row), row / group_); });
  }

  // dk and dv of the keys [from, from + kTile), as many as lie before `last`; zeros past the last that there is.
  __device__ void of_keys(int from, int64_t last) {
    const int keys = count(from, smaller(last, sight_.fresh));
    end_ = from + keys;
    load_keys(from, keys);
    clear(first_, size().d4());
    clear(second_, size().e4());
    const auto take = [&](int64_t first, int rows) {
      load_rows(first, rows);
      __syncthreads();
      compare<true>(rows);
      __syncthreads();
      // Of the rows, which see later and later keys, those that see some of four and those that see them all.
      const auto sees = [&](int j, int r) { return j >= before(r, from) && j < live(r, from); };
      const auto range = [&](int j) {
        int some = 0;
        while (some < rows && live(some, from) <= j) ++some;
        int every = some;
        while (every < rows && live(every, from) < j + 4) ++every;
        int last = rows, end = rows;
        if constexpr (kNear) {
          while (end > some && before(end - 1, from) > j + 3) --end;
          for (last = end; last > some && before(last - 1, from) > j;) --last;
        }
        const int middle = round4(every) < rows ? round4(every) : rows;
        return Range(some, middle, middle + (last - middle) / 4 * 4, end);
      };
      add_products(t_, q_, size().row(), size().d4(), first_, range, sees);
      add_products(p_, g_, wide(size()), size().e4(), second_, range, sees);
      __syncthreads();
    };
    if constexpr (Reach::kListed) {
      const auto walk = [&](int64_t first, int64_t end) {
        for (; first < end; first += kTile) take(first, count(first, end));
      };
      if (keys > 0) w_.reach.for_rows(sight_, kv_, from, walk);
    } else {
      for (int64_t first = w_.reach.first_query(sight_, from) * group_ / kTile * kTile; first < all_rows();
           first += kTile) {
        const int rows = count(first, all_rows());
        if (w_.reach.end(sight_, (first + rows - 1) / group_) <= from) continue;
        if (kNear && w_.reach.begin(sight_, first / group_) >= from + keys) break;
        take(first, rows);
      }
    }
    __syncthreads();
    const auto put = [&](const Rows<Real>& to, int width, const Shared<Real>& sums, int row) {
      write(from, keys, to, width, sums, row, smaller(last, w_.lengths.keys),
            [&](int64_t j) { return to.at(b_, kv_, j); });
    };
    put(w_.dk, size().d, first_, size().d4());
    put(w_.dv, size().e, second_, size().e4());
  }

 private:
  // [begin, end), of which all four see [from, to), whole fours.
  struct Range {
    int begin, from, to, end;
    __device__ Range(int first, int all, int all_end, int last)
        : begin(first), from(round4(all)), to(all_end), end(last) {
      if (from >= to) from = to = end;
    }
  };
  __device__ const Sizes& size() const { return w_.sizes; }
  __host__ __device__ static int wide(const Sizes& s) { return s.e4() + 4; }
  __device__ int64_t all_rows() const { return sight_.queries * group_; }
  __device__ int head(int64_t row) const { return kv_ * group_ + static_cast<int>(row % group_); }
  __device__ static int count(int64_t from, int64_t to) {
    return static_cast<int>(to - from < 0 ? 0 : to - from < kTile ? to - from : kTile);
  }
  __device__ static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
  __device__ static int within(int n) { return n < 0 ? 0 : n < kTile ? n : kTile; }
  __device__ int live(int r, int from) const {
    if constexpr (Reach::kListed) return within(end_ - from);
    return within(seen_[r] - from);
  }
  __device__ int before(int r, int from) const {
    if constexpr (kNear) return within(begin_[r] - from);
    return 0;
  }
  __device__ void clear(const Shared<Real>& sums, int width) {
    for (int x = static_cast<int>(threadIdx.x); x < kTile * width; x += kThreads) sums[x] = 0;
  }

  // Rows past the last are zeros that see what it sees.
  __device__ void load_rows(int64_t first, int rows) {
    const auto fetch = [&](const Rows<const Real>& from, int width, int row, const Shared<Real>& to) {
      for_fours(kTile, width, [&](int r, int c) {
        Four<Real> x{};
        if (r < rows) x = load_four(from.at(b_, head(first + r), (first + r) / group_) + c, width - c, w_.by_four);
        as<Four<Real>>(to + (r * row + c))[0] = x;
      });
    };
    fetch(w_.q, size().d, size().row(), q_);
    fetch(w_.given, size().e, wide(size()), g_);
    const int r = static_cast<int>(threadIdx.x);
    if (r >= kTile) return;
    const int64_t row = first + (r < rows ? r : rows - 1), i = row / group_,
                  at = (b_ * size().heads + head(row)) * w_.lengths.queries + i;
    seen_[r] = rows > 0 ? static_cast<int>(w_.reach.end(sight_, i)) : 0;
    if constexpr (kNear) begin_[r] = rows > 0 ? static_cast<int>(w_.reach.begin(sight_, i)) : 0;
    lse_[r] = rows > 0 ? w_.lse[at] : 0;
    out_[r] = rows > 0 ? w_.given_out[at] : 0;
  }
  __device__ void load_keys(int from, int keys) {
    const auto fetch = [&](const Rows<const Real>& rows, int width, int row, const Shared<Real>& to) {
      for_fours(kTile, width, [&](int j, int c) {
        Four<Real> x{};
        if (j < keys) x = load_four(rows.at(b_, kv_, from + j) + c, width - c, w_.by_four);
        as<Four<Real>>(to + (j * row + c))[0] = x;
      });
    };
    fetch(w_.k, size().d, size().row(), k_);
    fetch(w_.v, size().e, wide(size()), v_);
  }

  // p and t of the tile, by rows or by keys; pairs that do not see each other have any number.
  template <bool kByKeys>
  __device__ void compare(int rows) {
    for (int unit = static_cast<int>(threadIdx.x); unit < kTile / 4 * kTile; unit += kThreads) {
      const int i = unit / kTile * 4, j = unit % kTile;
      if (i >= rows) continue;
      Real score[4] = {}, given[4] = {};
#pragma unroll 2
      for (int f = 0; f < size().d4(); f += 4) {
        const Four<Real> k = four<Real>(k_ + (j * size().row() + f));
#pragma unroll
        for (int r = 0; r < 4; ++r) score[r] = dot(four<Real>(q_ + ((i + r) * size().row() + f)), k, score[r]);
      }
#pragma unroll 2
      for (int c = 0; c < size().e4(); c += 4) {
        const Four<Real> v = four<Real>(v_ + (j * wide(size()) + c));
#pragma unroll
        for (int r = 0; r < 4; ++r) given[r] = dot(four<Real>(g_ + ((i + r) * wide(size()) + c)), v, given[r]);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Real p = exponential(score[r] * w_.scale - lse_[i + r]);
        const int at = kByKeys ? j * kPairs + i + r : (i + r) * kPairs + j;
        p_[at] = p;
        t_[at] = w_.scale * p * (given[r] - out_[i + r]);
      }
    }
  }

  // sums[x][...] += sum over y of weights[x][y] rows[y][...], in the order of y, where x and y see each other.
  template <class RangeOf, class Sees>
  __device__ void add_products(const Shared<Real>& weights, const Shared<Real>& rows, int row, int width,
                               const Shared<Real>& sums, const RangeOf& range_of, const Sees& sees) {
    for_products(width, [&](int x, int c) {
      const Range range = range_of(x);
      Four<Real> acc[4];
      fetch_sums(sums, x, c, width, acc);
      add_some(weights, rows + c, row, x, range.begin, range.from, sees, acc);
      multiply<Real>(weights + (x * kPairs + range.from), kPairs, rows + (range.from * row + c), row,
                     range.to - range.from, acc);
      add_some(weights, rows + c, row, x, range.to, range.end, sees, acc);
      store_sums(sums, x, c, width, acc);
    });
  }
  template <class Visit>
  __device__ void for_products(int width, const Visit& visit) {
    const int fours = width / 4;
    for (int unit = static_cast<int>(threadIdx.x); unit < kTile / 4 * fours; unit += kThreads)
      visit(unit / fours * 4, unit % fours * 4);
  }
  __device__ static void fetch_sums(const Shared<Real>& sums, int x, int c, int width, Four<Real> (&acc)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) acc[r] = four<Real>(sums + ((x + r) * width + c));
  }
  __device__ static void store_sums(const Shared<Real>& sums, int x, int c, int width, const Four<Real> (&acc)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) as<Four<Real>>(sums + ((x + r) * width + c))[0] = acc[r];
  }
  template <class Sees>
  __device__ static void add_some(const Shared<Real>& weights, const Shared<Real>& rows, int row, int x, int begin,
                                  int end, const Sees& sees, Four<Real> (&acc)[4]) {
#pragma unroll 1
    for (int y = begin; y < end; ++y) {
      const Four<Real> z = four<Real>(rows + y * row);
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (sees(x + r, y)) add<Real>(acc[r], weights[(x + r) * kPairs + y], z);
    }
  }

  template <class At>
  __device__ void write(int64_t first, int count, const Rows<Real>& to, int width, const Shared<Real>& sums, int row,
                        int64_t end, const At& at) {
    if (!to.data) return;
    for (int r = warp(); r < kTile && first + r < end; r += kWarps)
      for (int c = lane(); c < width; c += 32) at(first + r)[c] = r < count ? sums[r * row + c] : Real{0};
  }

  const GradientWork<Real, Reach>& w_;
  const Sight& sight_;
  const int64_t b_;
  const int kv_, group_;
  int end_ = 0;  // of the span of keys that is walked
  Shared<Real> q_, g_, k_, v_, p_, t_, first_, second_, lse_, out_;
  Shared<int> seen_, begin_;
};

// G . o, a warp to a row.
template <class Real, class Reach>
static __global__ void __launch_bounds__(kThreads) given_kernel(const GradientWork<Real, Reach> w) {
  const int64_t all = static_cast<int64_t>(w.pairs) * w.sizes.group() * w.lengths.queries;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp();
  if (row >= all) return;
  const int64_t i = row % w.lengths.queries, h = row / w.lengths.queries % w.sizes.heads,
                b = row / w.lengths.queries / w.sizes.heads;
  Real sum = 0;
  if (i < Sight(w.lengths, b).queries) {
    const Real *g = w.given.at(b, h, i), *o = w.o.at(b, h, i);
    for (int c = lane(); c < w.sizes.e; c += 32) sum = fused(g[c], o[c], sum);
  }
  sum = sum_of_warp(sum);
  if (lane() == 0) w.given_out[row] = sum;
}

template <class Real, class Reach, int kTile, bool kOfKeys>
static __global__ void __launch_bounds__(kThreads, kBlocksOf<Real, 2>)
    gradient_kernel(const GradientWork<Real, Reach> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, turn = static_cast<int>(blockIdx.x) / w.pairs;
  const int64_t b = pair / w.sizes.kv_heads;
  const int kv = pair % w.sizes.kv_heads;
  const Sight sight(w.lengths, b);
  Gradient<Real, Reach, kTile> gradient(w, b, kv, sight);
  int64_t first = static_cast<int64_t>(turn) * kTile, last = first + kTile;
  if constexpr (Reach::kListed) {
    first = w.reach.first(turn, static_cast<int>(gridDim.x) / w.pairs, kTile);
    last = w.reach.last(first);
  }
  if constexpr (kOfKeys)
    gradient.of_keys(static_cast<int>(first), last);
  else
    gradient.of_queries(first, last);
}

// Rows of a tile for heads so wide, 0: none fits.
template <class Real, class Reach = Everywhere>
int gradient_tile(const Sizes& s) {
  const auto fits = [](uint64_t bytes) { return bytes <= static_cast<uint64_t>(most_shared()); };
  return fits(Gradient<Real, Reach, kGradientTile>::bytes(s))       ? kGradientTile
         : fits(Gradient<Real, Reach, kWideGradientTile>::bytes(s)) ? kWideGradientTile
                                                                    : 0;
}

// Counts what a run saves and a gradient's scratch.  Returns the keys of a tile.
// Errors    Refusal ATTN_UNSUPPORTED: the heads are too wide.
template <class Reach = Everywhere>
int plan(const Widths& widths, const Request& r, Info& info) {
  const Sizes sizes(widths);
  const int keys = r.is_f64() ? keys_of_tile<double, Reach>(sizes) : keys_of_tile<float, Reach>(sizes);
  const int rows = r.is_f64() ? gradient_tile<double, Reach>(sizes) : gradient_tile<float, Reach>(sizes);
  if (keys == 0 || (r.trains() && rows == 0))
    throw unsupported("heads of ", widths.d, " and ", widths.e, " numbers do not fit, a few rows at a time, into a ",
                      "block's ", most_shared(), " bytes of shared memory: make the heads narrower");
  const int64_t queries = r.batch * widths.heads * r.queries;
  info.train(r, queries, 0, aligned(r.real_bytes(queries)));
  return keys;
}

// Enqueues a gradient whose rows are given; where they lie is looked at here.
template <class Real, class Reach>
void run_backward(const char* name, const attn_exec& exec, GradientWork<Real, Reach> w) {
  w.by_four = is_by_four(w.q, w.sizes.d) && is_by_four(w.k, w.sizes.d) && is_by_four(w.v, w.sizes.e) &&
              is_by_four(w.given, w.sizes.e);
  const int64_t rows = w.lengths.queries * w.sizes.group();  // of a pair
  const auto start = [&](auto* kernel, int64_t blocks, uint64_t bytes) {
    if (blocks > 0) launch(name, kernel, {dim3(static_cast<unsigned>(blocks)), kThreads, bytes}, exec, w);
  };
  start(given_kernel<Real, Reach>, (w.pairs * rows + kWarps - 1) / kWarps, 0);
  const auto with = [&](auto tile) {
    constexpr int kTile = decltype(tile)::value;
    const auto tiles = [&](int64_t count) {
      if constexpr (Reach::kListed) return w.reach.tiles(count, kTile);
      return (count + kTile - 1) / kTile;
    };
    const uint64_t bytes = Gradient<Real, Reach, kTile>::bytes(w.sizes);
    if (w.dq.data) start(gradient_kernel<Real, Reach, kTile, false>, w.pairs * tiles(rows), bytes);
    if (w.dk.data || w.dv.data)
      start(gradient_kernel<Real, Reach, kTile, true>, w.pairs * tiles(w.lengths.keys), bytes);
  };
  if (gradient_tile<Real, Reach>(w.sizes) == kGradientTile)
    with(std::integral_constant<int, kGradientTile>{});
  else
    with(std::integral_constant<int, kWideGradientTile>{});
}

// Enqueues the gradient of a run whose tensors are of Real.
template <class Real, class Reach = Everywhere>
void run_backward(const char* name, const attn_grad& g, const QkvPorts& ports, const Widths& widths, double scale,
                  bool causal, const Reach& reach = {}) {
  const attn_run& r = *g.run;
  const auto given = [&](Port port) { return View<const Real>(r, port); };
  run_backward(name, *r.exec,
               GradientWork<Real, Reach>{Sizes(widths), given(ports.q), given(ports.k), given(ports.v), given(ports.o),
                                         View<const Real>(g, ports.o), View<Real>(g, ports.q), View<Real>(g, ports.k),
                                         View<Real>(g, ports.v), Lengths(r, causal), static_cast<const Real*>(r.saved),
                                         static_cast<Real*>(r.exec->scratch), static_cast<Real>(scale),
                                         static_cast<int>(r.batch * widths.kv_heads), reach});
}

}  // namespace attnkit::cuda::attend
#endif
