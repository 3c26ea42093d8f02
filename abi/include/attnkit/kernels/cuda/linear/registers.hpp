// Chunks in f16 and bf16 of maps that take the numbers of a row one by one: S, O and the queries stay in registers as
// the tensor cores hold them, and shared memory has keys and values alone.
//
// Four warps have a head's 64 columns; heads of 128 have eight warps.  A warp has 16 queries of a tile of 64, and every
// fourth 16 rows of S.  Per tile of 64 keys O += (A B^T, hidden pairs dropped) V and S += B^T V; before a tile of
// queries S is rounded to T in shared memory for O = A S.  The next tile's keys and values come meanwhile.  One more
// column of V is 1, so z and the denominators are sums of the same products.  In f16, whose range S and A B^T may
// leave, S is divided by a power of two before it is rounded, and A B^T takes tf32, whose 10 bits of fraction are
// f16's.
//
// Of a map that splits, keys lie in shared memory twice, turned for S and as they are for z, and so are queries in
// registers: denominators are sums of products of their own.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_REGISTERS_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_REGISTERS_HPP
#include <attnkit/kernels/cuda/linear/chunks.hpp>

namespace attnkit::cuda::linear {

template <class Map>
constexpr bool kHasUnits = requires(const Map& map) {
  map.template unit<true>(int64_t{}, 0, 0.0f);
};

struct alignas(16) Eight {
  uint32_t pair[4];
};

// Operands of products as lanes hold them, in T.
template <class T>
struct Fragments {
  static constexpr bool kScales = std::is_same_v<T, __half>;  // may sums and weights leave T's range?

  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  // The power of two by which most, divided, has f16's upper range; 1 of nothing.
  __device__ static float power_of(float most) {
    int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 14;
    if (most == 0) exponent = 127;
    return __uint_as_float(static_cast<uint32_t>(exponent < 1 ? 1 : exponent) << 23);
  }
  __device__ static float inverse_of(float power) { return __uint_as_float((254u << 23) - __float_as_uint(power)); }
  // Infinite numbers and NaN have no size.
  __device__ static float size_of(float x) { return is_finite(x) ? fabsf(x) : 0.0f; }
  __device__ static bool is_finite(float x) { return x - x == 0; }
  __device__ static float finite_of(uint32_t pair, int i) {
    const float x = half_of<T>(pair, i);
    return is_finite(x) ? x : 0.0f;
  }

  // A B^T of 16 keys as the left operand of its product with values: in T, or in tf32, of which lane t has keys 2 t and
  // 2 t + 1 on both sides.
  struct Weights {
    std::conditional_t<kScales, float, uint32_t> of[kScales ? 2 : 1][4];
  };
  __device__ static Weights weights_of(const float (&p)[2][4]) {
    Weights weights;
#pragma unroll
    for (int x = 0; x < 4; ++x)
      if constexpr (kScales)
#pragma unroll
        for (int c = 0; c < 2; ++c) weights.of[c][x] = as_tf32(p[c][x % 2 * 2 + x / 2]);
      else
        weights.of[0][x] = pair_of<T>(p[x / 2][x % 2 * 2], p[x / 2][x % 2 * 2 + 1]);
    return weights;
  }
  // low, high: 8 columns of the values of 8 keys, and of the next 8.
  __device__ static void weigh(float (&sum)[4], const Weights& weights, uint32_t low, uint32_t high) {
    if constexpr (kScales) {
      multiply_add(sum, weights.of[0], {half_of<T>(low, 0), half_of<T>(low, 1)});
      multiply_add(sum, weights.of[1], {half_of<T>(high, 0), half_of<T>(high, 1)});
    } else {
      multiply_add<T>(sum, weights.of[0], {low, high});
    }
  }
};

// Turns of pairs of features by their rows' positions, in tiles of 64: by that of a tile's first row, which is found in
// f64, and that from there on.  kUp: do positions of a tile rise?
template <class Map, int kD, bool kUp>
class Turns {
  static constexpr int kRows = 64, kPairs = kD / 2, kRow = kPairs + 4;  // rows read together lie in different banks

