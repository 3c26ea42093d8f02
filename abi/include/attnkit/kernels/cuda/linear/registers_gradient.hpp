// Gradients in f16 and bf16 of maps that take the numbers of a row one by one, with sums in registers as registers.hpp
// has them.
//
// With G the gradient of o, d_i = 1 / g(x_i), u_i = [G_i | -g'(x_i) G_i . o_i] and y_j = [v_j | 1] the scans of
// linear/gradient.hpp are
//
//   forward   query i reads   da_i = d_i (u_i S^T)             S = sum b y^T over the keys that it sees
//   reverse   key j reads     db_j = y_j R^T,  dv_j = b_j R    R = sum (d a) u^T over the queries that see it
//
// G and v go into products as they came: nothing of them is rounded, and f16 loses none of its least numbers.  Both
// scans are one, of readers and of sources that come from the end in reverse, 64 at a time of each.  Of two groups of
// four warps each has all readers of a tile, 16 to a warp, and one of their gradients, or half of da: da += (u y^T,
// hidden pairs dropped) b.  In f16 what is a sum of products goes into the next in tf32, and so does d.
//
// A common part of all values cancels in da, which is small then beside u S^T.  So S goes into it as two numbers of T,
// and G . o, of an o that was rounded, is corrected in the end: a . da is known, 0 but for the guard.
//
// Of a map that splits, da and db have two parts: of turned features what G and v make, turned back in the end, and of
// the others what -g'(x) G . o and 1 make; S has turned features and in its last column the others.
//
// Long rows are split as in chunks.hpp; S of the segments is the run's.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_REGISTERS_GRADIENT_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_REGISTERS_GRADIENT_HPP
#include <attnkit/kernels/cuda/linear/registers.hpp>

namespace attnkit::cuda::linear {

// Of a query: d, and the last number of u.
struct alignas(8) OfQuery {
  float inverse, last;
};

template <class R>
struct HalfGradientWork {
  using Run = R;
  using Map = typename R::Map;
  using Type = typename R::Type;
  R run;
  Rows<const Type> given;
  Rows<Type> dq, dk, dv;  // without data where they are skipped
  OfQuery* of_queries;    // [B][H][N]
};

// A team of lanes has a row.
constexpr int kRowThreads = 256;
template <class Work, int kD>
static __global__ void __launch_bounds__(kRowThreads) rows_kernel(const Work work) {
  using T = typename Work::Type;
  constexpr int kTeam = kD / 8, kRows = kRowThreads / kTeam;
  const auto& call = work.run.call;
  const Head head(call.lengths, work.run.sizes.heads);
  const int c = static_cast<int>(threadIdx.x) % kTeam * 8, own = static_cast<int>(threadIdx.x) / kTeam;
  for (int64_t first = int64_t{blockIdx.y} * kRows; first < head.queries; first += int64_t{gridDim.y} * kRows) {
    const int64_t i = first + own < head.queries ? first + own : head.queries - 1;
    const T *const given = work.given.at(head.b, head.h, i) + c, *const o = call.o.at(head.b, head.h, i) + c;
    float product = 0;
    if (call.by_eight) {
      const Eight x = *as<const Eight>(given), y = *as<const Eight>(o);
#pragma unroll
      for (int p = 0; p < 8; ++p)
        product = fmaf(half_of<T>(x.pair[p / 2], p % 2), half_of<T>(y.pair[p / 2], p % 2), product);
    } else {
      for (int p = 0; p < 8; ++p) product = fmaf(widened(given[p]), widened(o[p]), product);
    }
    for (int bits = kTeam / 2; bits > 0; bits /= 2) product += __shfl_xor_sync(kAll, product, bits);
    if (c > 0 || first + own >= head.queries) continue;
    const int64_t row = (head.b * work.run.sizes.heads + head.h) * call.lengths.queries + i;
    const float sum = call.saved[row];
    const bool bites = call.guard == Guard::kClamp && sum < call.eps;
    work.of_queries[row] = {reciprocal(guarded(sum, call.guard, call.eps)), bites ? 0 : -product};
  }
}

// A block's head of a batch row, and what its queries see, in numbers half as wide as Head's.
struct Seen {
  int b, h, queries, fresh, past, q_pos;
  __device__ static Seen of(const Head& head) {
    return {static_cast<int>(head.b),     static_cast<int>(head.h),    static_cast<int>(head.queries),
            static_cast<int>(head.fresh), static_cast<int>(head.past), static_cast<int>(head.q_pos)};
  }
  // Keys that query i sees.
  __device__ int needs(const Lengths& l, int i) const {
    int n = fresh;
    if (l.visible)
      n = min(n, l.visible[b * l.queries + i] - past);
    else if (l.causal)
      n = min(n, q_pos + i + 1 - past);
    return max(n, 0);
  }
  // The first query that sees key j, as all behind it do.
  __device__ int first(const Lengths& l, int j) const {
    if (!l.visible) return l.causal ? min(max(j + past - q_pos, 0), queries) : 0;
    int from = 0, to = queries;
    while (from < to) {
      const int middle = (from + to) / 2;
      if (needs(l, middle) > j)
        to = middle;
      else
        from = middle + 1;
    }
    return from;
  }
  // Keys that a query sees.
  __device__ int top(const Lengths& l) const { return queries > 0 ? needs(l, queries - 1) : 0; }
};

// A head from its end: the keys that a query sees are in the place of its queries, and these in the place of keys.
struct Reversed : Head {
  const Lengths& lengths;
  int64_t queries, fresh, most;
  __device__ Reversed(const Lengths& l, int heads)
      : Head(l, heads), lengths(l), queries(Seen::of(*this).top(l)), fresh(Head::queries), most(l.queries) {}
  __device__ int64_t needs(int64_t reader) const {
    return fresh - Seen::of(*this).first(lengths, static_cast<int>(queries - 1 - reader));
  }
};

template <class Work, int kD, bool kForward>
class RegisterScan : RegisterSums<typename Work::Type, kD * Work::Map::kFactors, kD, kD / 2> {
  using Map = typename Work::Map;
  using T = typename Work::Type;
  using Order = std::conditional_t<kForward, Head, Reversed>;
  using Base = RegisterSums<T, kD * Map::kFactors, kD, kD / 2>;
  using Base::finite_of, Base::first_column, Base::for_features, Base::g, Base::inverse_of, Base::is_finite, Base::kM,
      Base::kN, Base::kScales, Base::s_, Base::store_state, Base::t, Base::weigh, Base::weights_of;
  using typename Base::Weights;
  template <bool kReads, class Tiles>
  friend __device__ void take_tiles(Tiles& tiles, const Part& part);
  static constexpr bool kSplits = Map::kSplits;
  static constexpr int kFactors = Map::kFactors, kF = kD * kFactors, kE = kD;
  static constexpr int kParts = kSplits ? 2 : kFactors;  // of features in a row; of what splits the second is for z
  static constexpr int kRows = 64;                       // readers and sources of a tile
  static constexpr int kOwn = kForward ? kD / 2 : kD;    // numbers of a reader's x whose gradient a warp has
  static constexpr int kXRow = kD * kParts + 8, kYRow = kE + 8;  // rows read together lie in different banks
  static constexpr bool kInverts = !kForward && kScales;         // are sources multiplied by d on the way?
  static constexpr bool kHasFactors = kFactors > 1 || (!kForward && !kScales);

