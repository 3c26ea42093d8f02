// A tile of rows against a tile of keys after another, by the threads of a block: scores, weights, mixes, and which
// keys a row sees.  attend.hpp says which rows and keys, and what a plugin's own type of keys has.
//
// In 16 bits the products of whole tiles are tf32's on the tensor cores: queries, keys and values fit into its 10 bits
// of fraction, f32 keys and values of a state and weights are rounded to them.  Sums are f32.
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_TILE_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_TILE_HPP
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

namespace attnkit::cuda::attend {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFew = 4;                  // queries of a row up to which its keys are shared among slices
constexpr int kSpan = 256;               // keys of such a row for a block
constexpr int kNarrow = 64, kWide = 16;  // keys of a tile, by the width of heads
constexpr int kAllKeys = std::numeric_limits<int>::max();
template <class Real>
constexpr Real kUnknown = std::numeric_limits<Real>::quiet_NaN();

struct Sizes {
  int heads, kv_heads, d, e;
  explicit Sizes(const Widths& w)
      : heads(static_cast<int>(w.heads)),
        kv_heads(static_cast<int>(w.kv_heads)),
        d(static_cast<int>(w.d)),
        e(static_cast<int>(w.e)) {}
  __host__ __device__ int group() const { return heads / kv_heads; }
  __host__ __device__ int d4() const { return round4(d); }
  __host__ __device__ int e4() const { return round4(e); }
  __host__ __device__ int row() const { return d4() + 4; }  // 4: neighbours lie in different banks
  __host__ __device__ int64_t token() const { return static_cast<int64_t>(kv_heads) * (d + e); }
};

// All keys that Sight shows, at their positions in the state.
struct Everywhere {
  static constexpr bool kNear = false, kListed = false, kDecodes = true;
  template <class T>
  using Key = T;  // of keys and values, where queries and outputs are T
  __device__ int64_t begin(const Sight&, int64_t) const { return 0; }
  __device__ int64_t end(const Sight& sight, int64_t i) const { return sight.seen(i); }
  __device__ int64_t first_query(const Sight&, int64_t) const { return 0; }
  __device__ int64_t place(int64_t position) const { return position; }
};

// Those at most `before` before a query's position and `behind` behind it; the state is a ring of `size` positions.  An
// end may lie before its begin: then the query sees none.
struct Window {
  static constexpr bool kNear = true, kListed = false, kDecodes = true;
  template <class T>
  using Key = T;
  int64_t before, behind;
  uint32_t size;
  __device__ int64_t begin(const Sight& sight, int64_t i) const {
    const int64_t first = sight.q_pos + i - before;
    return first > 0 ? first : 0;
  }
  __device__ int64_t end(const Sight& sight, int64_t i) const {
    const int64_t seen = sight.seen(i), last = sight.q_pos + i + behind + 1;
    return seen < last ? seen : last;
  }
  // No query before it sees the key.
  __device__ int64_t first_query(const Sight& sight, int64_t key) const {
    const int64_t i = key - behind - sight.q_pos;
    return i > 0 ? i : 0;
  }
  __device__ int64_t place(int64_t position) const { return static_cast<uint32_t>(position) % size; }
};

template <class T, class Reach>
struct Work {
  using Key = typename Reach::template Key<T>;
  Sizes sizes;
  Rows<const T> q;
  Rows<const Key> k, v;
  Rows<T> o;
  Lengths lengths;
  States states;
  RealOf<T>* lse;    // log sum_j exp(s_ij), [B][H][N], if it is kept
  RealOf<T>* parts;  // of rows of a few queries, [pair][span][kFew][group][max, sum, E]; NULL: they are not split
  RealOf<T> scale;
  int pairs, spans;  // of batch row and head of keys; of keys of a row, at most
  Reach reach;
  int tiles = 1;  // blocks of a pair
  bool by_four = false, state_by_four = false;
};

// Four numbers of a row, of which n exist.
template <class T>
__device__ Four<RealOf<T>> load_four(const T* p, int n, bool by_four) {
  if (by_four) {
    struct alignas(sizeof(T) == 2 ? 8 : 16) Pack {
      T x, y, z, w;
    };
    const Pack pack = *as<const Pack>(p);
    return {widened(pack.x), widened(pack.y), widened(pack.z), widened(pack.w)};
  }
  const RealOf<T> none = 0;
  return {widened(p[0]), n > 1 ? widened(p[1]) : none, n > 2 ? widened(p[2]) : none, n > 3 ? widened(p[3]) : none};
}

// Calls put(row, column) for the fours of `count` rows, `width` columns wide.
template <class Put>
__device__ void for_fours(int count, int width, const Put& put) {
  const int fours = round4(width) / 4, rows = kThreads / fours, rest = kThreads % fours;
  int row = static_cast<int>(threadIdx.x) / fours, c = static_cast<int>(threadIdx.x) % fours;
#pragma unroll 4
  while (row < count) {
    put(row, c * 4);
    row += rows;
    c += rest;
    if (c >= fours) {
      c -= fours;
      ++row;
    }
  }
}

// Less than infinity, so that scores of -infinity weigh 0.
template <class Real>
__device__ Real lowest() {
  if constexpr (std::is_same_v<Real, double>) return -1.7976931348623157e308;
  return static_cast<Real>(-3.402823466e38f);
}

// Up to kRows rows against kKeys keys at a time.
template <class T, class Reach, int kRows, int kKeys, int kSlices>
class Attention {
  using Real = RealOf<T>;
  static constexpr bool kNear = Reach::kNear;
  static constexpr bool kMatrices =
      sizeof(T) == 2 && sizeof(typename Reach::template Key<T>) == 2 && kSlices == 1 && kKeys == kNarrow;
  static constexpr int kScores = kKeys + 4;
  static constexpr int kAcross = kKeys < kThreads / (kRows / 4) ? kKeys : kThreads / (kRows / 4);

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t numbers = int64_t{kRows + kKeys} * row(s) + int64_t{kKeys} * wide(s) + kRows * kScores +
                            int64_t{kSlices} * kRows * wide(s) + 3 * kRows;
    return static_cast<uint64_t>(numbers) * sizeof(Real) + (kNear ? 2 : 1) * kRows * sizeof(int);
  }