 public:
  static constexpr uint64_t bytes(int tiles) {
    return Map::kSplits ? sizeof(Two) * static_cast<uint64_t>(kRows * kRow + tiles * kPairs) : 0;
  }
  __device__ void load(const Map& map, SharedParts& parts, int tiles) {
    if constexpr (Map::kSplits) {
      of_rows_ = parts.take<Two>(kRows * kRow);
      of_tiles_ = parts.take<Two>(tiles * kPairs);
      const int pair = static_cast<int>(threadIdx.x) % kPairs;
      speed_ = map.speed(2 * pair);
      for (int row = static_cast<int>(threadIdx.x) / kPairs; row < kRows; row += static_cast<int>(blockDim.x) / kPairs)
        of_rows_[row * kRow + pair] = turn_of(kUp ? row : -row, speed_);
    }
  }
  // After the next barrier a tile begins at a position.
  __device__ void begin(int tile, int64_t position) const {
    if constexpr (Map::kSplits)
      if (const int pair = static_cast<int>(threadIdx.x); pair < kPairs)
        of_tiles_[tile * kPairs + pair] = turn_of(position, speed_);
  }
  // Features f and f + 1 of a row of the tile.
  __device__ Two turned(int tile, int row, int f, float even, float odd) const {
    return both({even, odd}, turn(tile, row, f));
  }
  __device__ Two turned_back(int tile, int row, int f, float even, float odd) const {
    const Two own = turn(tile, row, f);
    return both({even, odd}, {own.x, -own.y});
  }

 private:
  __device__ static Two turn_of(int64_t position, double speed) {
    Two turn;
    quarter_turns(static_cast<double>(position) * speed, turn.x, turn.y);
    return turn;
  }
  __device__ static Two both(const Two& a, const Two& b) { return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x}; }

  __device__ Two turn(int tile, int row, int f) const {
    return both(of_tiles_[tile * kPairs + f / 2], of_rows_[row * kRow + f / 2]);
  }

  Shared<Two> of_rows_, of_tiles_;
  double speed_ = 0;  // of the pair whose turns this thread finds
};

// Takes a part: keys that all queries of a tile see before it begins, then those that some of them see.
template <bool kReads, class Tiles>
__device__ void take_tiles(Tiles& tiles, const Part& part) {
  constexpr int kRows = Tiles::kRows;
  tiles.load_state(part.begun);
  const int to = static_cast<int>(part.to), keys = static_cast<int>(part.keys);
  int i = static_cast<int>(part.from), done = static_cast<int>(part.done);
  for (;;) {
    int n = 0;
    if (kReads && i < to) n = to - i < kRows ? to - i : kRows;
    const int all = n > 0 ? tiles.needs(i) : keys;
    while (done < all && (n == 0 || all - done >= kRows)) {
      const int count = all - done < kRows ? all - done : kRows;
      tiles.template take_keys<false>(done, count);
      done += count;
    }
    if (n == 0) break;
    if constexpr (kReads) {
      tiles.begin(i, n);
      const int end = tiles.needs(i + n - 1);
      do {
        const int count = end - done < kRows ? end - done : kRows;
        tiles.template take_keys<true>(done, count);
        done += count;
      } while (done < end);
      tiles.write();
      i += n;
    }
  }
  if (part.store) tiles.store_state(part.store);
}

// S of a head, 64 columns or fewer of it to four warps, which have every fourth 16 rows: as products add to it.  One
// more place of 8 columns has z or what a gradient has there, as the sum of its first two.
template <class T, int kF, int kE, int kColumns>
class RegisterSums : protected Fragments<T> {
  using Base = Fragments<T>;

 protected:
  using Base::g, Base::t;
  static constexpr int kN = kColumns / 8, kM = (kF + 63) / 64;

