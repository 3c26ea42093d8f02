// The linear core on CUDA: o_i = (a_i^T S_i) / g(a_i^T z_i) with S_i = sum b_j v_j^T, z_i = sum b_j over the keys i
// sees.
//
// One block per head of a batch row.  Chunks: S lives in shared memory; kChunk queries and as many keys at a time are
// four small products, A S + (A B^T, hidden pairs dropped) V, then S += B^T V.  A key's features are made once, when it
// is loaded.  Steps: S stays in the state row and passes through registers once for up to kSteps keys and queries.
// A row of a stream takes the path that its own lengths name, whatever its neighbours have, so that padding never
// changes a bit; and no sum depends on keys that its query does not see.  State per head: S[D'][E], then z[D'], f32.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_KERNELS_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_KERNELS_HPP
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/linear/features.hpp>
#include <attnkit/kernels/cuda/linear/follow.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <attnkit/kernels/guard.hpp>

namespace attnkit::cuda::linear {

constexpr int kThreads = 128, kChunk = 32, kSteps = 8;
constexpr int kWarps = kThreads / 32;
using Quad = Four<float>;
using cuda::exponential, cuda::fused, cuda::kAll, cuda::lane, cuda::larger, cuda::quotient, cuda::reciprocal,
    cuda::Rows, cuda::Shared, cuda::sum_of_warp;  // for maps

// Widths of a head, and how its rows lie in shared memory: whole Quads, their ends zero.
struct Sizes {
  int heads, d, e, features;
  bool splits;
  int notes;      // that a row leaves for LEARNED gradients
  int extra = 0;  // numbers of a head's state behind z: scales
  bool follows = false;
  int table = 0;  // floats of a table
  int wider = 0;  // by which a row of x exceeds its features, where they share their place
  bool each = false;
  int units = 0;  // that a row's factors depend on
  __host__ __device__ int f4() const { return round4(features); }
  __host__ __device__ int e4() const { return round4(e); }
  __host__ __device__ int z_at() const { return splits ? f4() : 0; }         // where the features for z begin in a row
  __host__ __device__ int row() const { return f4() + wider + z_at() + 4; }  // 4: neighbours lie in different banks
  __host__ __device__ int64_t head_floats() const { return static_cast<int64_t>(features) * (e + 1) + extra; }
  __host__ __device__ bool by_four() const { return e % 4 == 0 && features % 4 == 0; }
  __host__ __device__ static int scores() { return kChunk + 4; }
  // Numbers that the slices of S add to an output.
  __host__ __device__ int partial() const { return e4() > 4 * kThreads ? e4() : 4 * kThreads; }
  uint64_t chunk_bytes() const {
    const uint64_t floats = static_cast<uint64_t>(f4()) * static_cast<uint64_t>(e4()) + static_cast<uint64_t>(f4()) +
                            static_cast<uint64_t>(2 * kChunk * row() + 2 * kChunk * e4()) +
                            static_cast<uint64_t>((splits ? 2 : 1) * kChunk * scores() + 2 * kChunk) + follow_floats();
    const uint64_t steps = steps_bytes<float>(kSteps);
    return floats * sizeof(float) > steps ? floats * sizeof(float) : steps;
  }
  uint64_t follow_floats() const {
    return follows ? static_cast<uint64_t>((each ? 2 + 2 * kWarps : 2) * f4() + 2 * kChunk + round4(table)) : 0;
  }
  template <class Real>
  uint64_t steps_bytes(int steps) const {
    return static_cast<uint64_t>(steps * ((each ? 3 : 2) * row() + e4() + partial()) + round4(steps * kWarps) +
                                 (follows ? 2 : 0) * round4(steps)) *
           sizeof(Real);
  }
};

// The arguments of a run, in device memory; see attn_run.  Its tensors are of T, its sums f32, those of f64 f64.
template <class T>
struct Call {
  using Real = RealOf<T>;
  Rows<const T> q, k, v;
  Rows<T> o;
  Lengths lengths;
  States states;
  Real* scratch;  // S and z of every block, where they fit neither a state nor shared memory
  float* sums;    // S and z at the ends of segments of keys, [B][H][1 + segments]; NULL: rows are not split
  Real* saved;    // [B][H][N], where the sums of weights go; NULL: nobody wants them
  int guard;
  Real eps;
  bool by_eight;  // are the rows whole pieces of 16 bytes?
};

// A row of T, read in f32 or f64.
template <class T>
struct Wide {
  const T* data;
  __device__ RealOf<T> operator[](int f) const { return widened(data[f]); }
};

template <class M, class T>
struct Work {
  using Map = M;
  using Type = T;
  using Real = RealOf<T>;
  Map map;
  Sizes sizes;
  Call<T> call;
};

// Of a row: the head and its position in its sequence, from 0.
struct Place {
  int64_t b, h, position;
};
// Places of a row's features: for S and for z, the same unless the map splits.
template <class Real>
struct Row {
  Shared<Real> s, z;
};

// The denominator of an output, for a sum of weights x.
template <class Real>
__device__ Real guarded(Real x, int guard, Real eps) {
  if (guard == Guard::kAdd) x += eps;
  if (guard == Guard::kClamp && x < eps) x = eps;  // NaN stays NaN
  return x;
}

// The work of this block.
struct Head : Sight {
  int64_t b, h;
  int64_t most;  // fresh keys that a row may have
  __device__ Head(const Lengths& l, int heads)
      : Sight(l, blockIdx.x / heads), b(blockIdx.x / heads), h(blockIdx.x % heads), most(l.keys) {}
  // Of the fresh keys.
  __device__ int64_t needs(int64_t i) const {
    const int64_t n = seen(i) - past;
    return n > 0 ? n : 0;
  }
};

__device__ inline float* state_of(const States& states, const Sizes& s, const Head& head) {
  return states.row(head.b) + head.h * s.head_floats();
}

// at: a Head, or a Place.
template <class T, class At>
__device__ void save(const Call<T>& c, const Sizes& s, const At& at, int64_t i, RealOf<T> sum) {
  if (c.saved) c.saved[(at.b * s.heads + at.h) * c.lengths.queries + i] = sum;
}

// The first row of a warp, of rows that warp `from` begins.
__device__ inline int first_row(int from) { return (warp() + kWarps - from) % kWarps; }

// A map whose feature f + n D of a row x is feature(x[f]), times the n-th factor of the row where it has several, so
// that kernels can make it of numbers in registers:
//   static constexpr int kFactors = 2;
//   int d;
//   template <bool kQuery> __device__ Real feature(Real x) const;
//   template <bool kQuery> __device__ void factors(const Place&, Real (&by)[kFactors]) const;   where kFactors > 1
//   template <bool kQuery> __device__ Real back(Real x, Real given) const;   of x, from the gradient of its feature;
//                                                                            without it gradients are made elsewhere
// Factors may depend on the row's numbers, by the sum of what inner units give, each of its own sum of features:
//   template <bool kQuery> __device__ Real weight(int64_t h, int unit, int f) const;
//   template <bool kQuery> __device__ Real unit(int64_t h, int unit, Real sum) const;
//   template <bool kQuery> __device__ void factors(const Place&, Real sum, Real (&by)[kFactors]) const;
//   int units() const;                                                       of the mechanism
// One that splits has one factor: S takes its features in pairs (f, f + 1), each turned by speed(f) quarter turns for
// each position, z takes them as they are.
//   __device__ double speed(int f) const;
template <class Map>
concept Elementwise = requires {
  Map::kFactors;
};
template <class Map>
concept ElementwiseBack = Elementwise<Map> && requires(const Map& map) {
  map.template back<true>(0.0f, 0.0f);
};
// A map's features of row x: one that is no more than the above need not write them itself.
template <bool kQuery, class Map, class X, class Real>
__device__ void write_features(const Map& map, const X& x, const Place& at, const Row<Real>& row) {
  if constexpr (requires { map.template features<kQuery>(x, at, row); }) {
    map.template features<kQuery>(x, at, row);
  } else {
    static_assert(!Map::kSplits);
    Real by[Map::kFactors];
    if constexpr (Map::kFactors > 1) map.template factors<kQuery>(at, by);
    for (int f = lane(); f < map.d; f += 32) {
      const Real y = map.template feature<kQuery>(x[f]);
#pragma unroll
      for (int n = 0; n < Map::kFactors; ++n) row.s[f + n * map.d] = Map::kFactors > 1 ? y * by[n] : y;
    }
  }
}
// The gradient of row x from that of its features, given, in whose place it is written.
template <bool kQuery, class Map, class X, class Real>
__device__ void write_gradient(const Map& map, const X& x, const Place& at, const Row<Real>& row,
                               const Row<Real>& given) {
  if constexpr (requires { map.template gradient<kQuery>(x, at, row, given); }) {
    map.template gradient<kQuery>(x, at, row, given);
  } else {
    Real by[Map::kFactors];
    if constexpr (Map::kFactors > 1) map.template factors<kQuery>(at, by);
    for (int f = lane(); f < map.d; f += 32) {
      Real y = given.s[f];
      if constexpr (Map::kFactors > 1) {
        y *= by[0];
#pragma unroll
        for (int n = 1; n < Map::kFactors; ++n) y += by[n] * given.s[f + n * map.d];
      }
      given.s[f] = map.template back<kQuery>(x[f], y);
    }
  }
}

// A warp writes the features of `count` rows and zeros where `room` has more; rows behind `warp` belong to other warps.
// finish(r, x, row): what becomes of the logits of a map that follows.
struct Nothing {
  template <class... Arguments>
  __device__ void operator()(const Arguments&...) const {}
};
template <class Map, bool kQuery, class T, class Finish = Nothing>
__device__ void load_features(const Map& map, const Sizes& s, const Rows<const T>& from, const Head& head,
                              int64_t first, int count, int room, Shared<RealOf<T>> to, const Finish& finish = {},
                              int from_warp = 0) {
  const int64_t before = (kQuery ? head.q_pos : head.past) + first;
  for (int r = first_row(from_warp); r < room; r += kWarps) {
    const Row<RealOf<T>> row{to + r * s.row(), to + (r * s.row() + s.z_at())};
    if (r < count) {
      const Wide<T> x{from.at(head.b, head.h, first + r)};
      const Place place{head.b, head.h, before + r};
      if constexpr (kFollows<Map>)
        finish(r, x, row);
      else
        write_features<kQuery>(map, x, place, row);
    }
    for (int f = (r < count ? s.features : 0) + lane(); f < s.f4(); f += 32) {
      row.s[f] = 0;
      if constexpr (Map::kSplits) row.z[f] = 0;
    }
  }
}

template <class T>
__device__ void load_values(const Sizes& s, const Rows<const T>& from, const Head& head, int64_t first, int count,
                            int room, Shared<RealOf<T>> to, int from_warp = 0) {
  for (int r = first_row(from_warp); r < room; r += kWarps) {
    const Wide<T> x{from.at(head.b, head.h, first + r)};
    for (int c = lane(); c < s.e4(); c += 32) to[r * s.e4() + c] = r < count && c < s.e ? x[c] : RealOf<T>{0};
  }
}

template <class T>
__device__ void clear_outputs(const Call<T>& c, const Sizes& s, const Head& head, int64_t from, int64_t to) {
  for (int64_t i = from + warp(); i < to; i += kWarps)
    for (int e = lane(); e < s.e; e += 32) c.o.at(head.b, head.h, i)[e] = narrowed<T>(0);
}

// Four columns of a row of S, of which n exist.
template <class Real>
__device__ Four<Real> load_columns(const Real* p, int n, bool by_four) {
  if (by_four) return *as<const Four<Real>>(p);
  return Four<Real>{p[0], n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0};
}
template <class Real>
__device__ void store_columns(Real* p, int n, bool by_four, const Four<Real>& x) {
  if (by_four) {
    *as<Four<Real>>(p) = x;
    return;
  }
  p[0] = x.x;
  if (n > 1) p[1] = x.y;
  if (n > 2) p[2] = x.z;
  if (n > 3) p[3] = x.w;
}

// Up to kMost keys from `done` on, then up to kMost queries from `i` on, against S and z in global memory.  Threads
// share the columns of S by fours, and its rows by slices.  Each has asked for kAhead of its rows of S before the
// features are known, so that a single token waits for memory once; keys, queries and values begin with other warps.
template <int kMost, class Work>
class Steps {
  using Map = typename Work::Map;
  using T = typename Work::Type;
  using Real = typename Work::Real;
  using Quad = Four<Real>;