  __device__ Attention(const Work<T, Reach>& work, int64_t b, int kv, const Sight& sight)
      : w_(work), sight_(sight), b_(b), kv_(kv) {
    SharedParts parts;
    q_ = parts.take<Real>(kRows * row(size()));
    k_ = parts.take<Real>(kKeys * row(size()));
    v_ = parts.take<Real>(kKeys * wide(size()));
    p_ = parts.take<Real>(kRows * kScores);
    o_ = parts.take<Real>(kSlices * kRows * wide(size()));
    max_ = parts.take<Real>(kRows);
    sum_ = parts.take<Real>(kRows);
    down_ = parts.take<Real>(kRows);
    seen_ = parts.take<int>(kRows);
    if constexpr (kNear) begin_ = parts.take<int>(kRows);
  }

  // The rows from `first` to `last`, as many as fit; part: of the keys of one span alone, which are left there.
  __device__ void operator()(int64_t first, int64_t last, int span = 0, Real* part = nullptr) {
    const int rows = static_cast<int>(last - first < kRows ? last - first : kRows);
    attend(first, rows, span * kSpan, part ? (span + 1) * kSpan : kAllKeys);
    if (part)
      leave(part + first * (size().e + 2), rows);
    else
      write(first, rows);
    __syncthreads();  // the next rows write over these
  }