  __device__ static int first_column() { return warp() / 4 * kColumns; }
  // Calls visit(m, f) for the 16 rows of S from f on that are this warp's m-th.
  template <class Visit>
  __device__ static void for_features(const Visit& visit) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
      if (const int f = (warp() % 4 + 4 * m) * 16; f < kF) visit(m, f);
  }
  __device__ void load_sums(const float* state) {
    for_features([&](int m, int f) {
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          s_[m][n][x] = state ? state[(f + g() + x / 2 * 8) * kE + first_column() + n * 8 + t() * 2 + x % 2] : 0.0f;
#pragma unroll
      for (int x = 0; x < 4; ++x)
        s_[m][kN][x] = state && t() == 0 && x % 2 == 0 ? state[kF * kE + f + g() + x / 2 * 8] : 0.0f;
    });
  }
  __device__ void store_state(float* state) const {
    for_features([&](int m, int f) {
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x)
          state[(f + g() + x / 2 * 8) * kE + first_column() + n * 8 + t() * 2 + x % 2] = s_[m][n][x];
      if (t() == 0 && first_column() == 0)
        for (int x = 0; x < 4; x += 2) state[kF * kE + f + g() + x / 2 * 8] = s_[m][kN][x] + s_[m][kN][x + 1];
    });
  }
  // A place for the largest number of each warp's S, with the last 8 columns or without.
  __device__ void find_most(const Shared<float>& most_of, bool last) const {
    if constexpr (Base::kScales) {
      float most = 0;
      for_features([&](int m, int) {
#pragma unroll
        for (int n = 0; n < kN + (last ? 1 : 0); ++n)
#pragma unroll
          for (int x = 0; x < 4; ++x) most = larger(most, Base::size_of(s_[m][n][x]));
      });
      for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
      if (lane() == 0) most_of[warp()] = most;
    }
  }
  // The power of two by which S is divided before it is rounded.
  template <int kWarps>
  __device__ static float scale_of(const Shared<float>& most_of) {
    if constexpr (!Base::kScales) return 1;
    float most = most_of[0];
    for (int w = 1; w < kWarps; ++w) most = larger(most, most_of[w]);
    return Base::power_of(most);
  }

  float s_[kM][kN + 1][4];
};

template <class Work, int kD>
class RegisterTiles : RegisterSums<typename Work::Type, kD * Work::Map::kFactors, kD, (kD < 64 ? kD : 64)> {
  using Map = typename Work::Map;
  using T = typename Work::Type;
  using Base = RegisterSums<T, kD * Map::kFactors, kD, (kD < 64 ? kD : 64)>;
  using Base::finite_of, Base::first_column, Base::for_features, Base::g, Base::inverse_of, Base::is_finite, Base::kM,
      Base::kN, Base::kScales, Base::s_, Base::store_state, Base::t, Base::weigh, Base::weights_of;
  using typename Base::Weights;
  template <bool kReads, class Tiles>
  friend __device__ void take_tiles(Tiles& tiles, const Part& part);
  static constexpr bool kSplits = Map::kSplits, kUnits = kHasUnits<Map>;
  static constexpr int kFactors = Map::kFactors, kF = kD * kFactors, kE = kD;
  static_assert(!kSplits || kFactors == 1);
  static constexpr int kRows = 64;                    // keys and queries of a tile
  static constexpr int kColumns = kE < 64 ? kE : 64;  // of S, of four warps
  // Rows read together lie in different banks.
  static constexpr int kQRow = kD + 8, kKRow = (kSplits ? 2 : 1) * kF + 8, kVRow = kE + 8;

 public:
  static constexpr int kThreads = 128 * (kE / kColumns);
  static constexpr bool kIsSmall = kF == 64 && !kScales && !kSplits && !kUnits;
  static constexpr int kBlocks = kThreads > 128 ? 1 : kIsSmall ? 3 : 2;
  static constexpr bool kTakesSteps = kThreads == linear::kThreads;

  // Of shared memory, for parts with queries or without.
  static uint64_t bytes(const Sizes& s, bool reads) {
    const uint64_t keys = sizeof(T) * (kRows * 2 * (kKRow + kVRow) + (reads ? 2 : 1) * weights(s.units)) +
                          sizeof(float) * 2 * kRows * kFactors + Turns<Map, kD, true>::bytes(3);
    return keys + (reads ? sizeof(T) * (kRows * kQRow + kF * (kVRow + 8)) + sizeof(float) * 16 : 0);
  }

  template <bool kReads>
  __device__ static void take(const Work& work, const Head& head, const Part& part) {
    RegisterTiles tiles(work, head, part, kReads);
    take_tiles<kReads>(tiles, part);
  }

 private:
  __device__ RegisterTiles(const Work& work, const Head& head, const Part& part, bool reads)
      : w_(work),
        reads_(reads),
        b_(static_cast<int>(head.b)),
        h_(static_cast<int>(head.h)),
        fresh_(static_cast<int>(head.fresh)),
        past_(static_cast<int>(head.past)),
        q_pos_(static_cast<int>(head.q_pos)),
        to_(static_cast<int>(part.to)),
        keys_end_(static_cast<int>(part.keys)) {
    if (part.from < part.to && needs(to_ - 1) > keys_end_) keys_end_ = needs(to_ - 1);
    SharedParts parts;
    k_ = parts.take<T>(2 * kRows * kKRow);
    v_ = parts.take<T>(2 * kRows * kVRow);
    by_ = parts.take<float>(2 * kRows * kFactors);
    turns_.load(w_.map, parts, 3);
    if (reads) {
      q_ = parts.take<T>(kRows * kQRow);
      sums_ = parts.take<T>(kF * kVRow);
      z_ = parts.take<T>(kF * 8);
      most_ = parts.take<float>(16);
    }
    if constexpr (kUnits) {  // last, since its size is not known before: places of others are no registers
      weights_ = parts.take<T>((reads ? 2 : 1) * weights(w_.sizes.units));
      load_weights<false>();
      if (reads) load_weights<true>();
    }
  }