 public:
  __device__ Steps(const Work& work, const Head& head, Real* sums) : w_(work), head_(head), sums_(sums) {
    SharedParts parts;
    keys_ = parts.take<Real>(kMost * size().row());
    queries_ = parts.take<Real>(kMost * size().row());
    values_ = parts.take<Real>(kMost * size().e4());
    by_warp_ = parts.take<Real>(kMost * kWarps);
    partial_ = parts.take<Real>(kMost * size().partial());
    const int fours = size().e4() / 4;
    side_ = fours < kThreads ? fours : kThreads;
    slices_ = kThreads / side_ < size().features ? kThreads / side_ : size().features;
    slice_ = static_cast<int>(threadIdx.x) / side_;
    if (kMost == 1) ask();
    if constexpr (kFollows<Map>) {
      scale_.over = parts.take<int>(kMost);
      if constexpr (kEach<Map>)
        scale_.down = parts.take<Real>(kMost * size().row());
      else if (!w_.map.follows)
        scale_.named = named_scale(
            w_.map, head.fresh, kWarps, [&](int64_t j) { return key(j); }, by_warp_);
    }
  }

  // Of a map that follows, fewer of both where a key does not suit the scale of those before it.
  __device__ void operator()(int64_t i, std::conditional_t<kFollows<Map>, int&, int> queries, int64_t done,
                             std::conditional_t<kFollows<Map>, int&, int> keys) {
    if (!asked_) ask();
    if constexpr (kFollows<Map>) {
      if constexpr (kEach<Map>)
        load_each(done, keys);
      else if (keys > 0 && queries > 0 && head_.needs(i) <= done)
        keys = 0;  // they may raise the scale, and the first query sees none of them
      else if (keys > 0)
        keys = load_following(done, keys);
      while (queries > 0 && head_.needs(i + queries - 1) - done > keys) --queries;
      load_features<Map, true>(
          w_.map, size(), w_.call.q, head_, i, queries, queries, queries_,
          [&](int, const auto& x, const Row<Real>& row) {
            w_.map.template logits<true>(x, row, w_.map.in_memory());
            w_.map.query(x, row, scales());
          },
          1);
    } else {
      load_features<Map, false>(w_.map, size(), w_.call.k, head_, done, keys, keys, keys_);
      load_features<Map, true>(w_.map, size(), w_.call.q, head_, i, queries, queries, queries_, {}, 1);
    }
    asked_ = false;  // of the next call
    load_values(size(), w_.call.v, head_, done, keys, keys, values_, 2);
#pragma unroll
    for (int t = 0; t < kMost; ++t) needs_[t] = t < queries ? static_cast<int>(head_.needs(i + t) - done) : 0;
    __syncthreads();
    denominators(queries, keys);
    for (int q = first_four(); q < size().e4() / 4 && slice_ < slices_; q += side_) {
      if (q != first_four()) ask_rows(q);
      pass(q, queries, keys);
    }
    __syncthreads();
    write(i, queries);
    __syncthreads();  // the next call writes over the rows
  }