 private:
  // From row to row of queries and keys, and of values and mixes; neighbours lie in different banks.
  __host__ __device__ static int round8(int n) { return (n + 7) / 8 * 8; }
  __host__ __device__ static int row(const Sizes& s) { return (kMatrices ? round8(s.d) : s.d4()) + 4; }
  __host__ __device__ static int wide(const Sizes& s) { return kMatrices ? round8(s.e) + 8 : s.e4(); }
  // Numbers of a row in use, zeros behind the last.
  __device__ static int used(int width) { return kMatrices ? round8(width) : width; }
  // As products take it.
  __device__ static Four<Real> operand(const Four<Real>& x) {
    if constexpr (kMatrices) return {as_tf32(x.x), as_tf32(x.y), as_tf32(x.z), as_tf32(x.w)};
    return x;
  }

  __device__ void attend(int64_t first, int rows, int from_key, int to_key) {
    groups_ = kMatrices ? (rows + 15) / 16 * 4 : (rows + 3) / 4;
    begin(first, rows);
    __syncthreads();
    const auto walk = [&](int from, int to) {
      end_ = to;
      for (; from < to; from += kKeys) {
        load(from, to - from < kKeys ? to - from : kKeys);
        __syncthreads();
        if constexpr (kMatrices)
          score_matrices(from);
        else
          score(from);
        __syncthreads();
        weigh(from);
        __syncthreads();
        if constexpr (kMatrices)
          mix_matrices(from);
        else
          mix(from);
        __syncthreads();
      }
    };
    if constexpr (Reach::kListed) {
      w_.reach.for_keys(sight_, kv_, first, walk);
    } else {
      const auto least = static_cast<int>(w_.reach.begin(sight_, first / size().group())) / kKeys * kKeys;
      const auto last = static_cast<int>(w_.reach.end(sight_, (first + rows - 1) / size().group()));
      walk(least > from_key ? least : from_key, last < to_key ? last : to_key);
    }
  }

  __device__ const Sizes& size() const { return w_.sizes; }
  __device__ int head(int64_t row) const { return kv_ * size().group() + static_cast<int>(row % size().group()); }
  // Of the keys from `from` on, those in the tile that row r sees: up to live, from the number before.
  __device__ static int within(int n) { return n < 0 ? 0 : n < kKeys ? n : kKeys; }
  __device__ int live(int r, int from) const {
    if constexpr (Reach::kListed) return within(end_ - from);
    return within(seen_[r] - from);
  }
  __device__ int before(int r, int from) const {
    if constexpr (kNear) return within(begin_[r] - from);
    return 0;
  }

  __device__ void begin(int64_t first, int rows) {
    for_fours(groups_ * 4, used(size().d), [&](int r, int c) {
      Four<Real> x{};
      if (r < rows && (!kMatrices || c < size().d))
        x = load_four(w_.q.at(b_, head(first + r), (first + r) / size().group()) + c, size().d - c, w_.by_four);
      as<Four<Real>>(q_ + (r * row(size()) + c))[0] = operand(x);
    });
    const int t = static_cast<int>(threadIdx.x);
    if (t < groups_ * 4) {  // a row beyond the last sees what that sees, so that they rise
      const int64_t i = (first + (t < rows ? t : rows - 1)) / size().group();
      seen_[t] = static_cast<int>(w_.reach.end(sight_, i));
      if constexpr (kNear) begin_[t] = static_cast<int>(w_.reach.begin(sight_, i));
      max_[t] = lowest<Real>();
      sum_[t] = 0;
      if constexpr (Reach::kListed)
        if (!w_.reach.is_known(kv_, i)) sum_[t] = kUnknown<Real>;
    }
    for_fours(kSlices * groups_ * 4, used(size().e),
              [&](int r, int c) { as<Four<Real>>(o_ + (r * wide(size()) + c))[0] = Four<Real>{}; });
  }

  __device__ bool sees_any(int r) const {
    if constexpr (kNear) return seen_[r] > begin_[r];
    return seen_[r] > 0;
  }

