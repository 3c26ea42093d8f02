// Softmax attention on CUDA: o_i = sum_j p_ij v_j, p_ij = exp(s_ij - max_j s_ij) / sum_j ..., s_ij = scale q_i . k_j.
//
// A block takes the queries of one head of keys, by rows (query, head of the group), and walks the keys a tile at a
// time; each row keeps the max, the sum and the mix of values so far, which a larger max scales down.  Rows of a few
// queries share the keys of a tile among slices of threads, whose mixes are added at the end.  Which way a row goes
// depends on its own queries alone, so that neighbours and padding change no bit; tiles begin at multiples of their
// size from position 0, so that a long piece of a stream gives the bits of the whole; and no sum has a key that its
// query does not see.  Keys before this run are read from the state, [position][head of keys][D + E] floats, those of
// this run from the tensors: other blocks are still appending them.
//
// A row of a few queries that sees more than kSpan keys has a block for each kSpan of them, so that a few sessions fill
// a device; the blocks leave their max, sum and mix in scratch, which one more kernel adds up.
//
// Which keys a query may see by their distance is a type, Everywhere or Window.  Tiles that no row's window touches are
// not walked, so that cost is linear in the length.  Under a window the state is a ring: to append overwrites keys that
// the run's first queries see, so it comes after all of them, in a kernel of its own unless a block has the whole row.
//
// A plugin's own type may have a Key that keys and values are of whatever the queries are.  It may have kListed: then
// it says which keys a tile of queries walks, all of whose queries see all of them, and is for whole sequences and
// heads that have keys of their own.  Beside what Everywhere has it has
//
//   tiles(rows, size)               of at most `size` rows each, that it cuts so many rows into
//   first(turn, turns, size)        the first row of the tile that such a turn takes
//   last(first)                     the end of the rows that may be in a tile with it
//   is_known(kv, row)               or else its output is NaN
//   for_keys(sight, kv, row, walk)  calls walk(from, to) for spans of keys that the row sees
//   for_rows(sight, kv, key, walk)  calls walk(from, to) for spans of rows that see the key, in gradients
#ifndef ATTNKIT_KERNELS_CUDA_ATTEND_HPP
#define ATTNKIT_KERNELS_CUDA_ATTEND_HPP
#include <algorithm>
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

namespace attnkit::cuda::attend {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kFew = 4;                  // queries of a row up to which its keys are shared among slices
constexpr int kSpan = 1024;              // keys of such a row for a block
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
  static constexpr bool kNear = false, kListed = false;
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
  static constexpr bool kNear = true, kListed = false;
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

// Up to kRows rows against kKeys keys at a time.
template <class T, class Reach, int kRows, int kKeys, int kSlices>
class Attention {
  using Real = RealOf<T>;
  static constexpr bool kNear = Reach::kNear;
  static constexpr int kScores = kKeys + 4;
  static constexpr int kAcross = kKeys < kThreads / (kRows / 4) ? kKeys : kThreads / (kRows / 4);

 public:
  static uint64_t bytes(const Sizes& s) {
    const int64_t numbers = int64_t{kRows + kKeys} * s.row() + int64_t{kKeys} * s.e4() + kRows * kScores +
                            int64_t{kSlices} * kRows * s.e4() + 3 * kRows;
    return static_cast<uint64_t>(numbers) * sizeof(Real) + (kNear ? 2 : 1) * kRows * sizeof(int);
  }