 public:
  static constexpr int kThreads = 256, kBlocks = kD * kParts > 64 ? 1 : 2;

  static constexpr uint64_t bytes() {
    return sizeof(T) *
               (2 * kRows * (kXRow + kYRow) + (kForward ? 3 : 4) * kRows * kYRow + (kForward ? 2 : 1) * kF * kYRow) +
           sizeof(float) * (kF + 2 * kRows * kFactors + 16) + (sizeof(OfQuery) + sizeof(Two)) * 2 * kRows + 32 +
           Turns<Map, kD, kForward>::bytes(4);
  }

  template <bool kReads>
  __device__ static void take(const Work& work, const Order& head, const Part& part) {
    RegisterScan tiles(work, head, part);
    tiles.ask_sources(static_cast<int>(part.done));
    if (kReads) tiles.ask_readers(static_cast<int>(part.from));
    take_tiles<kReads>(tiles, part);
  }

 private:
  // Features and what belongs to them, of readers or of sources; of a query: those of sources.
  struct Sources {
    Shared<T> x, y;
    Shared<OfQuery> of;
  };

  __device__ RegisterScan(const Work& work, const Order& head, const Part& part)
      : w_(work), to_(static_cast<int>(part.to)), sources_end_(static_cast<int>(part.keys)) {
    SharedParts parts;
    from_x_ = parts.take<T>(2 * kRows * kXRow);
    from_y_ = parts.take<T>(2 * kRows * kYRow);
    x_ = parts.take<T>(2 * kRows * kYRow);
    y_ = parts.take<T>(kRows * kYRow);
    if (!kForward) values_ = parts.take<T>(kRows * kYRow);
    sums_ = parts.take<T>(kF * kYRow);
    if (kForward) rest_ = parts.take<T>(kF * kYRow);
    z_ = parts.take<float>(kF);
    by_ = parts.take<float>(2 * kRows * kFactors);
    most_ = parts.take<float>(16);
    of_ = parts.take<OfQuery>(2 * kRows);
    if (kForward) dots_ = parts.take<Two>(2 * kRows);
    turns_.load(w_.run.map, parts, 4);
    seen_ = parts.take<Seen>(1);
    if (threadIdx.x == 0) seen_[0] = Seen::of(head);
    __syncthreads();
    if (part.from < part.to && needs(to_ - 1) > sources_end_) sources_end_ = needs(to_ - 1);
  }
  __device__ const Lengths& lengths() const { return w_.run.call.lengths; }
  // From shared memory, since what is made of registers, such as addresses of tensors, would stay in more of them.
  __device__ Seen seen() const { return seen_[0]; }