  __device__ void load(int from, int count) {
    const float* old = w_.states ? w_.states.row(b_) + static_cast<int64_t>(kv_) * (size().d + size().e) : nullptr;
    const int filled = kMatrices ? round8(count) : count;
    const auto fetch = [&](const auto& fresh, int at, int width, int row, const Shared<Real>& to) {
      for_fours(filled, used(width), [&](int j, int c) {
        const int64_t position = from + j;
        Four<Real> x{};
        if (kMatrices && (j >= count || c >= width)) {
          // zeros
        } else if (position < sight_.past) {
          const Four<float> kept =
              load_four(old + w_.reach.place(position) * size().token() + at + c, width - c, w_.state_by_four);
          x = {kept.x, kept.y, kept.z, kept.w};
        } else {
          x = load_four(fresh.at(b_, kv_, position - sight_.past) + c, width - c, w_.by_four);
        }
        as<Four<Real>>(to + (j * row + c))[0] = operand(x);
      });
    };
    fetch(w_.k, 0, size().d, row(size()), k_);
    fetch(w_.v, size().d, size().e, wide(size()), v_);
  }

  // P = Q K^T by tiles of four rows; a thread's keys are kAcross apart, so that its neighbours read other banks.
  __device__ void score(int from) {
    constexpr int kEach = kKeys / kAcross;
    const int i = static_cast<int>(threadIdx.x) / kAcross * 4, a = static_cast<int>(threadIdx.x) % kAcross;
    if (i >= groups_ * 4) return;
    const int any = live(i + 3, from);
    if (a >= any) return;
    int keys[kEach];
#pragma unroll
    for (int c = 0; c < kEach; ++c) keys[c] = (a + c * kAcross < any ? a + c * kAcross : a) * row(size());
    Real acc[4][kEach] = {};
#pragma unroll 2
    for (int f = 0; f < size().d4(); f += 4) {
      Four<Real> k[kEach];
#pragma unroll
      for (int c = 0; c < kEach; ++c) k[c] = four<Real>(k_ + (keys[c] + f));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Four<Real> q = four<Real>(q_ + ((i + r) * row(size()) + f));
#pragma unroll
        for (int c = 0; c < kEach; ++c) acc[r][c] = dot(q, k[c], acc[r][c]);
      }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (a + c * kAcross < any) p_[(i + r) * kScores + a + c * kAcross] = acc[r][c];
  }

  __device__ static Real rounded(Real x) {
    if constexpr (kMatrices) return as_tf32(x);
    return x;
  }
  // Scores become weights, a warp to a row; a NaN is never the max, its own weight carries it.
  __device__ void weigh(int from) {
    constexpr int kEach = (kKeys + 31) / 32;
    for (int r = warp(); r < groups_ * 4; r += kWarps) {
      const int n = live(r, from), first = before(r, from);
      const Real old = max_[r];
      Real x[kEach] = {}, most = old, sum = 0;
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (lane() + c * 32 >= first && lane() + c * 32 < n) {
          x[c] = p_[r * kScores + lane() + c * 32] * w_.scale;
          most = larger(x[c], most);
        }
      for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
#pragma unroll
      for (int c = 0; c < kEach; ++c)
        if (lane() + c * 32 >= first && lane() + c * 32 < n) {
          const Real weight = rounded(exponential(x[c] - most));
          p_[r * kScores + lane() + c * 32] = weight;
          sum += weight;
        } else if constexpr (kMatrices) {
          p_[r * kScores + lane() + c * 32] = 0;
        }
      sum = sum_of_warp(sum);
      const Real all = sum_[r];
      __syncwarp();  // all have read the row's max and sum
      if (lane() == 0) {
        const Real down = exponential(old - most);
        down_[r] = down;
        max_[r] = most;
        sum_[r] = fused(all, down, sum);
      }
    }
  }