 private:
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ Real* z() const { return sums_ + static_cast<int64_t>(size().features) * size().e; }
  __device__ Wide<T> key(int64_t j) const { return {w_.call.k.at(head_.b, head_.h, j)}; }
  __device__ int first_four() const { return static_cast<int>(threadIdx.x) % side_; }
  __device__ Quad load_row(int f, int q) const {
    return load_columns(sums_ + static_cast<int64_t>(f) * size().e + q * 4, size().e - q * 4, size().by_four());
  }
  __device__ void ask_rows(int q) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n)
      if (const int f = slice_ + n * slices_; f < size().features) ahead_[n] = load_row(f, q);
  }
  __device__ void ask() {
    if (slice_ < slices_ && first_four() < size().e4() / 4) ask_rows(first_four());
    if (static_cast<int>(threadIdx.x) < size().features) {
      z_ahead_ = z()[threadIdx.x];
      if constexpr (kEach<Map>) scale_.ahead = z()[size().features + threadIdx.x];
    }
    asked_ = true;
  }
  __device__ auto scales() const {
    return [this, c = z() + size().features](int f) { return w_.map.follows ? c[f] : scale_.named; };
  }

  // As many of the next keys as suit one scale, at least one.
  __device__ int load_following(int64_t done, int keys) {
    Real* c = z() + size().features;
    for (int f = static_cast<int>(threadIdx.x); w_.map.follows && f < size().features; f += kThreads)
      if (z()[f] == 0) c[f] = kLeast<Real>;
    __syncthreads();
    for (;;) {
      load_features<Map, false>(w_.map, size(), w_.call.k, head_, done, keys, keys, keys_,
                                [&](int r, const auto& x, const Row<Real>& row) {
                                  w_.map.template logits<false>(x, row, w_.map.in_memory());
                                  const bool over = w_.map.follows && outgrows<T>(row.s, size().features, scales());
                                  if (lane() == 0) scale_.over[r] = over;
                                  if (!over || r > 0) w_.map.key(row, scales());
                                });
      __syncthreads();
      const int fit = rows_before(scale_.over, keys);
      if (fit > 0) return fit;
      for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
        const Real down = risen<T>(static_cast<Real>(keys_[f]), c[f]);
        if (down == 1) continue;
        z()[f] *= down;
        for (int e = 0; e < size().e; ++e) sums_[static_cast<int64_t>(f) * size().e + e] *= down;
      }
      __syncthreads();
      ask();
    }
  }

  // c rises with every key that exceeds it; by how much S and z shrink goes along with the key.
  __device__ void load_each(int64_t done, int keys) {
    load_features<Map, false>(
        w_.map, size(), w_.call.k, head_, done, keys, keys, keys_,
        [&](int, const auto& x, const Row<Real>& row) { w_.map.template logits<false>(x, row, w_.map.in_memory()); });
    __syncthreads();
    Real* c = z() + size().features;
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      const Real sum = f < kThreads ? z_ahead_ : z()[f];
      Real most = sum == 0 ? kLeast<Real> : f < kThreads ? scale_.ahead : c[f];
      for (int j = 0; j < keys; ++j) {
        const int at = j * size().row() + f;
        const Real logit = keys_[at], top = logit > most ? logit : most;  // a NaN is never the largest
        scale_.down[at] = exponential(most - top);
        keys_[at] = exponential(logit - top);
        most = top;
      }
      if (keys > 0) c[f] = most;
    }
  }
  // Of key j: what sum became of the feature's sums.
  __device__ Real shrunk(int j, int f, Real sum) const {
    if constexpr (kEach<Map>) return sum * scale_.down[j * size().row() + f];
    return sum;
  }

  __device__ void denominators(int queries, int keys) {
    Real* z = this->z();
    Real sum[kMost] = {};
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      Real now = f < kThreads ? z_ahead_ : z[f];
      int j = 0;
#pragma unroll
      for (int t = 0; t < kMost; ++t) {
        if (t >= queries) continue;
#pragma unroll 1
        for (; j < needs_[t]; ++j) now = shrunk(j, f, now) + keys_[j * size().row() + size().z_at() + f];
        if constexpr (kEach<Map>) {
          const Real weight = queries_[t * size().row() + f];
          queries_[t * size().row() + f] = quotient(weight, now);
          sum[t] += weight;
        } else {
          sum[t] = fused(queries_[t * size().row() + size().z_at() + f], now, sum[t]);
        }
      }
      for (; j < keys; ++j) now = shrunk(j, f, now) + keys_[j * size().row() + size().z_at() + f];
      if (keys > 0) z[f] = now;
    }