  __device__ Attention(const Work<T, Reach>& work, int64_t b, int kv, const Sight& sight)
      : w_(work), sight_(sight), b_(b), kv_(kv) {
    SharedParts parts;
    q_ = parts.take<Real>(kRows * size().row());
    k_ = parts.take<Real>(kKeys * size().row());
    v_ = parts.take<Real>(kKeys * size().e4());
    p_ = parts.take<Real>(kRows * kScores);
    o_ = parts.take<Real>(kSlices * kRows * size().e4());
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
  __device__ void attend(int64_t first, int rows, int from_key, int to_key) {
    groups_ = (rows + 3) / 4;
    begin(first, rows);
    __syncthreads();
    const auto walk = [&](int from, int to) {
      end_ = to;
      for (; from < to; from += kKeys) {
        load(from, to - from < kKeys ? to - from : kKeys);
        __syncthreads();
        score(from);
        __syncthreads();
        weigh(from);
        __syncthreads();
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
    for_fours(groups_ * 4, size().d, [&](int r, int c) {
      Four<Real> x{};
      if (r < rows)
        x = load_four(w_.q.at(b_, head(first + r), (first + r) / size().group()) + c, size().d - c, w_.by_four);
      as<Four<Real>>(q_ + (r * size().row() + c))[0] = x;
    });
    const int t = static_cast<int>(threadIdx.x);
    if (t < groups_ * 4) {  // a row beyond the last sees what that sees, so that they rise
      const int64_t i = (first + (t < rows ? t : rows - 1)) / size().group();
      seen_[t] = static_cast<int>(w_.reach.end(sight_, i));
      if constexpr (kNear) begin_[t] = static_cast<int>(w_.reach.begin(sight_, i));
      max_[t] = lowest();
      sum_[t] = 0;
      if constexpr (Reach::kListed)
        if (!w_.reach.is_known(kv_, i)) sum_[t] = kUnknown<Real>;
    }
    for_fours(kSlices * groups_ * 4, size().e,
              [&](int r, int c) { as<Four<Real>>(o_ + (r * size().e4() + c))[0] = Four<Real>{}; });
  }

  __device__ bool sees_any(int r) const {
    if constexpr (kNear) return seen_[r] > begin_[r];
    return seen_[r] > 0;
  }

  // Less than infinity, so that scores of -infinity weigh 0.
  __device__ static Real lowest() {
    if constexpr (std::is_same_v<Real, double>) return -1.7976931348623157e308;
    return static_cast<Real>(-3.402823466e38f);
  }

  __device__ void load(int from, int count) {
    const float* old = w_.states ? w_.states.row(b_) + static_cast<int64_t>(kv_) * (size().d + size().e) : nullptr;
    const auto fetch = [&](const auto& fresh, int at, int width, int row, const Shared<Real>& to) {
      for_fours(count, width, [&](int j, int c) {
        const int64_t position = from + j;
        Four<Real> x;
        if (position < sight_.past) {
          const Four<float> kept =
              load_four(old + w_.reach.place(position) * size().token() + at + c, width - c, w_.state_by_four);
          x = {kept.x, kept.y, kept.z, kept.w};
        } else {
          x = load_four(fresh.at(b_, kv_, position - sight_.past) + c, width - c, w_.by_four);
        }
        as<Four<Real>>(to + (j * row + c))[0] = x;
      });
    };
    fetch(w_.k, 0, size().d, size().row(), k_);
    fetch(w_.v, size().d, size().e, size().e4(), v_);
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
    for (int c = 0; c < kEach; ++c) keys[c] = (a + c * kAcross < any ? a + c * kAcross : a) * size().row();
    Real acc[4][kEach] = {};
#pragma unroll 2
    for (int f = 0; f < size().d4(); f += 4) {
      Four<Real> k[kEach];
#pragma unroll
      for (int c = 0; c < kEach; ++c) k[c] = four<Real>(k_ + (keys[c] + f));
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const Four<Real> q = four<Real>(q_ + ((i + r) * size().row() + f));
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
          const Real weight = exponential(x[c] - most);
          p_[r * kScores + lane() + c * 32] = weight;
          sum += weight;
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
      const Shared<Real> out = o_ + ((slice * groups_ * 4 + i) * size().e4() + e);
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
        acc[r] = four<Real>(out + r * size().e4());
        acc[r] = {acc[r].x * down, acc[r].y * down, acc[r].z * down, acc[r].w * down};
      }
      if constexpr (kNear) {
#pragma unroll 1
        for (int j = upto(before(i, from)); j < whole; ++j) add_seen(i, j, e, from, acc);
      }
      multiply<Real>(p_ + (i * kScores + whole), kScores, v_ + (whole * size().e4() + e), size().e4(), every - whole,
                     acc);
#pragma unroll 1
      for (int j = every; j < some; ++j) add_seen(i, j, e, from, acc);
#pragma unroll
      for (int r = 0; r < 4; ++r) as<Four<Real>>(out + r * size().e4())[0] = acc[r];
    }
  }

  // The value of key j, for those of four rows that see it.
  __device__ void add_seen(int i, int j, int e, int from, Four<Real> (&acc)[4]) const {
    const Four<Real> v = four<Real>(v_ + (j * size().e4() + e));
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (j >= before(i + r, from) && j < live(i + r, from)) add<Real>(acc[r], p_[(i + r) * kScores + j], v);
  }

  // Of row r, the sum of its slices' mixes.
  __device__ Real mixed(int r, int e) const {
    Real sum = 0;
    for (int slice = 0; slice < kSlices; ++slice) sum += o_[(slice * groups_ * 4 + r) * size().e4() + e];
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

template <class T, class Reach, int kKeys>
using Blocks = Attention<T, Reach, kKeys, kKeys, 1>;
template <class T, class Reach, int kKeys>
using Few = Attention<T, Reach, 16, kKeys, 4>;

// The keys of this run from `first` on, kv's part of them, shared among `tiles` blocks.
template <class T, class Reach>
__device__ void append(const Work<T, Reach>& w, int64_t b, int kv, const Sight& sight, int64_t first, int tile,
                       int tiles) {
  const Sizes& s = w.sizes;
  for (int64_t j = first + tile * kWarps + warp(); j < sight.fresh; j += tiles * kWarps) {
    float* token = w.states.row(b) + w.reach.place(sight.past + j) * s.token() + static_cast<int64_t>(kv) * (s.d + s.e);
    const auto *k = w.k.at(b, kv, j), *v = w.v.at(b, kv, j);
    for (int c = lane(); c < s.d; c += 32) token[c] = static_cast<float>(widened(k[c]));
    for (int c = lane(); c < s.e; c += 32) token[s.d + c] = static_cast<float>(widened(v[c]));
  }
}
// Those that a ring keeps.
template <class T>
__device__ void append_last(const Work<T, Window>& w, int64_t b, int kv, const Sight& sight, int tile, int tiles) {
  const int64_t size = w.reach.size;
  append(w, b, kv, sight, sight.fresh > size ? sight.fresh - size : 0, tile, tiles);
}

// The other work of every block: its share of the keys to append, and of the rows of output past the last query.
template <class T, class Reach>
__device__ void append_and_clear(const Work<T, Reach>& w, int64_t b, int kv, const Sight& sight, int tile) {
  const Sizes& s = w.sizes;
  if (!Reach::kNear && w.states) append(w, b, kv, sight, 0, tile, w.tiles);
  const int group = s.group();
  for (int64_t r = sight.queries * group + tile * kWarps + warp(); r < w.lengths.queries * group; r += w.tiles * kWarps)
    for (int c = lane(); c < s.e; c += 32) w.o.at(b, kv * group + r % group, r / group)[c] = narrowed<T>(0);
}

// The spans of keys that a row of a few queries is split into; 1: it is not.
template <class T, class Reach>
__device__ int spans_of(const Work<T, Reach>& w, const Sight& sight) {
  if (!w.parts || sight.queries == 0) return 1;
  const auto seen = static_cast<int>(w.reach.end(sight, sight.queries - 1));
  return seen > kSpan ? (seen + kSpan - 1) / kSpan : 1;
}
template <class T, class Reach>
__device__ RealOf<T>* part_of(const Work<T, Reach>& w, int pair, int span) {
  const int64_t rows = kFew * w.sizes.group();
  return w.parts + (static_cast<int64_t>(pair) * w.spans + span) * rows * (w.sizes.e + 2);
}

// A row of a few queries: of its keys one span, if it is split.
template <class T, class Reach, int kKeys>
__device__ void attend_few(const Work<T, Reach>& w, int pair, int span, const Sight& sight) {
  const int spans = spans_of(w, sight);
  if (span >= spans) return;
  RealOf<T>* const part = spans > 1 ? part_of(w, pair, span) : nullptr;
  Few<T, Reach, kKeys> few(w, pair / w.sizes.kv_heads, pair % w.sizes.kv_heads, sight);
  const int64_t rows = sight.queries * w.sizes.group();
  for (int64_t first = 0; first < rows; first += 16) few(first, rows, span, part);
}

// Adds up the parts of rows that were split: a warp for each.
template <class T, class Reach>
static __global__ void __launch_bounds__(kThreads) combine_kernel(const Work<T, Reach> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int pair = static_cast<int>(blockIdx.x), kv = pair % s.kv_heads, group = s.group();
  const int64_t b = pair / s.kv_heads;
  const Sight sight(w.lengths, b);
  if (sight.queries > kFew) return;
  const int spans = spans_of(w, sight);
  if (spans == 1) return;
  const int64_t next = part_of(w, 0, 1) - part_of(w, 0, 0);
  for (int r = warp(); r < sight.queries * group; r += kWarps) {
    const Real* part = part_of(w, pair, 0) + static_cast<int64_t>(r) * (s.e + 2);
    const int64_t i = r / group;
    const int h = kv * group + r % group;
    Real most = part[0], total = 0;
    for (int span = 1; span < spans; ++span) most = larger(most, part[span * next]);
    for (int span = 0; span < spans; ++span)
      total = fused(exponential(part[span * next] - most), part[span * next + 1], total);
    const bool sees = w.reach.end(sight, i) > 0;
    const Real by = reciprocal(total);
    for (int e = lane(); e < s.e; e += 32) {
      Real mixed = 0;
      for (int span = 0; span < spans; ++span)
        mixed = fused(exponential(part[span * next] - most), part[span * next + 2 + e], mixed);
      w.o.at(b, h, i)[e] = narrowed<T>(sees ? mixed * by : 0);
    }
    if (w.lse && lane() == 0) w.lse[(b * s.heads + h) * w.lengths.queries + i] = most + logarithm(total);
  }
}

// Blocks that are to fit into a multiprocessor; f64 is for checks.
template <class T, int kBlocks>
constexpr int kBlocksOf = sizeof(T) == 8 ? 1 : kBlocks;

// Calls whose rows have few queries each.
template <class T, class Reach, int kKeys>
static __global__ void __launch_bounds__(
    kThreads, kBlocksOf<T, Reach::kNear || sizeof(T) == 2 || sizeof(typename Reach::template Key<T>) == 2 ? 2 : 3>)
    few_kernel(const Work<T, Reach> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, tile = static_cast<int>(blockIdx.x) / w.pairs;
  const int64_t b = pair / w.sizes.kv_heads;
  const int kv = pair % w.sizes.kv_heads;
  const Sight sight(w.lengths, b);
  append_and_clear(w, b, kv, sight, tile);
  attend_few<T, Reach, kKeys>(w, pair, tile, sight);
  if constexpr (Reach::kNear)
    if (w.states) append_last(w, b, kv, sight, 0, 1);
}

// Any other; the blocks with the most keys to see begin first.
template <class T, class Reach, int kKeys>
static __global__ void __launch_bounds__(kThreads, kBlocksOf<T, 2>) blocks_kernel(const Work<T, Reach> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, turn = static_cast<int>(blockIdx.x) / w.pairs;
  const int tile = w.tiles - 1 - turn;
  const int64_t b = pair / w.sizes.kv_heads;
  const int kv = pair % w.sizes.kv_heads;
  const Sight sight(w.lengths, b);
  append_and_clear(w, b, kv, sight, tile);
  const int64_t rows = sight.queries * w.sizes.group();
  if constexpr (Reach::kListed) {
    const int64_t first = w.reach.first(turn, w.tiles, kKeys), last = w.reach.last(first);
    if (first < rows) Blocks<T, Reach, kKeys>(w, b, kv, sight)(first, last < rows ? last : rows);
  } else if (sight.queries <= kFew) {
    for (int span = tile; span < w.spans || span == 0; span += w.tiles)
      attend_few<T, Reach, kKeys>(w, pair, span, sight);
  } else {
    const int64_t first = static_cast<int64_t>(tile) * kKeys;
    if (first < rows) Blocks<T, Reach, kKeys>(w, b, kv, sight)(first, rows);
  }
}

// After blocks_kernel, the keys that the ring keeps.
template <class T>
static __global__ void __launch_bounds__(kThreads) append_kernel(const Work<T, Window> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, tile = static_cast<int>(blockIdx.x) / w.pairs;
  const int64_t b = pair / w.sizes.kv_heads;
  append_last(w, b, pair % w.sizes.kv_heads, Sight(w.lengths, b), tile, static_cast<int>(gridDim.x) / w.pairs);
}

// Shared memory of blocks_kernel, whatever its batch rows are.
template <class T, class Reach, int kKeys>
uint64_t bytes_of_blocks(const Sizes& s) {
  const uint64_t bytes = Blocks<T, Reach, kKeys>::bytes(s);
  if constexpr (Reach::kListed) return bytes;
  return std::max(bytes, Few<T, Reach, kKeys>::bytes(s));
}

// Keys of a tile for heads so wide, 0: none fits into a block's shared memory.
template <class T, class Reach = Everywhere>
int keys_of_tile(const Sizes& s) {
  const auto fits = [&](auto tile) {
    return bytes_of_blocks<T, Reach, decltype(tile)::value>(s) <= static_cast<uint64_t>(most_shared());
  };
  if (fits(std::integral_constant<int, kNarrow>{})) return kNarrow;
  return fits(std::integral_constant<int, kWide>{}) ? kWide : 0;
}

template <class T>
bool is_by_four(const Rows<const T>& rows, int64_t width) {
  return reinterpret_cast<uintptr_t>(rows.data) % (sizeof(T) == 2 ? 8 : 16) == 0 && width % 4 == 0 &&
         rows.batch % 4 == 0 && rows.head % 4 == 0 && rows.next % 4 == 0;
}

// The spans that rows of a few queries of such a run may be split into, 0: none is; and the scratch that takes.
inline int spans_of(const Request& r) {
  return r.queries > 0 && r.capacity() > kSpan ? static_cast<int>((r.capacity() + kSpan - 1) / kSpan) : 0;
}
inline uint64_t bytes_of_parts(const Widths& w, const Request& r) {
  const int64_t numbers = r.batch * w.heads * kFew * (w.e + 2) * spans_of(r);
  return aligned(static_cast<uint64_t>(numbers) * (r.is_f64() ? sizeof(double) : sizeof(float)));
}

// Enqueues a run whose rows are given.  name: of the mechanism.  keys: as keys_of_tile says.
template <class T, class Reach>
void run(const char* name, const attn_exec& exec, Work<T, Reach> w, int keys) {
  const Lengths& lengths = w.lengths;
  const bool streams = w.states.data != nullptr, few = !Reach::kListed && lengths.queries <= kFew;
  w.by_four = is_by_four(w.q, w.sizes.d) && is_by_four(w.k, w.sizes.d) && is_by_four(w.v, w.sizes.e);
  w.state_by_four = w.sizes.d % 4 == 0 && w.sizes.e % 4 == 0;
  const auto tiles_of = [keys](int64_t rows) { return static_cast<int>((rows + keys - 1) / keys); };
  if constexpr (Reach::kListed)
    w.tiles = static_cast<int>(w.reach.tiles(lengths.queries, keys));
  else
    w.tiles = std::max({1, streams && !Reach::kNear ? tiles_of(lengths.keys) : 1,
                        few ? w.spans : tiles_of(lengths.queries * w.sizes.group())});
  const auto start = [&](auto* kernel, int tiles, uint64_t bytes) {
    launch(name, kernel, {dim3(static_cast<unsigned>(w.pairs) * static_cast<unsigned>(tiles)), kThreads, bytes}, exec,
           w);
  };
  const auto with = [&](auto tile) {
    constexpr int kKeys = decltype(tile)::value;
    if constexpr (!Reach::kListed)
      if (few) return start(few_kernel<T, Reach, kKeys>, w.tiles, Few<T, Reach, kKeys>::bytes(w.sizes));
    start(blocks_kernel<T, Reach, kKeys>, w.tiles, bytes_of_blocks<T, Reach, kKeys>(w.sizes));
  };
  if (keys == kNarrow)
    with(std::integral_constant<int, kNarrow>{});
  else
    with(std::integral_constant<int, kWide>{});
  if constexpr (!Reach::kNear && !Reach::kListed)
    if (w.parts && lengths.queries > 0 && (few || lengths.q_len)) start(combine_kernel<T, Reach>, 1, 0);
  if constexpr (Reach::kNear && sizeof(T) <= sizeof(float))  // f64 never streams
    if (streams && !few && lengths.keys > 0)
      start(append_kernel<T>, tiles_of(std::min<int64_t>(lengths.keys, w.reach.size)), 0);
}

// Enqueues a run whose tensors are of T.  spans: with scratch for their parts.
template <class T, class Reach = Everywhere>
void run(const char* name, const attn_run& r, const QkvPorts& ports, const Widths& widths, double scale, bool causal,
         int keys, const Reach& reach = {}, int spans = 0) {
  const auto given = [&](Port port) { return View<const T>(r, port); };
  run(name, *r.exec,
      Work<T, Reach>{Sizes(widths), given(ports.q), given(ports.k), given(ports.v), View<T>(r, ports.o),
                     Lengths(r, causal), States(r), static_cast<RealOf<T>*>(r.saved),
                     spans > 0 ? static_cast<RealOf<T>*>(r.exec->scratch) : nullptr, static_cast<RealOf<T>>(scale),
                     static_cast<int>(r.batch * widths.kv_heads), spans, reach},
      keys);
}

}  // namespace attnkit::cuda::attend
#endif