  // O = O down + P V; the keys of a slice in their order.
  __device__ void mix(int from) {
    constexpr int kOf = kKeys / kSlices;
    const int fours = size().e4() / 4, of_slice = groups_ * fours;
    for (int unit = static_cast<int>(threadIdx.x); unit < kSlices * of_slice; unit += kThreads) {
      const int slice = unit / of_slice, i = unit % of_slice / fours * 4, e = unit % fours * 4;
      const Shared<Real> out = o_ + ((slice * groups_ * 4 + i) * wide(size()) + e);
      const int begin = slice * kOf, end = begin + kOf;
      const auto upto = [&](int n) { return n < begin ? begin : n < end ? n : end; };
      const int some = upto(live(i + 3, from));
      int whole = begin, every = begin + (upto(live(i, from)) - begin) / 4 * 4;  // fours that all four rows see
      if constexpr (kNear) {
        whole += (upto(before(i + 3, from)) - begin + 3) / 4 * 4;
        if (whole >= every) whole = every = some;
      }
      Four<Real> acc[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Real down = down_[i + r];
        acc[r] = four<Real>(out + r * wide(size()));
        acc[r] = {acc[r].x * down, acc[r].y * down, acc[r].z * down, acc[r].w * down};
      }
      if constexpr (kNear) {
#pragma unroll 1
        for (int j = upto(before(i, from)); j < whole; ++j) add_seen(i, j, e, from, acc);
      }
      multiply<Real>(p_ + (i * kScores + whole), kScores, v_ + (whole * wide(size()) + e), wide(size()), every - whole,
                     acc);
#pragma unroll 1
      for (int j = every; j < some; ++j) add_seen(i, j, e, from, acc);
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Four<Real>>(out + r * wide(size()))[0] = acc[r];
    }
  }