#pragma unroll
    for (int t = 0; t < kMost; ++t) {
      if (t >= queries) continue;
      const Real of_warp = sum_of_warp(sum[t]);
      if (lane() == 0) by_warp_[t * kWarps + warp()] = of_warp;
    }
    if constexpr (kEach<Map>) __syncthreads();  // all have divided the queries
  }

  // The q-th four columns of every slices_-th row of S; what queries read there goes to the slice's part.
  __device__ void pass(int q, int queries, int keys) {
    const int e = q * 4;
    Quad o[kMost] = {}, one{};
    if (kMost == 1 && keys > 0) one = four<Real>(values_ + e);
#pragma unroll 1
    for (int first = slice_; first < size().features; first += kAhead * slices_)
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int f = first + n * slices_, after = f + kAhead * slices_;
        if (f >= size().features) break;
        Quad s = ahead_[n];
        if (after < size().features) ahead_[n] = load_row(after, q);
        int j = 0;
        const auto append_to = [&](int limit) {
#pragma unroll 1
          for (; j < limit; ++j) {
            if constexpr (kEach<Map>) s = {shrunk(j, f, s.x), shrunk(j, f, s.y), shrunk(j, f, s.z), shrunk(j, f, s.w)};
            add<Real>(s, keys_[j * size().row() + f], kMost == 1 ? one : four<Real>(values_ + (j * size().e4() + e)));
          }
        };
#pragma unroll
        for (int t = 0; t < kMost; ++t) {
          if (t >= queries) continue;
          append_to(needs_[t]);
          add<Real>(o[t], queries_[t * size().row() + f], s);
        }
        append_to(keys);
        if (keys > 0) store_columns(sums_ + static_cast<int64_t>(f) * size().e + e, size().e - e, size().by_four(), s);
      }
