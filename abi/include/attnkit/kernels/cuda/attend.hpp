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
// A plugin's own type may have a Key that keys and values are of whatever the queries are.  One without kDecodes has
// neither kernels for few queries alone, which take long to compile, nor parts.  It may have kListed, without kDecodes:
// then it says which keys a tile of queries walks, all of whose queries see all of them, and is for whole sequences and
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
#include <attnkit/kernels/cuda/attend_direct.hpp>
#include <attnkit/kernels/cuda/launch.hpp>

namespace attnkit::cuda::attend {

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

// Does a batch row go directly, whatever its neighbours do?
template <class T, class Reach>
__device__ bool goes_directly(const Work<T, Reach>& w, const Sight& sight) {
  return Direct<T, Reach>::takes(w.sizes) && sight.queries * w.sizes.group() <= kDirect;
}
template <class T, class Reach>
__device__ void attend_directly(const Work<T, Reach>& w, int pair, int span, const Sight& sight) {
  const int spans = sight.queries > 0 ? spans_of(w, sight) : 0;
  if (span >= spans) return;
  Direct<T, Reach>(w, pair / w.sizes.kv_heads, pair % w.sizes.kv_heads, sight)(
      static_cast<int>(sight.queries * w.sizes.group()), span, spans > 1 ? part_of(w, pair, span) : nullptr);
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

// Adds up the parts of rows that were split: a block for each, warps taking turns at its spans.
template <class T, class Reach>
static __global__ void __launch_bounds__(kThreads) combine_kernel(const Work<T, Reach> w) {
  using Real = RealOf<T>;
  ATTNKIT_SHARED(Real, mixes, kThreads);
  const Sizes& s = w.sizes;
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, r = static_cast<int>(blockIdx.x) / w.pairs;
  const int kv = pair % s.kv_heads, group = s.group();
  const int64_t b = pair / s.kv_heads, i = r / group;
  const int h = kv * group + r % group;
  const Sight sight(w.lengths, b);
  if (sight.queries > kFew || i >= sight.queries) return;
  const int spans = spans_of(w, sight);
  if (spans == 1) return;
  const int64_t next = part_of(w, 0, 1) - part_of(w, 0, 0);
  const Real* part = part_of(w, pair, 0) + static_cast<int64_t>(r) * (s.e + 2);
  Real most = part[0], total = 0;
  for (int span = lane(); span < spans; span += 32) most = larger(most, part[span * next]);
  for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
  for (int span = lane(); span < spans; span += 32)
    total = fused(exponential(part[span * next] - most), part[span * next + 1], total);
  total = sum_of_warp(total);
  const Real by = w.reach.end(sight, i) > 0 ? reciprocal(total) : 0;
  for (int from = 0; from < s.e; from += 32) {
    const int e = from + lane();
    Real mixed = 0;
#pragma unroll 8
    for (int span = warp(); span < spans; span += kWarps)
      if (e < s.e) mixed = fused(exponential(part[span * next] - most), part[span * next + 2 + e], mixed);
    mixes[threadIdx.x] = mixed;
    __syncthreads();
    if (warp() == 0 && e < s.e) {
      for (int n = 1; n < kWarps; ++n) mixed += mixes[n * 32 + lane()];
      w.o.at(b, h, i)[e] = narrowed<T>(mixed * by);
    }
    __syncthreads();
  }
  if (w.lse && threadIdx.x == 0) w.lse[(b * s.heads + h) * w.lengths.queries + i] = most + logarithm(total);
}

// Blocks that are to fit into a multiprocessor; f64 is for checks.
template <class T, int kBlocks>
constexpr int kBlocksOf = sizeof(T) == 8 ? 1 : kBlocks;

// Calls whose rows have few queries each.  kMixed: rows among them may go directly, which takes registers.
template <class T, class Reach, int kKeys, bool kMixed>
static __global__ void __launch_bounds__(
    kThreads,
    kBlocksOf<T, kMixed || Reach::kNear || sizeof(T) == 2 || sizeof(typename Reach::template Key<T>) == 2 ? 2 : 3>)
    few_kernel(const Work<T, Reach> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, tile = static_cast<int>(blockIdx.x) / w.pairs;
  const int64_t b = pair / w.sizes.kv_heads;
  const int kv = pair % w.sizes.kv_heads;
  const Sight sight(w.lengths, b);
  append_and_clear(w, b, kv, sight, tile);
  if (kMixed && goes_directly(w, sight))
    attend_directly(w, pair, tile, sight);
  else
    attend_few<T, Reach, kKeys>(w, pair, tile, sight);
  if constexpr (Reach::kNear)
    if (w.states) append_last(w, b, kv, sight, 0, 1);
}

// Those whose rows all go directly.
template <class T, class Reach>
static __global__ void __launch_bounds__(kThreads, kBlocksOf<T, 4>) direct_kernel(const Work<T, Reach> w) {
  const int pair = static_cast<int>(blockIdx.x) % w.pairs, tile = static_cast<int>(blockIdx.x) / w.pairs;
  const int64_t b = pair / w.sizes.kv_heads;
  const int kv = pair % w.sizes.kv_heads;
  const Sight sight(w.lengths, b);
  attend_directly(w, pair, tile, sight);
  append_and_clear(w, b, kv, sight, tile);
  if constexpr (Reach::kNear)
    if (w.states) append_last(w, b, kv, sight, 0, 1);
}

// Any other; the blocks with the most keys to see begin first.
template <class T, class Reach, int kKeys, bool kMixed>
static __global__ void __launch_bounds__(kThreads, kBlocksOf<T, kMixed && kKeys == kWide ? 1 : 2>)
    blocks_kernel(const Work<T, Reach> w) {
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
  } else if (kMixed && goes_directly(w, sight)) {
    for (int span = tile; span < w.spans || span == 0; span += w.tiles) attend_directly(w, pair, span, sight);
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
inline int64_t spans_of(const Request& r) {
  return r.queries > 0 && r.capacity() > kSpan ? (r.capacity() + kSpan - 1) / kSpan : 0;
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
                        few && kDecodes<T, Reach> ? w.spans : tiles_of(lengths.queries * w.sizes.group())});
  const auto start = [&](auto* kernel, int tiles, uint64_t bytes) {
    launch(name, kernel, {dim3(static_cast<unsigned>(w.pairs) * static_cast<unsigned>(tiles)), kThreads, bytes}, exec,
           w);
  };
  const auto with = [&](auto tile, auto mixed) {
    constexpr int kKeys = decltype(tile)::value;
    constexpr bool kMixed = decltype(mixed)::value;
    if constexpr (kDecodes<T, Reach>)
      if (few) return start(few_kernel<T, Reach, kKeys, kMixed>, w.tiles, Few<T, Reach, kKeys>::bytes(w.sizes));
    start(blocks_kernel<T, Reach, kKeys, kMixed>, w.tiles, bytes_of_blocks<T, Reach, kKeys>(w.sizes));
  };
  const auto with_keys = [&](auto mixed) {
    if (keys == kNarrow)
      with(std::integral_constant<int, kNarrow>{}, mixed);
    else
      with(std::integral_constant<int, kWide>{}, mixed);
  };
  const auto choose = [&] {
    if constexpr (kDecodes<T, Reach>)
      if (Direct<T, Reach>::takes(w.sizes)) {
        if (lengths.queries * w.sizes.group() <= kDirect)
          return start(direct_kernel<T, Reach>, w.tiles, Direct<T, Reach>::bytes(w.sizes));
        if (lengths.q_len) return with_keys(std::true_type{});
      }
    with_keys(std::false_type{});
  };
  choose();
  if constexpr (!Reach::kNear && Reach::kDecodes)
    if (w.parts && lengths.queries > 0 && (few || lengths.q_len))
      start(combine_kernel<T, Reach>, static_cast<int>(std::min<int64_t>(kFew, lengths.queries)) * w.sizes.group(), 0);
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