  // As Sight and Head have it, in registers half as wide.
  __device__ int seen(int i) const {
    int n = past_ + fresh_;
    const Lengths& all = w_.call.lengths;
    if (all.visible)
      n = min(n, all.visible[b_ * all.queries + i]);
    else if (all.causal)
      n = min(n, q_pos_ + i + 1);
    return n;
  }
  __device__ int needs(int i) const { return max(seen(i) - past_, 0); }
  // Of the tile that is taken, or asked for.
  __device__ Shared<T> keys() const { return k_ + side_ * kRows * kKRow; }
  __device__ Shared<T> values() const { return v_ + side_ * kRows * kVRow; }
  __device__ int first_query() const { return warp() % 4 * 16; }

  // Weights of units lie in shared memory as two numbers of T, of which the second is what the first leaves.
  __host__ __device__ static int round16(int n) { return (n + 15) / 16 * 16; }
  __host__ __device__ static int weights(int units) { return 2 * round16(units) * kQRow; }
  template <bool kQuery>
  __device__ void load_weights() const {
    const int units = w_.sizes.units, rest = round16(units) * kQRow;
    const Shared<T> to = weights_ + (kQuery ? 2 * rest : 0);
    for (int x = static_cast<int>(threadIdx.x); x < round16(units) * kD; x += kThreads) {
      const int at = x / kD * kQRow + x % kD;
      const float own = x / kD < units ? w_.map.template weight<kQuery>(h_, x / kD, x % kD) : 0.0f;
      const float rounded = widened(narrowed<T>(own));
      to[at] = narrowed<T>(own);
      to[at + rest] = narrowed<T>(is_finite(rounded) ? own - rounded : 0.0f);
    }
  }
  // 16 numbers of this warp's rows, as left operands.
  __device__ void load_numbers(uint32_t (&own)[4], const Shared<T>& rows, int row, int d) const {
    load_matrices<false>(own, rows + ((first_query() + lane() % 16) * row + d * 16 + lane() / 16 * 8));
  }
  // The factors of this lane's two rows, of which the first has a position.
  template <bool kQuery>
  __device__ void find_factors(const Shared<T>& rows, int row, int position, float (&by)[2][kFactors]) const {
    float sum[2] = {};
    if constexpr (kUnits) {
      const int units = w_.sizes.units, rest = round16(units) * kQRow;
      const Shared<T> from =
          weights_ + ((kQuery ? 2 * rest : 0) + (lane() / 16 * 8 + lane() % 8) * kQRow + lane() / 8 % 2 * 8);
#pragma unroll 1
      for (int u = 0; u < units; u += 16) {
        float of[2][4] = {};
#pragma unroll 2
        for (int d = 0; d < kD / 16; ++d) {
          uint32_t a[4];
          load_numbers(a, rows, row, d);
#pragma unroll
          for (int x = 0; x < 4; ++x)
            a[x] = pair_of<T>(w_.map.template feature<kQuery>(half_of<T>(a[x], 0)),
                              w_.map.template feature<kQuery>(half_of<T>(a[x], 1)));
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            uint32_t b[4];
            load_matrices<false>(b, from + (part * rest + u * kQRow + d * 16));
            multiply_add<T>(of[0], a, {b[0], b[1]});
            multiply_add<T>(of[1], a, {b[2], b[3]});
          }
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int own = u + c / 2 * 8 + t() * 2 + c % 2;
#pragma unroll
          for (int r = 0; r < 2; ++r) {  // without a branch, around which loads would wait
            const float given =
                w_.map.template unit<kQuery>(h_, own < units ? own : units - 1, of[c / 2][r * 2 + c % 2]);
            sum[r] += own < units ? given : 0.0f;
          }
        }
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Place at{b_, h_, position + r * 8};
      if constexpr (kUnits) {
        for (int bits = 1; bits < 4; bits *= 2) sum[r] += __shfl_xor_sync(kAll, sum[r], bits);
        w_.map.template factors<kQuery>(at, sum[r], by[r]);
      } else if constexpr (kFactors > 1) {
        w_.map.template factors<kQuery>(at, by[r]);
      }
    }
  }