#pragma unroll
    for (int t = 0; t < kMost; ++t)
      if (t < queries) as<Quad>(partial_)[(t * slices_ + slice_) * (size().e4() / 4) + q] = o[t];
  }

  // Adds the slices in their order.
  __device__ void write(int64_t i, int queries) const {
#pragma unroll 1
    for (int x = static_cast<int>(threadIdx.x); x < queries * size().e; x += kThreads) {
      const int t = x / size().e, e = x % size().e;
      Real sum = 0, all = 0;
      for (int slice = 0; slice < slices_; ++slice) sum += partial_[(t * slices_ + slice) * size().e4() + e];
      for (int w = 0; w < kWarps; ++w) all += by_warp_[t * kWarps + w];
      const Real by = reciprocal(guarded(all, w_.call.guard, w_.call.eps));
      w_.call.o.at(head_.b, head_.h, i + t)[e] = narrowed<T>(head_.seen(i + t) > 0 ? sum * by : Real{0});
      if (e == 0) save(w_.call, size(), head_, i + t, all);
    }
  }

  const Work& w_;
  const Head& head_;
  Real* sums_;
  Shared<Real> keys_, queries_, values_, by_warp_, partial_;
  static constexpr int kAhead = kMost > 1 ? 1 : kFollows<Map> && !kEach<Map> ? 6 : 8;  // as many as registers hold
  int side_, slices_, slice_;  // threads of a row of S, how many rows they have at a time, and which of these is ours
  Quad ahead_[kAhead] = {};
  Real z_ahead_ = 0;
  bool asked_ = false;
  struct Scale {
    Shared<int> over;
    Shared<Real> down;  // [key][feature]
    Real named = 0, ahead = 0;
  };
  struct None {};
  std::conditional_t<kFollows<Map>, Scale, None> scale_;  // no register for who has none
  int needs_[kMost];
};

// All that a row has to do, kMost keys and queries at a time.
template <int kMost, class Work>
__device__ void take_steps(const Work& work, const Head& head, typename Work::Real* sums) {
  Steps<kMost, Work> step(work, head, sums);
  const int64_t all = work.call.states ? head.fresh : 0;
  int64_t i = 0, done = 0;
  for (;;) {
    int queries = 0;
    int64_t keys = 0;
    while (i + queries < head.queries && queries < kMost && head.needs(i + queries) - done <= kMost)
      keys = head.needs(i + queries++) - done;
    if (queries == 0 || (i + queries == head.queries && all > done)) {
      const int64_t to = i + queries < head.queries ? head.needs(i + queries) : all > done ? all : done;
      keys = to - done;
    }
    if (keys > kMost) keys = kMost;
    if (queries == 0 && keys == 0) break;
    if constexpr (kFollows<typename Work::Map>) {
      int taken = static_cast<int>(keys);
      step(i, queries, done, taken);
      keys = taken;
    } else {
      step(i, queries, done, static_cast<int>(keys));
    }
    i += queries;
    done += keys;
  }
  clear_outputs(work.call, work.sizes, head, head.queries, work.call.lengths.queries);
}