  // The place in its sequence of a reader, or a source.
  template <bool kReader>
  __device__ int index(const Seen& seen, int i) const {
    return kForward ? i : (kReader ? seen.top(lengths()) : seen.queries) - 1 - i;
  }
  template <bool kReader>
  __device__ Place place(int i) const {
    const Seen s = seen();
    return Place{s.b, s.h, (kReader == kForward ? s.q_pos : s.past) + index<kReader>(s, i)};
  }
  // Sources that a reader sees.
  __device__ int needs(int reader) const {
    const Seen s = seen();
    return kForward ? s.needs(lengths(), reader) : s.queries - s.first(lengths(), index<true>(s, reader));
  }
  __device__ OfQuery of_query(int i) const { return w_.of_queries[blockIdx.x * lengths().queries + i]; }
  // Of the tile that is taken, or asked for.
  __device__ Sources sources() const {
    return {from_x_ + side_ * kRows * kXRow, from_y_ + side_ * kRows * kYRow, of_ + side_ * kRows};
  }
  __device__ Shared<T> readers() const { return x_ + reader_side_ * kRows * kYRow; }
  __device__ static int group() { return warp() / 4; }
  __device__ static int first_reader() { return warp() % 4 * 16; }
  // Calls visit(are this warp's gradients those of features?).
  template <class Visit>
  __device__ static void for_group(const Visit& visit) {
    if constexpr (kForward)
      visit(std::true_type{});
    else if (group() == 0)
      visit(std::true_type{});
    else
      visit(std::false_type{});
  }
  // The eights of gradients that a warp has of a reader, and the numbers of it that go into products.
  template <class OfX>
  static constexpr int kWide = std::is_same_v<OfX, std::false_type> ? kE / 8 : kOwn / 8 * kParts;
  template <class OfX>
  static constexpr int kDepth = std::is_same_v<OfX, std::false_type> ? kF : kE;
  template <class OfX>
  __device__ static int column(OfX, int n) {
    if (!kForward) return n * 8;
    return n / (kOwn / 8) * kD + group() * kOwn + n % (kOwn / 8) * 8;
  }

  // Are the n-th eight gradients of a reader's features those of features for z alone?
  template <class OfX>
  __device__ static bool is_for_z(OfX, int n) {
    return kSplits && OfX::value && n >= kOwn / 8;
  }
  // Of S's last column, for the n-th eight.
  template <class OfX>
  __device__ Two z(OfX of_x, int n) const {
    if (!OfX::value || (kSplits && !is_for_z(of_x, n))) return {0, 0};
    return as<Two>(z_ + (column(of_x, n) - (kSplits ? kD : 0) + t() * 2))[0];
  }

  __device__ void load_state(const float* state) {
    Base::load_sums(state);
    Base::find_most(most_, false);
  }

  // Begins to copy the rows of `count` readers or sources from `first` on; a row beyond them is the last of them.
  template <bool kReader>
  __device__ void ask(const Rows<const T>& from, int first, int count, const Shared<T>& to, int row) const {
    const int last = (count < kRows ? count : kRows) - 1;
    const Seen s = seen();
    const T* const begin = from.at(s.b, s.h, index<kReader>(s, first));
    const int64_t next = kForward ? from.next : -from.next;
    if (w_.run.call.by_eight) {
      constexpr int kEights = kD / 8, kStep = kThreads / kEights;
      const int own = static_cast<int>(threadIdx.x) / kEights, c = static_cast<int>(threadIdx.x) % kEights * 8;
#pragma unroll 1
      for (int r = own; r < kRows; r += kStep) copy_async(to + (r * row + c), begin + c + (r < last ? r : last) * next);
    } else {
      for (int r = warp(); r < kRows; r += kThreads / 32)
        for (int c = lane(); c < kD; c += 32) to[r * row + c] = begin[(r < last ? r : last) * next + c];
    }
  }
  __device__ void ask_sources(int first) {
    const int n = sources_end_ - first;
    if (n <= 0) return;
    const Sources to = sources();
    ask<false>(kForward ? w_.run.call.k : w_.run.call.q, first, n, to.x, kXRow);
    ask<false>(kForward ? w_.run.call.v : w_.given, first, n, to.y, kYRow);
    commit_copies();
    if constexpr (kSplits) turns_.begin(side_, place<false>(first).position);
    if constexpr (!kForward)
      if (const int r = static_cast<int>(threadIdx.x); r < kRows)
        ahead_[0] = of_query(index<false>(seen(), first + (r < n ? r : n - 1)));
  }
  __device__ void ask_readers(int first) {
    const int n = to_ - first;
    if (n <= 0) return;
    ask<true>(kForward ? w_.run.call.q : w_.run.call.k, first, n, readers(), kYRow);
    ask<true>(kForward ? w_.given : w_.run.call.v, first, n, y_, kYRow);
    commit_copies();
    if constexpr (kSplits) turns_.begin(2 + reader_side_, place<true>(first).position);
    if constexpr (kForward)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = first_reader() + g() + r * 8;
        ahead_[r] = of_query(first + (row < n ? row : n - 1));
      }
  }
  // Numbers of the n sources that were asked for, zeros of rows behind them.
  __device__ void place_numbers(int first, int n) const {
    const int r = static_cast<int>(threadIdx.x);
    if (r >= kRows) return;
    const OfQuery of = !kForward && r < n ? ahead_[0] : OfQuery{0, 0};
    if constexpr (!kForward) of_[side_ * kRows + r] = of;
    if constexpr (kHasFactors) {
      float by[kFactors] = {1};
      if constexpr (kFactors > 1) w_.run.map.template factors<!kForward>(place<false>(first + r), by);
#pragma unroll
      for (int turn = 0; turn < kFactors; ++turn)
        by_[(side_ * kRows + r) * kFactors + turn] = kForward || kScales ? by[turn] : by[turn] * of.inverse;
    }
  }