  __device__ void load_state(const float* state) {
    Base::load_sums(state);
    if (reads_) Base::find_most(most_, true);
  }

  // Begins to copy the rows from `first` on, at most `count`; a row beyond them is the last of them.
  __device__ void ask(const Rows<const T>& from, int first, int count, const Shared<T>& to, int row) const {
    const int last = (count < kRows ? count : kRows) - 1;
    if (w_.call.by_eight) {
      constexpr int kEights = kD / 8, kStep = kThreads / kEights;
      const int own = static_cast<int>(threadIdx.x) / kEights, c = static_cast<int>(threadIdx.x) % kEights * 8;
      const T* const begin = from.at(b_, h_, first) + c;
#pragma unroll 2
      for (int r = own; r < kRows; r += kStep)
        copy_async(to + (r * row + c), begin + (r < last ? r : last) * from.next);
    } else {
      for (int r = warp(); r < kRows; r += kThreads / 32)
        for (int c = lane(); c < kD; c += 32) to[r * row + c] = from.at(b_, h_, first + (r < last ? r : last))[c];
    }
  }
  __device__ void ask_keys(int first) {
    asked_ = true;
    if (first >= keys_end_) return;
    ask(w_.call.k, first, keys_end_ - first, keys(), kKRow);
    ask(w_.call.v, first, keys_end_ - first, values(), kVRow);
    commit_copies();
    turns_.begin(side_, past_ + first);
    if constexpr (kFactors > 1 && !kUnits) {
      if (const int r = static_cast<int>(threadIdx.x); r < kRows) {
        float by[kFactors];
        w_.map.template factors<false>(Place{b_, h_, past_ + first + r}, by);
#pragma unroll
        for (int n = 0; n < kFactors; ++n) by_[(side_ * kRows + r) * kFactors + n] = by[n];
      }
    }
  }
  __device__ void ask_queries(int first) {
    asked_queries_ = true;
    if (first >= to_) return;
    ask(w_.call.q, first, to_ - first, q_, kQRow);
    commit_copies();
    turns_.begin(2, q_pos_ + first);
  }

  __device__ void begin(int i, int n) {
    if (!asked_queries_) ask_queries(i);
    i_ = i;
    n_ = n;
    begun_ = false;
  }

  // n keys from `first` on, perhaps none: S takes them, and where kReads the queries of the last `begin`.
  template <bool kReads>
  __device__ void take_keys(int first, int n) {
    if (n > 0 && !asked_) ask_keys(first);
    wait_for_copies<0>();
    __syncthreads();
    const Shared<T> k = keys(), v = values();
    const bool begins = kReads && !begun_;
    bool odd = false;
    if (n > 0) {
      odd = map_keys<kReads>(k, v, first, n);
      side_ ^= 1;
      ask_keys(first + n);
    }
    float scale = 1;
    if (begins) {
      load_queries();
      scale = Base::template scale_of<kThreads / 32>(most_);
      round_sums(inverse_of(scale));
    }
    const bool is_odd = __syncthreads_or(odd) != 0;
    if constexpr (kReads) {
      if (begins) {
        ask_queries(i_ + n_);
        read_sums(scale);
        begun_ = true;
      }
      if (n > 0) multiply<true>(k, v, first, n, is_odd);
    } else {
      multiply<false>(k, v, first, n, false);
    }
    if (reads_ && n > 0) Base::find_most(most_, true);
  }