template <class Work, int kMost>
static __global__ void __launch_bounds__(kThreads, sizeof(typename Work::Real) == 8 ? 1 : 4)
    steps_kernel(const Work work) {
  const int64_t floats = work.sizes.head_floats();
  const int64_t b = blockIdx.x / work.sizes.heads, h = blockIdx.x % work.sizes.heads;
  typename Work::Real* sums = work.call.scratch + blockIdx.x * floats;
  if (work.call.states) {  // before the lengths: S is asked for without them
    if constexpr (sizeof(*sums) == sizeof(float)) sums = work.call.states.row(b) + h * floats;
  } else {
    for (int64_t f = threadIdx.x; f < floats; f += kThreads) sums[f] = 0;
    __syncthreads();
  }
  const Head head(work.call.lengths, work.sizes.heads);
  take_steps<kMost>(work, head, sums);
}

// Shared memory of chunks, however their products are made: S and z, and the outputs of kChunk queries.
template <class Work>
class Tiles {
  using Map = typename Work::Map;
  using T = typename Work::Type;

 public:
  // Its features times columns, zeros where S has no more.
  __device__ void load_state(const float* state, int features, int columns) {
    for (int f = warp(); f < features; f += kWarps)
      for (int e = lane(); e < columns; e += 32)
        s_[f * s_row_ + e] = state && f < size().features && e < size().e ? state[f * size().e + e] : 0.0f;
    for (int f = static_cast<int>(threadIdx.x); f < features; f += kThreads)
      z_[f] = state && f < size().features ? state[size().features * size().e + f] : 0.0f;
    if constexpr (kFollows<Map>) {
      w_.map.load_table(table_);
      if constexpr (!kEach<Map>)
        if (!w_.map.follows)
          named_ = named_scale(
              w_.map, head_.fresh, kWarps, [&](int64_t j) { return key(j); }, den_);
      for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
        const bool begun = state && state[size().features * size().e + f] != 0;
        c_[f] = !w_.map.follows ? named_ : begun ? state[size().features * (size().e + 1) + f] : kLeast<float>;
        if constexpr (kEach<Map>)
          for (int w = 0; w < kWarps; ++w) most_[w * size().f4() + f] = c_[f];
      }
    }
  }
  __device__ void store_state(float* state) const {
    for (int f = warp(); f < size().features; f += kWarps)
      for (int e = lane(); e < size().e; e += 32) state[f * size().e + e] = s_[f * s_row_ + e];
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads)
      state[size().features * size().e + f] = z_[f];
    if constexpr (kFollows<Map>)
      for (int f = static_cast<int>(threadIdx.x); f < size().extra; f += kThreads)
        state[size().features * (size().e + 1) + f] = c_[f];
  }
  __device__ void write(int64_t from, int n) {
    for (int r = warp(); r < n; r += kWarps) {
      const bool sees = head_.seen(from + r) > 0;
      const float den = den_[r], by = reciprocal(guarded(den, w_.call.guard, w_.call.eps));
      if (lane() == 0) save(w_.call, size(), head_, from + r, den);
      T* to = w_.call.o.at(head_.b, head_.h, from + r);
      for (int e = lane(); e < size().e; e += 32) to[e] = narrowed<T>(sees ? o_[r * o_row_ + e] * by : 0.0f);
    }
  }

  // Of n queries the keys that they see of the tile that begins with key `first`.
  __device__ void limit(int64_t from, int n, int64_t first) {
    const int t = static_cast<int>(threadIdx.x);
    if (t >= kChunk) return;  // a row beyond the last has its limit, so that limits rise
    const int64_t sees = head_.needs(from + (t < n ? t : n - 1)) - first;
    limit_[t] = static_cast<int>(sees < 0 ? 0 : sees < kChunk ? sees : kChunk);
  }
  // Of the n keys that were loaded those whose features suit the scale.
  __device__ int fitting(int n) const { return rows_before(over_, n); }
  // c comes to suit key j, and S and z to c.
  __device__ void raise(int64_t j, const Shared<float>& room) {
    if (warp() == 0) w_.map.template logits<false>(key(j), Row<float>{room, room}, table());
    __syncthreads();
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      float c = c_[f];
      const float down = risen<T>(static_cast<float>(room[f]), c);
      c_[f] = c;
      z_[f] *= down;
      down_[f] = down;
    }
    shrink();
  }
  // c comes to be the largest logit, as the state has it.
  __device__ void settle() {
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      float most = kLeast<float>;
      for (int w = 0; w < kWarps; ++w) most = larger(most, most_[w * size().f4() + f]);
      const float down = exponential(c_[f] - most);
      c_[f] = most;
      z_[f] *= down;
      down_[f] = down;
    }
    shrink();
  }

 protected:
  __device__ Tiles(const Work& work, const Head& head, int s_row, int o_row)
      : w_(work), head_(head), s_row_(s_row), o_row_(o_row) {}
  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ Wide<T> key(int64_t j) const { return {w_.call.k.at(head_.b, head_.h, j)}; }
  __device__ auto table() const { return w_.map.in_table(table_); }
  __device__ auto scales() const {
    return [this](int f) { return static_cast<float>(c_[f]); };
  }
  // S comes to suit the scale as z does.
  __device__ void shrink() {
    __syncthreads();
    for (int f = warp(); f < size().features; f += kWarps)
      if (const float down = down_[f]; down != 1)
        for (int e = lane(); e < size().e; e += 32) s_[f * s_row_ + e] *= down;
    __syncthreads();
  }
  __device__ void take_follow(SharedParts& parts) {
    c_ = parts.take<float>(size().f4());
    down_ = parts.take<float>(size().f4());
    over_ = parts.take<int>(kChunk);
    table_ = parts.take<float>(size().table);
    if constexpr (kEach<Map>) {
      most_ = parts.take<float>(kWarps * size().f4());
      seen_ = parts.take<float>(kWarps * size().f4());
    }
  }
  // Features of row r in place of nothing; of a key, whether it suits the scale.  key: features of those of the tile.
  template <bool kQuery, class X, class Key>
  __device__ void follow(int r, const X& x, const Row<float>& row, const Key& key) const {
    w_.map.template logits<kQuery>(x, row, table());
    if constexpr (kQuery && kEach<Map>) {
      w_.map.query(x, row, scales());
      divide(r, row, key);
    } else if constexpr (kQuery) {
      w_.map.query(x, row, scales());
      const bool lifts = sizeof(T) == 2 && w_.map.cancels;
      for (int f = lane(); lifts && f < size().features; f += 32) row.s[f] *= kLift;
    } else {
      if constexpr (kEach<Map>)
        for (int f = lane(); f < size().features; f += 32)
          most_[warp() * size().f4() + f] = larger(most_[warp() * size().f4() + f], row.s[f]);
      const bool over = w_.map.follows && outgrows<T>(row.s, size().features, scales());
      if (lane() == 0) over_[r] = over;
      w_.map.key(row, scales());
    }
  }
  // Divides a query's features by the sums of those of the keys that it sees; the rows of a warp come in their order.
  template <class Key>
  __device__ void divide(int r, const Row<float>& row, const Key& key) const {
    const int before = r < kWarps ? 0 : limit_[r - kWarps], now = limit_[r];
    float largest = 0;
    for (int f = lane(); f < size().features; f += 32) {
      const int at = warp() * size().f4() + f;
      float sum = r < kWarps ? z_[f] : seen_[at];
      for (int j = before; j < now; ++j) sum += key(j, f);
      seen_[at] = sum;
      row.s[f] = quotient(row.s[f], sum);
      largest = larger(largest, row.s[f]);
    }
    if constexpr (sizeof(T) == 2) {  // sums may be large, and f16 has few bits below 2^-14
      for (int bits = 16; bits > 0; bits /= 2) largest = larger(largest, __shfl_xor_sync(kAll, largest, bits));
      for (int f = lane(); f < size().features; f += 32) row.s[f] *= kLift / largest;
    }
  }

  const Work& w_;
  const Head& head_;
  const int s_row_, o_row_;
  Shared<float> s_, z_, o_, den_, c_, down_, table_;
  Shared<float> most_, seen_;  // by warp and feature: the largest logit of a key, and z as the warp's query sees it
  Shared<int> limit_, over_;
  float named_ = 0;
};