  __device__ void begin(int i, int n) {
    i_ = i;
    n_ = n;
    begun_ = false;
  }

  // n sources from `first` on, perhaps none: S takes them, and where kReads the readers of the last `begin`.
  template <bool kReads>
  __device__ void take_keys(int first, int n) {
    if (n > 0) place_numbers(first, n);
    wait_for_copies<0>();
    __syncthreads();
    const Sources from = sources();
    const bool begins = kReads && !begun_;
    bool odd = false;
    if (n > 0) {
      odd = map_sources<kReads>(from, n);
      side_ ^= 1;
      ask_sources(first + n);
    }
    float scale = 1;
    if (begins) {
      for_group([&](auto of_x) { load_readers(of_x); });
      scale = Base::template scale_of<kThreads / 32>(most_);
      round_sums(inverse_of(scale));
    }
    const bool is_odd = __syncthreads_or(odd) != 0;
    if constexpr (kReads)
      if (begins) {
        reader_side_ ^= 1;
        ask_readers(i_ + n_);
        for_group([&](auto of_x) { read_sums(of_x, scale); });
        begun_ = true;
      }
    if (n > 0) multiply<kReads>(from, first, n, is_odd);
    if (n > 0) Base::find_most(most_, false);
  }

  // Features in the place of rows, and zeros in that of those that do not exist.  Returns whether a number of this
  // thread's is infinite or NaN.
  template <bool kReads>
  __device__ bool map_sources(const Sources& from, int n) const {
    constexpr int kEights = kD / 8;
    uint32_t odd = 0;
#pragma unroll 1
    for (int x = static_cast<int>(threadIdx.x); x < kRows * kEights; x += kThreads) {
      const int r = x / kEights, c = x % kEights * 8;
      const Shared<T> at = from.x + (r * kXRow + c);
      Eight own = as<Eight>(at)[0];
      float number[8];
#pragma unroll
      for (int p = 0; p < 8; ++p)
        number[p] = r < n ? w_.run.map.template feature<!kForward>(half_of<T>(own.pair[p / 2], p % 2)) : 0.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float by = 1;
        if constexpr (kHasFactors) by = by_[(side_ * kRows + r) * kFactors + (kSplits ? 0 : part)];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          Two pair{number[2 * p], number[2 * p + 1]};
          if constexpr (kSplits)
            if (part == 0) pair = turns_.turned(side_, r, c + 2 * p, pair.x, pair.y);
          own.pair[p] = pair_of<T>(pair.x * by, pair.y * by);
        }
        if (kReads) odd |= odd_of(own);
        as<Eight>(at + part * kD)[0] = own;
      }
      const Shared<T> value = from.y + (r * kYRow + c);
      if (r >= n)
        as<Eight>(value)[0] = Eight{};
      else if (kReads && !kForward)
        odd |= odd_of(as<Eight>(value)[0]);
    }
    return odd != 0;
  }
  __device__ static uint32_t odd_of(const Eight& own) {
    constexpr uint32_t kLeast = std::is_same_v<T, __half> ? 0x04000400u : 0x00800080u;  // carries into the sign's bit
    uint32_t odd = 0;
#pragma unroll
    for (int p = 0; p < 4; ++p) odd |= ((own.pair[p] & 0x7FFF7FFFu) + kLeast) & 0x80008000u;
    return odd;
  }

  // This warp's readers, as left operands: u or y, or b.
  template <class OfX>
  __device__ void load_readers(OfX) {
    if constexpr (kForward)
#pragma unroll
      for (int r = 0; r < 2; ++r) own_[r] = ahead_[r];
    const int at = (first_reader() + lane() % 16) * kYRow + lane() / 16 * 8;
    if constexpr (OfX::value) {
#pragma unroll
      for (int d = 0; d < kE / 16; ++d) load_matrices<false>(left_[d], y_ + (at + d * 16));
    } else {
      float by[2][kFactors];
      if constexpr (kFactors > 1)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          w_.run.map.template factors<kForward>(place<true>(i_ + first_reader() + g() + r * 8), by[r]);
#pragma unroll
      for (int d = 0; d < kD / 16; ++d) {
        uint32_t own[4];
        load_matrices<false>(own, readers() + (at + d * 16));
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float low = w_.run.map.template feature<kForward>(half_of<T>(own[x], 0)),
                      high = w_.run.map.template feature<kForward>(half_of<T>(own[x], 1));
          if constexpr (kSplits) {
            const Two pair = turns_.turned(2 + reader_side_, first_reader() + g() + x % 2 * 8,
                                           d * 16 + x / 2 * 8 + t() * 2, low, high);
            left_[d][x] = pair_of<T>(pair.x, pair.y);
          } else {
#pragma unroll
            for (int turn = 0; turn < kFactors; ++turn) {
              const float own_by = kFactors > 1 ? by[x % 2][turn] : 1.0f;
              left_[turn * (kD / 16) + d][x] = pair_of<T>(low * own_by, high * own_by);
            }
          }
        }
      }
    }
  }

  // S in T, forward in two numbers of T of which the second is what the first leaves, and its last column as it is.
  __device__ void round_sums(float by) const {
    for_features([&](int m, int f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = f + g() + half * 8;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const int at = row * kYRow + first_column() + n * 8 + t() * 2;
          const float low = s_[m][n][half * 2] * by, high = s_[m][n][half * 2 + 1] * by;
          const uint32_t pair = pair_of<T>(low, high);
          as<uint32_t>(sums_ + at)[0] = pair;
          if constexpr (kForward)
            as<uint32_t>(rest_ + at)[0] = pair_of<T>(low - finite_of(pair, 0), high - finite_of(pair, 1));
        }
        if (group() == 0 && t() == 0) z_[row] = s_[m][kN][half * 2] + s_[m][kN][half * 2 + 1];
      }
    });
  }

  // O = what readers find in S; scale: by which it was divided.
  template <class OfX>
  __device__ void read_sums(OfX of_x, float scale) {
#pragma unroll
    for (int n = 0; n < kWide<OfX>; n += 2) {
#pragma unroll
      for (int x = 0; x < 4; ++x) o_[n][x] = o_[n + 1][x] = 0;
#pragma unroll
      for (int d = 0; d < (is_for_z(of_x, n) ? 0 : kDepth<OfX> / 16); ++d) {
        uint32_t b[4];
        const int at = (column(of_x, n) + lane() / 16 * 8 + lane() % 8) * kYRow + d * 16 + lane() / 8 % 2 * 8;
        if constexpr (kForward) {
          load_matrices<false>(b, rest_ + at);
          multiply_add<T>(o_[n], left_[d], {b[0], b[1]});
          multiply_add<T>(o_[n + 1], left_[d], {b[2], b[3]});
        }
        if constexpr (OfX::value)
          load_matrices<false>(b, sums_ + at);
        else
          load_matrices<true>(b, sums_ + ((d * 16 + lane() % 16) * kYRow + column(of_x, n) + lane() / 16 * 8));
        multiply_add<T>(o_[n], left_[d], {b[0], b[1]});
        multiply_add<T>(o_[n + 1], left_[d], {b[2], b[3]});
      }
    }
#pragma unroll
    for (int n = 0; n < kWide<OfX>; ++n) {
      const Two own = z(of_x, n);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const float last = x % 2 ? own.y : own.x;
        o_[n][x] = kScales ? o_[n][x] * scale : o_[n][x];
        o_[n][x] = kForward ? fmaf(own_[x / 2].last, last, o_[n][x]) : o_[n][x] + last;
      }
    }
  }

  // Products of this warp's readers and 16 sources, 0 where the reader does not see the source.
  template <class OfX>
  __device__ void scores(OfX, const Sources& from, int j, const int (&limit)[2], float (&p)[2][4]) const {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int x = 0; x < 4; ++x) p[c][x] = 0;