  // Features in the place of keys, and zeros in that of those that do not exist.  Returns whether a value of this
  // thread's is infinite or NaN.
  template <bool kReads>
  __device__ bool map_keys(const Shared<T>& k, const Shared<T>& v, int first, int n) const {
    if constexpr (kUnits)
      map_warps_keys(k, first, n);
    else
      map_eights(k, n);
    constexpr int kWide = kE / 8;
    constexpr uint32_t kLeast = std::is_same_v<T, __half> ? 0x04000400u : 0x00800080u;  // carries into the sign's bit
    uint32_t odd = 0;
#pragma unroll 1
    for (int x = static_cast<int>(threadIdx.x); x < kRows * kWide; x += kThreads) {
      const Shared<T> at = v + (x / kWide * kVRow + x % kWide * 8);
      if (x / kWide >= n) {
        as<Eight>(at)[0] = Eight{};
      } else if constexpr (kReads) {
        const Eight own = as<Eight>(at)[0];
#pragma unroll
        for (int p = 0; p < 4; ++p) odd |= ((own.pair[p] & 0x7FFF7FFFu) + kLeast) & 0x80008000u;
      }
    }
    return odd != 0;
  }
  __device__ void map_eights(const Shared<T>& k, int n) const {
    constexpr int kEights = kD / 8;
#pragma unroll 1
    for (int x = static_cast<int>(threadIdx.x); x < kRows * kEights; x += kThreads) {
      const int r = x / kEights, c = x % kEights * 8;
      const Shared<T> at = k + (r * kKRow + c);
      Eight own = as<Eight>(at)[0];
      float number[8];
#pragma unroll
      for (int p = 0; p < 8; ++p)
        number[p] = r < n ? w_.map.template feature<false>(half_of<T>(own.pair[p / 2], p % 2)) : 0.0f;
      if constexpr (kSplits) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const Two pair = turns_.turned(side_, r, c + 2 * p, number[2 * p], number[2 * p + 1]);
          own.pair[p] = pair_of<T>(pair.x, pair.y);
        }
        as<Eight>(at)[0] = own;
      }
#pragma unroll
      for (int turn = 0; turn < kFactors; ++turn) {
        float by = 1;
        if constexpr (kFactors > 1) by = by_[(side_ * kRows + r) * kFactors + turn];
#pragma unroll
        for (int p = 0; p < 4; ++p) own.pair[p] = pair_of<T>(number[2 * p] * by, number[2 * p + 1] * by);
        as<Eight>(at + (kSplits ? kF : turn * kD))[0] = own;
      }
    }
  }
  // The same of a warp's 16 keys, whose factors are made of them.
  __device__ void map_warps_keys(const Shared<T>& k, int first, int n) const {
    float by[2][kFactors];
    find_factors<false>(k, kKRow, past_ + first + first_query() + g(), by);
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      uint32_t own[4];
      load_numbers(own, k, kKRow, d);
      __syncwarp();  // all have read what is written over
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int r = first_query() + g() + x % 2 * 8;
        const float low = w_.map.template feature<false>(half_of<T>(own[x], 0)),
                    high = w_.map.template feature<false>(half_of<T>(own[x], 1));
#pragma unroll
        for (int turn = 0; turn < kFactors; ++turn)
          as<uint32_t>(k + (r * kKRow + turn * kD + d * 16 + x / 2 * 8 + t() * 2))[0] =
              r < n ? pair_of<T>(low * by[x % 2][turn], high * by[x % 2][turn]) : 0;
      }
    }
  }

  // This warp's queries, as left operands.
  __device__ void load_queries() {
    float by[2][kFactors];
    find_factors<true>(q_, kQRow, q_pos_ + i_ + first_query() + g(), by);
#pragma unroll
    for (int d = 0; d < kD / 16; ++d) {
      uint32_t own[4];
      load_numbers(own, q_, kQRow, d);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float low = w_.map.template feature<true>(half_of<T>(own[x], 0)),
                    high = w_.map.template feature<true>(half_of<T>(own[x], 1));
        if constexpr (kSplits) {
          plain_[d][x] = pair_of<T>(low, high);
          const int r = first_query() + g() + x % 2 * 8, f = d * 16 + x / 2 * 8 + t() * 2;
          const Two pair = turns_.turned(2, r, f, low, high);
          a_[d][x] = pair_of<T>(pair.x, pair.y);
        } else {
#pragma unroll
          for (int turn = 0; turn < kFactors; ++turn) {
            const float own_by = kFactors > 1 ? by[x % 2][turn] : 1.0f;
            a_[turn * (kD / 16) + d][x] = pair_of<T>(low * own_by, high * own_by);
          }
        }
      }
    }
  }
  // Of them what goes to z.
  __device__ const uint32_t (&for_z() const)[kF / 16][4] {
    if constexpr (kSplits)
      return plain_;
    else
      return a_;
  }

  // S in T; z in two numbers of T, of which the second is what the first leaves.
  __device__ void round_sums(float by) const {
    for_features([&](int m, int f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = f + g() + half * 8;
#pragma unroll
        for (int n = 0; n < kN; ++n)
          as<uint32_t>(sums_ + (row * kVRow + first_column() + n * 8 + t() * 2))[0] =
              pair_of<T>(s_[m][n][half * 2] * by, s_[m][n][half * 2 + 1] * by);
        if (first_column() > 0) continue;
        const float z = s_[m][kN][half * 2] * by, rounded = widened(narrowed<T>(z));
        as<uint32_t>(z_ + (row * 8 + t() * 2))[0] =
            t() > 0 ? 0 : pair_of<T>(rounded, is_finite(rounded) ? z - rounded : 0.0f);
      }
    });
  }

  // O = A S, and the denominators' share of z; scale: by which S was divided.
  __device__ void read_sums(float scale) {
#pragma unroll
    for (int n = 0; n <= kN; ++n)
#pragma unroll
      for (int x = 0; x < 4; ++x) o_[n][x] = 0;
#pragma unroll
    for (int f = 0; f < kF / 16; ++f) {
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        uint32_t b[4];
        load_matrices<true>(b, sums_ + ((f * 16 + lane() % 16) * kVRow + first_column() + n * 8 + lane() / 16 * 8));
        multiply_add<T>(o_[n], a_[f], {b[0], b[1]});
        multiply_add<T>(o_[n + 1], a_[f], {b[2], b[3]});
      }
      if (f % 2 == 0) {
        uint32_t b[4];
        load_matrices<true>(b, z_ + (f * 16 + lane()) * 8);
        multiply_add<T>(o_[kN], for_z()[f], {b[0], b[1]});
        multiply_add<T>(o_[kN], for_z()[f + 1], {b[2], b[3]});
      }
    }
    if constexpr (kScales)