// Products in f32.
template <class Work>
class PlainTiles : public Tiles<Work> {
  using Map = typename Work::Map;
  using Base = Tiles<Work>;
  using Base::den_, Base::head_, Base::limit_, Base::o_, Base::s_, Base::w_, Base::z_, Base::size;

 public:
  __device__ PlainTiles(const Work& work, const Head& head) : Base(work, head, work.sizes.e4(), work.sizes.e4()) {
    SharedParts parts;
    s_ = parts.take<float>(size().f4() * size().e4());
    z_ = parts.take<float>(size().f4());
    a_ = parts.take<float>(kChunk * size().row());
    b_ = parts.take<float>(kChunk * size().row());
    v_ = parts.take<float>(kChunk * size().e4());
    o_ = parts.take<float>(kChunk * size().e4());
    p_ = parts.take<float>(kChunk * Sizes::scores());
    p_z_ = Map::kSplits ? parts.take<float>(kChunk * Sizes::scores()) : p_;
    den_ = parts.take<float>(kChunk);
    limit_ = parts.take<int>(kChunk);
    if constexpr (kFollows<Map>) Base::take_follow(parts);
  }

  __device__ void load_state(const float* state) { Base::load_state(state, size().f4(), size().e4()); }
  __device__ void load_queries(int64_t first, int n) {
    load_features<Map, true>(w_.map, size(), w_.call.q, head_, first, n, kChunk, a_,
                             [this](int r, const auto& x, const auto& row) { follow<true>(r, x, row); });
  }
  __device__ void raise(int64_t j) { Base::raise(j, b_); }
  __device__ void load_keys(int64_t first, int n) {
    load_features<Map, false>(w_.map, size(), w_.call.k, head_, first, n, kChunk, b_,
                              [this](int r, const auto& x, const auto& row) { follow<false>(r, x, row); });
    load_values(size(), w_.call.v, head_, first, n, kChunk, v_);
  }