#pragma unroll
    for (int d = 0; d < kDepth<OfX> / 16; ++d) {
      uint32_t b[4];
      const int row = j + lane() / 16 * 8 + lane() % 8, c = d * 16 + lane() / 8 % 2 * 8;
      load_matrices<false>(b, OfX::value ? from.y + (row * kYRow + c) : from.x + (row * kXRow + c));
      multiply_add<T>(p[0], left_[d], {b[0], b[1]});
      multiply_add<T>(p[1], left_[d], {b[2], b[3]});
    }
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int y = 0; y < 2; ++y) {
        const int source = j + c * 8 + t() * 2 + y;
        const OfQuery of = of_source(from, j, c * 2 + y);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float& own = p[c][r * 2 + y];
          if (OfX::value && !kSplits) own += kForward ? own_[r].last : of.last;
          if (kInverts) own *= of.inverse;
          own = source < limit[r] ? own : 0.0f;
        }
      }
  }
  // The sources of the tile that a reader of this warp sees; a row beyond the last reader is that reader.
  __device__ int limit_of(int row, int first) const {
    const int sees = needs(i_ + (row < n_ ? row : n_ - 1)) - first;
    return sees < 0 ? 0 : sees < kRows ? sees : kRows;
  }

  // S takes the sources and, where kReads, the readers what they see of them.  odd: a number is infinite or NaN.
  template <bool kReads>
  __device__ void multiply(const Sources& from, int first, int n, bool odd) {
    int limit[2] = {}, most = 0;
    if constexpr (kReads) {
      limit[0] = limit_of(first_reader() + g(), first);
      limit[1] = limit_of(first_reader() + g() + 8, first);
      most = limit_of(first_reader() + 15, first);
    }
#pragma unroll 1
    for (int j = 0; j < kRows; j += 16) {
      if (j >= n) break;
      if constexpr (kReads)
        if (j < most) for_group([&](auto of_x) { read(of_x, from, j, limit, odd); });
      sum(from, j);
    }
  }

  template <class OfX>
  __device__ void read(OfX of_x, const Sources& from, int j, const int (&limit)[2], bool odd) {
    constexpr int kMost = kWide<OfX> / (kSplits && OfX::value ? 2 : 1);
    float p[2][4];
    scores(of_x, from, j, limit, p);
    take<0, kMost>(of_x, from, j, limit, odd, p);
    if constexpr (kMost < kWide<OfX>) {
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int source = j + x / 4 * 8 + t() * 2 + x % 2, r = x % 4 / 2;
        const OfQuery of = of_source(from, j, x / 4 * 2 + x % 2);
        const float own = kForward ? own_[r].last : kInverts ? of.last * of.inverse : of.last;
        p[x / 4][x % 4] = source < limit[r] ? own : 0.0f;
      }
      take<kMost, kWide<OfX>>(of_x, from, j, limit, odd, p);
    }
  }
  // O += p times 16 sources, of eights from kFirst to kEnd.
  template <int kFirst, int kEnd, class OfX>
  __device__ void take(OfX of_x, const Sources& from, int j, const int (&limit)[2], bool odd, const float (&p)[2][4]) {
    if (odd) add_odd<kFirst, kEnd>(of_x, from, j, limit, p);
    const Weights weights = weights_of(p);
#pragma unroll
    for (int c = kFirst; c < kEnd; c += 2) {
      uint32_t b[4];
      const int row = j + lane() % 16, at = column(of_x, c) + lane() / 16 * 8;
      load_matrices<true>(b, OfX::value ? from.x + (row * kXRow + at) : from.y + (row * kYRow + at));
      if (odd)
#pragma unroll
        for (int x = 0; x < 4; ++x) b[x] = pair_of<T>(finite_of(b[x], 0), finite_of(b[x], 1));
      weigh(o_[c], weights, b[0], b[1]);
      weigh(o_[c + 1], weights, b[2], b[3]);
    }
  }

  // Adds what infinite numbers and NaN give the readers that see them.
  template <int kFirst, int kEnd, class OfX>
  __device__ void add_odd(OfX of_x, const Sources& from, int j, const int (&limit)[2], const float (&p)[2][4]) {
#pragma unroll 1
    for (int source = 0; source < 16; ++source) {
      float weight[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float low = source % 2 ? p[0][r * 2 + 1] : p[0][r * 2], high = source % 2 ? p[1][r * 2 + 1] : p[1][r * 2];
        weight[r] = __shfl_sync(kAll, source < 8 ? low : high, (lane() & ~3) + source % 8 / 2);
      }
      const int row = j + source;
#pragma unroll
      for (int c = kFirst; c < kEnd; ++c)
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const int at = column(of_x, c) + t() * 2 + x % 2;
          const float value = widened(static_cast<T>(OfX::value ? from.x[row * kXRow + at] : from.y[row * kYRow + at]));
          if (!is_finite(value) && row < limit[x / 2]) o_[c][x] = fmaf(weight[x / 2], value, o_[c][x]);
        }
    }
  }

  // S += x^T y of 16 sources.
  __device__ void sum(const Sources& from, int j) {
    using Left = std::conditional_t<kInverts, Weights, uint32_t[4]>;
    Left left[kM];
    const auto load = [&](int part) {
      for_features([&](int m, int f) {
        uint32_t own[4];
        load_matrices<true>(own, from.x + ((j + lane() / 16 * 8 + lane() % 8) * kXRow + part + f + lane() / 8 % 2 * 8));
        if constexpr (kInverts) {
          float p[2][4];
#pragma unroll
          for (int c = 0; c < 2; ++c)
#pragma unroll
            for (int x = 0; x < 4; ++x)
              p[c][x] = half_of<T>(own[c * 2 + x / 2], x % 2) * of_source(from, j, c * 2 + x % 2).inverse;
          left[m] = weights_of(p);
        } else {
#pragma unroll
          for (int x = 0; x < 4; ++x) left[m][x] = own[x];
        }
      });
    };
    load(0);
#pragma unroll
    for (int c = 0; c < kN; c += 2) {
      uint32_t b[4];
      load_matrices<true>(b, from.y + ((j + lane() % 16) * kYRow + first_column() + c * 8 + lane() / 16 * 8));
      for_features([&](int m, int) {
        if constexpr (kInverts) {
          weigh(s_[m][c], left[m], b[0], b[1]);
          weigh(s_[m][c + 1], left[m], b[2], b[3]);
        } else {
          multiply_add<T>(s_[m][c], left[m], {b[0], b[1]});
          multiply_add<T>(s_[m][c + 1], left[m], {b[2], b[3]});
        }
      });
    }
    if (group() > 0) return;
    if (kSplits) load(kD);
    float last[4];  // in two columns, of which the second is what the first leaves
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      const float own = of_source(from, j, x).last, high = kScales ? as_tf32(own) : widened(narrowed<T>(own));
      last[x] = g() == 0 ? high : g() == 1 ? own - high : 0;
    }
    for_features([&](int m, int) {
      if constexpr (kInverts) {
        multiply_add(s_[m][kN], left[m].of[0], {as_tf32(last[0]), as_tf32(last[1])});
        multiply_add(s_[m][kN], left[m].of[1], {as_tf32(last[2]), as_tf32(last[3])});
      } else {
        multiply_add<T>(s_[m][kN], left[m], {pair_of<T>(last[0], last[1]), pair_of<T>(last[2], last[3])});
      }
    });
  }
  // Of the x-th of the four sources, of 16 from j on, that a lane has on a side of a product.
  __device__ static OfQuery of_source(const Sources& from, int j, int x) {
    if constexpr (kForward) return {1, 1};
    return from.of[j + x / 2 * 8 + t() * 2 + x % 2];
  }

  // Corrects da by what a . da, times g, is off, as if all of it were of -G . o and of keys that are in S.
  __device__ void balance() {
    const auto& call = w_.run.call;
    const Shared<T> rows = x_ + (reader_side_ ^ 1) * kRows * kYRow;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_reader() + g() + r * 8;
      float by[kFactors] = {1};
      if constexpr (kFactors > 1) w_.run.map.template factors<true>(place<true>(i_ + row), by);
      Two own{0, 0};
#pragma unroll
      for (int n = 0; n < kWide<std::true_type>; ++n) {
        const int c = column(std::true_type{}, n) % kD + t() * 2;
        const uint32_t pair = as<uint32_t>(rows + (row * kYRow + c))[0];
        Two a{w_.run.map.template feature<true>(half_of<T>(pair, 0)),
              w_.run.map.template feature<true>(half_of<T>(pair, 1))};
        if constexpr (kFactors > 1) {
          a.x *= by[n / (kOwn / 8)];
          a.y *= by[n / (kOwn / 8)];
        }
        if constexpr (kSplits)
          if (!is_for_z(std::true_type{}, n)) a = turns_.turned(2 + (reader_side_ ^ 1), row, c, a.x, a.y);
        const Two seen = z(std::true_type{}, n);
        own.x = fmaf(a.y, o_[n][r * 2 + 1], fmaf(a.x, o_[n][r * 2], own.x));
        own.y = fmaf(a.y, seen.y, fmaf(a.x, seen.x, own.y));
      }
      for (int bits = 1; bits < 4; bits *= 2) {
        own.x += __shfl_xor_sync(kAll, own.x, bits);
        own.y += __shfl_xor_sync(kAll, own.y, bits);
      }
      if (t() == 0) dots_[group() * kRows + row] = own;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_reader() + g() + r * 8;
      const Two one = dots_[row], other = dots_[kRows + row];
      const float own = one.x + other.x, seen = one.y + other.y, inverse = own_[r].inverse;
      float expected = 0;
      if (call.guard == Guard::kAdd) expected = call.eps * (own * inverse - own_[r].last * (1 - call.eps * inverse));
      const bool bites = call.guard == Guard::kClamp && inverse == reciprocal(call.eps);
      if (bites || !(seen * inverse >= 0.5f)) continue;  // too few of the keys
      const float by = quotient(expected - own, seen);
#pragma unroll
      for (int n = 0; n < kWide<std::true_type>; ++n) {
        const Two own_z = z(std::true_type{}, n);
        o_[n][r * 2] = fmaf(by, own_z.x, o_[n][r * 2]);
        o_[n][r * 2 + 1] = fmaf(by, own_z.y, o_[n][r * 2 + 1]);
      }
    }
  }

  // The gradients of this warp's readers, in shared memory first, those of features in the place of the rows.
  __device__ void write() {
    if constexpr (kForward) balance();
    for_group([&](auto of_x) { write_rows(of_x); });
  }
  template <class OfX>
  __device__ void write_rows(OfX of_x) const {
    const Rows<T>& to = kForward ? w_.dq : OfX::value ? w_.dk : w_.dv;
    if (!to.data) return;
    const Shared<T> rows = OfX::value ? x_ + (reader_side_ ^ 1) * kRows * kYRow : values_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_reader() + g() + r * 8;
      float by[kFactors] = {1};
      if constexpr (OfX::value && kFactors > 1) w_.run.map.template factors<kForward>(place<true>(i_ + row), by);
      const bool sees = needs(i_ + (row < n_ ? row : n_ - 1)) > 0;
#pragma unroll
      for (int c = 0; c < kOwn / 8; ++c) {
        const Shared<uint32_t> at = as<uint32_t>(rows + (row * kYRow + column(of_x, c) + t() * 2));
        float own[2] = {o_[c][r * 2], o_[c][r * 2 + 1]};
        if constexpr (OfX::value && kSplits) {
          const Two back = turns_.turned_back(2 + (reader_side_ ^ 1), row, column(of_x, c) + t() * 2, own[0], own[1]);
          own[0] = back.x + o_[kOwn / 8 + c][r * 2];
          own[1] = back.y + o_[kOwn / 8 + c][r * 2 + 1];
        }
#pragma unroll
        for (int x = 0; x < 2; ++x) {
          if constexpr (OfX::value) {
            if constexpr (kFactors > 1) own[x] *= by[0];
#pragma unroll
            for (int turn = 1; turn < kFactors; ++turn)
              own[x] = fmaf(by[turn], o_[turn * (kOwn / 8) + c][r * 2 + x], own[x]);
            if constexpr (kForward) own[x] *= own_[r].inverse;
            own[x] = w_.run.map.template back<kForward>(half_of<T>(at[0], x), own[x]);
          }
        }
        at[0] = sees ? pair_of<T>(own[0], own[1]) : 0;
      }
    }
    __syncwarp();
    const Seen s = seen();
    constexpr int kEights = kOwn / 8;