#pragma unroll
      for (int n = 0; n <= kN; ++n)
#pragma unroll
        for (int x = 0; x < 4; ++x) o_[n][x] *= scale;
  }

  // A B^T of this warp's queries and 16 keys, 0 where the query does not see the key.
  __device__ void scores(const uint32_t (&a)[kF / 16][4], const Shared<T>& k, int j, const int (&limit)[2],
                         float (&p)[2][4]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int x = 0; x < 4; ++x) p[c][x] = 0;
#pragma unroll
    for (int f = 0; f < kF / 16; ++f) {
      uint32_t b[4];
      load_matrices<false>(b, k + ((j + lane() / 16 * 8 + lane() % 8) * kKRow + f * 16 + lane() / 8 % 2 * 8));
      multiply_add<T>(p[0], a[f], {b[0], b[1]});
      multiply_add<T>(p[1], a[f], {b[2], b[3]});
    }
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int x = 0; x < 4; ++x) p[c][x] = j + c * 8 + t() * 2 + x % 2 < limit[x / 2] ? p[c][x] : 0.0f;
  }
  // The keys of the tile that a query of this warp sees; a row beyond the last query is that query.
  __device__ int limit_of(int row, int first) const {
    const int sees = needs(i_ + (row < n_ ? row : n_ - 1)) - first;
    return sees < 0 ? 0 : sees < kRows ? sees : kRows;
  }

  // S += B^T V and, where kReads, O += (A B^T) V.  odd: a value is infinite or NaN.
  template <bool kReads>
  __device__ void multiply(const Shared<T>& k, const Shared<T>& v, int first, int n, bool odd) {
    const uint32_t ones = g() == 0 ? pair_of<T>(1, 1) : 0;  // a column of ones beside zeros
    int limit[2] = {}, most = 0;
    if constexpr (kReads) {
      limit[0] = limit_of(first_query() + g(), first);
      limit[1] = limit_of(first_query() + g() + 8, first);
      most = limit_of(first_query() + 15, first);
    }
#pragma unroll 1
    for (int j = 0; j < kRows; j += 16) {
      if (j >= n) break;
      const bool sees = kReads && j < most;
      Weights weights{};
      if (sees) {
        float p[2][4];
        if constexpr (kSplits) {  // in all four columns of the denominators
          scores(plain_, k + kF, j, limit, p);
#pragma unroll
          for (int x = 0; x < 4; ++x) o_[kN][x] += p[0][x] + p[1][x];
        }
        scores(a_, k, j, limit, p);
        weights = weights_of(p);
      }
      uint32_t keys[kM][4] = {};
      const auto load_keys = [&](int from) {
        for_features([&](int m, int f) {
          load_matrices<true>(keys[m],
                              k + ((j + lane() / 16 * 8 + lane() % 8) * kKRow + from + f + lane() / 8 % 2 * 8));
        });
      };
      load_keys(0);
#pragma unroll
      for (int c = 0; c < kN; c += 2) {
        uint32_t b[4];
        load_matrices<true>(b, v + ((j + lane() % 16) * kVRow + first_column() + c * 8 + lane() / 16 * 8));
        for_features([&](int m, int) {
          multiply_add<T>(s_[m][c], keys[m], {b[0], b[1]});
          multiply_add<T>(s_[m][c + 1], keys[m], {b[2], b[3]});
        });
        if (sees) {
          if (odd)
#pragma unroll
            for (int x = 0; x < 4; ++x) b[x] = pair_of<T>(finite_of(b[x], 0), finite_of(b[x], 1));
          weigh(o_[c], weights, b[0], b[1]);
          weigh(o_[c + 1], weights, b[2], b[3]);
        }
      }
      if (kSplits) load_keys(kF);
      for_features([&](int m, int) { multiply_add<T>(s_[m][kN], keys[m], {ones, ones}); });
      if (sees && !kSplits) weigh(o_[kN], weights, ones, ones);
    }
    if constexpr (kReads)
      if (odd) add_odd_values(k, v, n, limit, most);
  }
  // Adds what infinite values and NaN give the queries that see them.
  __device__ void add_odd_values(const Shared<T>& k, const Shared<T>& v, int n, const int (&limit)[2], int end) {
#pragma unroll 1
    for (int j = 0; j < n && j < end; j += 16) {
      float p[2][4];
      scores(a_, k, j, limit, p);
#pragma unroll
      for (int key = 0; key < 16; ++key) {
        float weight[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          weight[r] = __shfl_sync(kAll, p[key / 8][r * 2 + key % 2], (lane() & ~3) + key % 8 / 2);
#pragma unroll
        for (int c = 0; c < kN; ++c)
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            const int column = first_column() + c * 8 + t() * 2 + x % 2;
            const float value = widened(static_cast<T>(v[(j + key) * kVRow + column]));
            if (!is_finite(value) && j + key < limit[x / 2]) o_[c][x] = fmaf(weight[x / 2], value, o_[c][x]);
          }
      }
    }
  }

  __device__ void write() const {
    float dens[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      dens[r] = o_[kN][r * 2] + o_[kN][r * 2 + 1];
      if constexpr (kSplits)
        for (int bits = 1; bits < 4; bits *= 2) dens[r] += __shfl_xor_sync(kAll, dens[r], bits);
      else
        dens[r] = __shfl_sync(kAll, dens[r], lane() & ~3);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_query() + g() + r * 8;
      if (row >= n_) continue;
      const bool sees = seen(i_ + row) > 0;
      const float by = reciprocal(guarded(dens[r], w_.call.guard, w_.call.eps));
      if (t() == 0 && first_column() == 0) save(w_.call, w_.sizes, Place{b_, h_, 0}, i_ + row, dens[r]);
      T* const to = w_.call.o.at(b_, h_, i_ + row) + first_column() + t() * 2;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint32_t pair = sees ? pair_of<T>(o_[n][r * 2] * by, o_[n][r * 2 + 1] * by) : 0;
        if (w_.call.by_eight) {
          *as<uint32_t>(to + n * 8) = pair;
        } else {
          to[n * 8] = narrowed<T>(half_of<T>(pair, 0));
          to[n * 8 + 1] = narrowed<T>(half_of<T>(pair, 1));
        }
      }
    }
  }

  const Work& w_;
  const bool reads_;                            // has the part queries?
  int b_, h_, fresh_, past_, q_pos_;            // of the Head
  int to_, keys_end_;                           // the ends of what is asked ahead
  bool asked_ = false, asked_queries_ = false;  // have the first been asked for?  Others are, ahead
  int i_ = 0, n_ = 0;                           // queries [i_, i_ + n_)
  int side_ = 0;                                // of the keys that come next
  bool begun_ = false;                          // has O what S gives?
  float o_[kN + 1][4];                          // the denominators in the last place, in two columns
  uint32_t a_[kF / 16][4], plain_[kSplits ? kF / 16 : 1][4];
  Shared<T> q_, k_, v_, sums_, z_, weights_;
  Shared<float> by_, most_;
  Turns<Map, kD, true> turns_;  // of two tiles of keys and one of queries
};

}  // namespace attnkit::cuda::linear
#endif