  // S += B^T V, z += the sum of B; both kept as they are by rows of zeros.
  __device__ void sum(int n) {
    const int fours = size().e4() / 4;
    for (int tile = static_cast<int>(threadIdx.x); tile < size().f4() / 4 * fours; tile += kThreads) {
      const int f = tile / fours * 4, e = tile % fours * 4;
      Quad acc[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[r] = four<float>(s_ + ((f + r) * size().e4() + e));
      for (int j = 0; j < n; ++j) {
        const Quad b = four<float>(b_ + (j * size().row() + f)), v = four<float>(v_ + (j * size().e4() + e));
        add<float>(acc[0], b.x, v);
        add<float>(acc[1], b.y, v);
        add<float>(acc[2], b.z, v);
        add<float>(acc[3], b.w, v);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Quad>(s_ + ((f + r) * size().e4() + e))[0] = acc[r];
    }
    for (int f = static_cast<int>(threadIdx.x); f < size().features; f += kThreads) {
      float z = z_[f];
      for (int j = 0; j < n; ++j) z += b_[j * size().row() + size().z_at() + f];
      z_[f] = z;
    }
  }

  // O = A S and the denominators' share of z.
  __device__ void read_state() {
    const int fours = size().e4() / 4;
    for (int tile = static_cast<int>(threadIdx.x); tile < kChunk / 4 * fours; tile += kThreads) {
      const int i = tile / fours * 4, e = tile % fours * 4;
      Quad acc[4] = {};
      multiply<float>(a_ + i * size().row(), size().row(), s_ + e, size().e4(), size().f4(), acc);
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Quad>(o_ + ((i + r) * size().e4() + e))[0] = acc[r];
    }
    for (int i = warp(); i < kChunk; i += kWarps) {
      float sum = 0;
      for (int f = lane(); f < size().features; f += 32)
        sum = fmaf(a_[i * size().row() + size().z_at() + f], z_[f], sum);
      sum = sum_of_warp(sum);
      if (lane() == 0) den_[i] = sum;
    }
  }

  // O += P V with P = A B^T where query i sees key j of the tile, and the denominators' share of it.  Hidden keys take
  // no part in any sum: their values may be NaN.
  __device__ void weigh(int64_t from, int n, int64_t first) {
    Base::limit(from, n, first);
    __syncthreads();
    scores(p_, 0);
    if constexpr (Map::kSplits) scores(p_z_, size().z_at());
    __syncthreads();
    for (int i = warp(); i < kChunk; i += kWarps) {
      const float sum = sum_of_warp(lane() < limit_[i] ? static_cast<float>(p_z_[i * Sizes::scores() + lane()]) : 0.0f);
      if (lane() == 0) den_[i] += sum;
    }
    const int fours = size().e4() / 4;
    for (int tile = static_cast<int>(threadIdx.x); tile < kChunk / 4 * fours; tile += kThreads) {
      const int i = tile / fours * 4, e = tile % fours * 4;
      const int every = limit_[i] / 4 * 4, some = limit_[i + 3];
      Quad acc[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) acc[r] = four<float>(o_ + ((i + r) * size().e4() + e));
      multiply<float>(p_ + i * Sizes::scores(), Sizes::scores(), v_ + e, size().e4(), every, acc);
#pragma unroll 1
      for (int j = every; j < some; ++j) {
        const Quad v = four<float>(v_ + (j * size().e4() + e));
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (j < limit_[i + r]) add<float>(acc[r], p_[(i + r) * Sizes::scores() + j], v);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Quad>(o_ + ((i + r) * size().e4() + e))[0] = acc[r];
    }
  }

 private:
  template <bool kQuery, class X>
  __device__ void follow(int r, const X& x, const Row<float>& row) const {
    Base::template follow<kQuery>(r, x, row,
                                  [this](int j, int f) { return static_cast<float>(b_[j * size().row() + f]); });
  }
  // P = A B^T by tiles of four queries and two keys; tiles that nobody sees are left out.
  __device__ void scores(Shared<float> p, int at) {
    static_assert(kChunk / 4 * (kChunk / 2) == kThreads);
    const int i = static_cast<int>(threadIdx.x) / 16 * 4, j = static_cast<int>(threadIdx.x) % 16 * 2;
    if (j >= limit_[i + 3]) return;
    float acc[4][2] = {};
#pragma unroll 2
    for (int f = 0; f < size().f4(); f += 4) {
      const Quad b[2] = {four<float>(b_ + (j * size().row() + at + f)),
                         four<float>(b_ + ((j + 1) * size().row() + at + f))};
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Quad a = four<float>(a_ + ((i + r) * size().row() + at + f));
#pragma unroll
        for (int c = 0; c < 2; ++c)
          acc[r][c] = fmaf(a.w, b[c].w, fmaf(a.z, b[c].z, fmaf(a.y, b[c].y, fmaf(a.x, b[c].x, acc[r][c]))));
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 2; ++c) p[(i + r) * Sizes::scores() + j + c] = acc[r][c];
  }

  Shared<float> a_, b_, v_, p_, p_z_;
};

}  // namespace attnkit::cuda::linear
#endif