  // Both products of kMatrices: 16 rows and 32 keys, or columns, to a warp.  Lane 4 g + t has rows g and g + 8.
  struct Part {
    int row, from, g, t;
    __device__ Part() : row(warp() / 2 * 16), from(warp() % 2 * 32), g(lane() / 4), t(lane() % 4) {}
  };
  // 16 x 8 of the left operand.
  __device__ static void left(const Shared<Real>& at, int next, float (&to)[4]) {
    to[0] = at[0];
    to[1] = at[8 * next];
    to[2] = at[4];
    to[3] = at[8 * next + 4];
  }
  __device__ void score_matrices(int from) {
    const Part part;
    if (part.row >= groups_ * 4) return;
    const int any = live(part.row + 15, from), next = row(size());
    float acc[4][4] = {};
#pragma unroll 1
    for (int f = 0; f < used(size().d); f += 8) {
      float a[4];
      left(q_ + ((part.row + part.g) * next + f + part.t), next, a);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int key = part.from + n * 8;
        if (key >= any) continue;
        const auto at = k_ + ((key + part.g) * next + f + part.t);
        const float b[2] = {at[0], at[4]};
        multiply_add(acc[n], a, b);
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto at = p_ + ((part.row + part.g) * kScores + part.from + n * 8 + 2 * part.t);
      at[0] = acc[n][0];
      at[1] = acc[n][1];
      at[8 * kScores] = acc[n][2];
      at[8 * kScores + 1] = acc[n][3];
    }
  }
  // A product takes hidden keys times 0, so values that are infinite or NaN stay out of it, and come to those that see
  // them one by one.
  __device__ void mix_matrices(int from) {
    Part part;
    if (part.row >= groups_ * 4) return;
#pragma unroll 1
    for (; part.from < used(size().e); part.from += 64) {
      float acc[4][4];
      bool finite = false;
#pragma unroll 1
      for (bool clean = false; !finite; clean = true) {
        multiply_values(part, from, acc, clean);
        finite = true;
        for_sums(part, acc, [&](int r, int c, float& x) {
          finite = finite && (clean || is_finite(x));
#pragma unroll 1
          for (int j = before(r, from); clean && j < live(r, from); ++j) {
            const float value = v_[j * wide(size()) + c];
            if (!is_finite(value)) x = fmaf(p_[r * kScores + j], value, x);
          }
        });
        finite = __all_sync(kAll, finite) != 0;
      }
      for_sums(part, acc, [&](int r, int c, float x) { o_[r * wide(size()) + c] = x; });
    }
  }
  __device__ static bool is_finite(float x) { return x - x == 0; }
  // Calls visit(row, column, sum) for a lane's sums.
  template <class Visit>
  __device__ void for_sums(const Part& part, float (&acc)[4][4], const Visit& visit) const {
#pragma unroll
    for (int n = 0; n < 4; ++n)
      if (part.from + n * 8 < used(size().e))
#pragma unroll
        for (int x = 0; x < 4; ++x)
          visit(part.row + part.g + x / 2 * 8, part.from + n * 8 + 2 * part.t + x % 2, acc[n][x]);
  }
  // acc = O down + P V, clean: without values that are infinite or NaN.
  __device__ void multiply_values(const Part& part, int from, float (&acc)[4][4], bool clean) const {
    const int next = wide(size()), some = live(part.row + 15, from);
    for_sums(part, acc, [&](int r, int c, float& x) { x = o_[r * next + c] * down_[r]; });
#pragma unroll 1
    for (int j = before(part.row, from) / 8 * 8; j < some; j += 8) {
      float a[4];
      left(p_ + ((part.row + part.g) * kScores + j + part.t), kScores, a);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int column = part.from + n * 8;
        if (column >= used(size().e)) continue;
        const auto at = v_ + ((j + part.t) * next + column + part.g);
        float b[2] = {at[0], at[4 * next]};
#pragma unroll
        for (int x = 0; x < 2; ++x)
          if (clean && !is_finite(b[x])) b[x] = 0;
        multiply_add(acc[n], a, b);
      }
    }
  }

  // The value of key j, for those of four rows that see it.
  __device__ void add_seen(int i, int j, int e, int from, Four<Real> (&acc)[4]) const {
    const Four<Real> v = four<Real>(v_ + (j * wide(size()) + e));
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (j >= before(i + r, from) && j < live(i + r, from)) add<Real>(acc[r], p_[(i + r) * kScores + j], v);
  }

  // Of row r, the sum of its slices' mixes.
  __device__ Real mixed(int r, int e) const {
    Real sum = 0;
    for (int slice = 0; slice < kSlices; ++slice) sum += o_[(slice * groups_ * 4 + r) * wide(size()) + e];
    return sum;
  }
  __device__ void leave(Real* part, int rows) {
    for (int r = warp(); r < rows; r += kWarps) {
      Real* to = part + static_cast<int64_t>(r) * (size().e + 2);
      if (lane() == 0) {
        to[0] = max_[r];
        to[1] = sum_[r];
      }
      for (int e = lane(); e < size().e; e += 32) to[2 + e] = mixed(r, e);
    }
  }
  __device__ void write(int64_t first, int rows) {
    for (int r = warp(); r < rows; r += kWarps) {
      const int64_t i = (first + r) / size().group();
      const int h = head(first + r);
      const bool sees = sees_any(r);
      const Real total = sum_[r], by = reciprocal(total);
      T* to = w_.o.at(b_, h, i);
      for (int e = lane(); e < size().e; e += 32) to[e] = narrowed<T>(sees ? mixed(r, e) * by : 0);
      if (w_.lse && lane() == 0) w_.lse[(b_ * size().heads + h) * w_.lengths.queries + i] = max_[r] + logarithm(total);
    }
  }

  const Work<T, Reach>& w_;
  const Sight& sight_;
  const int64_t b_;
  const int kv_;
  int groups_ = 0;  // of four rows
  int end_ = 0;     // of the span of keys that is walked
  Shared<Real> q_, k_, v_, p_, o_, max_, sum_, down_;
  Shared<int> seen_, begin_;
};

}  // namespace attnkit::cuda::attend
#endif