#pragma unroll 1
    for (int x = lane(); x < 16 * kEights; x += 32) {
      const int row = first_reader() + x / kEights, c = column(of_x, x % kEights);
      if (row >= n_) continue;
      const Shared<T> from = rows + (row * kYRow + c);
      T* const at = to.at(s.b, s.h, index<true>(s, i_ + row)) + c;
      if (w_.run.call.by_eight)
        *as<Eight>(at) = as<Eight>(from)[0];
      else
        for (int p = 0; p < 8; ++p) at[p] = from[p];
    }
  }

  const Work& w_;
  int to_, sources_end_;                                            // the ends of what is asked ahead
  int i_ = 0, n_ = 0;                                               // readers [i_, i_ + n_)
  int side_ = 0, reader_side_ = 0;                                  // of those that come next
  bool begun_ = false;                                              // has O what S gives?
  OfQuery ahead_[2] = {}, own_[2] = {};                             // of queries that come, and of those that read
  float o_[kForward ? kWide<std::true_type> : kD * kParts / 8][4];  // the gradients of this warp's readers
  uint32_t left_[(kForward ? kE : kF) / 16][4];
  Shared<T> from_x_, from_y_, x_, y_, values_, sums_, rest_;
  Shared<float> z_, by_, most_;
  Shared<OfQuery> of_;
  Shared<Two> dots_;  // by group and reader: a . da and a . z
  Shared<Seen> seen_;
  Turns<Map, kD, kForward> turns_;  // of two tiles of sources, then of readers
};

template <class T>
__device__ void clear_rows(const Rows<T>& rows, int width, const Head& head, int64_t from, int64_t to) {
  if (!rows.data) return;
  for (int64_t i = from + warp(); i < to; i += blockDim.x / 32)
    for (int c = lane(); c < width; c += 32) rows.at(head.b, head.h, i)[c] = narrowed<T>(0);
}

// A block per head and segment of readers.
template <class Work, int kD, bool kForward>
static __global__ void __launch_bounds__(RegisterScan<Work, kD, kForward>::kThreads,
                                         RegisterScan<Work, kD, kForward>::kBlocks) scan_kernel(const Work work) {
  using Order = std::conditional_t<kForward, Head, Reversed>;
  const auto& call = work.run.call;
  const Order head(call.lengths, work.run.sizes.heads);
  const Segments segments(call, work.run.sizes, head);
  const int64_t from = blockIdx.y * kRowSegment;
  int64_t end = kForward ? call.lengths.queries : call.lengths.keys;
  Part part{from, head.queries, 0, 0, nullptr, nullptr};
  if (segments.any()) {
    if (end > from + kRowSegment) end = from + kRowSegment;
    if (part.to > end) part.to = end;
    const int64_t before = from < part.to ? segments.before(from) : 0;
    part.begun = segments.sums(before);
    part.done = before * kRowSegment < head.fresh ? before * kRowSegment : head.fresh;
  } else if (from > 0) {
    return;
  }
  const int64_t rest = from < head.queries ? head.queries : from;
  if constexpr (kForward) {
    clear_rows(work.dq, kD, head, rest, end);
  } else {
    clear_rows(work.dk, kD, head, rest, end);
    clear_rows(work.dv, kD, head, rest, end);
  }
  if (from < part.to) RegisterScan<Work, kD, kForward>::template take<true>(work, head, part);
}

// A block per head and segment of queries from the end.
template <class Work, int kD>
static __global__ void __launch_bounds__(RegisterScan<Work, kD, false>::kThreads,
                                         RegisterScan<Work, kD, false>::kBlocks) scan_sums_kernel(const Work work) {
  const Reversed head(work.run.call.lengths, work.run.sizes.heads);
  const Segments segments(work.run.call, work.run.sizes, head);
  const int64_t from = blockIdx.y * kRowSegment, to = from + kRowSegment;
  if (!segments.any() || blockIdx.y >= segments.summed()) return;
  RegisterScan<Work, kD, false>::template take<false>(
      work, head, {0, 0, from, to < head.fresh ? to : head.fresh, nullptr, segments.sums(blockIdx.y + 1)});
}

}  // namespace attnkit::cuda::linear
#endif
