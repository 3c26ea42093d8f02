// Softmax attention of many queries of a row: in blocks of them, each of which goes over all keys that it sees, a
// packed block of keys at a time.
//
// Blocks are items of a run, so that workers share a head.  Keys of earlier runs come from the state, those of this one
// from the ports: other blocks are still appending them.
#ifndef ATTNKIT_KERNELS_ATTEND_BLOCKS_HPP
#define ATTNKIT_KERNELS_ATTEND_BLOCKS_HPP
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/attend_gradient.hpp>
#include <cmath>

namespace attnkit::attend {

constexpr int64_t kFew = 4;        // queries of a row from which blocks are faster
constexpr int64_t kLeast = 64;     // queries of a block where workers want more blocks
constexpr int64_t kFar = 1 << 19;  // floats of keys and values from which asking ahead pays

// A run cut into blocks of queries, and its sizes.
struct Cut {
  int64_t together = simd::kQueries;  // queries of a block
  int64_t blocks;                     // of a head, at least one
  int64_t queries;                    // of the largest block
  int64_t keys = 0, all_keys = 0;     // of a row at most, of all rows

  // Each block packs all keys that it sees: large ones, as long as every worker has some.
  Cut(const attn_run& run, int64_t heads) {
    const int64_t rows = run.batch * heads, workers = run.exec->workers;
    const auto parts = [&] { return std::max<int64_t>(1, (run.queries + together - 1) / together); };
    while (workers > 1 && together > kLeast && rows * parts() < 4 * workers) together /= 2;
    blocks = parts();
    queries = std::min(run.queries, together);
    for (int64_t b = 0; b < run.batch; ++b) {
      const Sight sight(run, b, false);
      keys = std::max(keys, sight.past + sight.fresh);
      all_keys += sight.past + sight.fresh;
    }
  }
  // Of one block.
  double flops(const Widths& w) const { return 2.0 * static_cast<double>(queries * keys * (w.d + w.e)); }
  // The queries of a block of a row; the end may be before the beginning.
  ATTNKIT_INLINE Span of(const Sight& sight, int64_t block) const {
    return {block * together, std::min(sight.queries, (block + 1) * together)};
  }
  // The keys of this run that it appends to a state.
  ATTNKIT_INLINE Span share(const Sight& sight, int64_t block) const {
    const int64_t share = (sight.fresh + blocks - 1) / blocks;
    return {block * share, std::min(sight.fresh, (block + 1) * share)};
  }
};

// Of a worker: packed keys and values of a block, and what its queries have so far.
struct Block {
  float *keys, *values, *out;
  Block(Layout& layout, const Widths& w)
      : keys(layout.take(simd::kKeys * w.d)),
        values(layout.take(simd::kKeys * simd::whole_lanes(w.e))),
        out(layout.take(simd::kQueries * simd::whole_lanes(w.e))) {}

  // The first n keys and values.
  template <class Isa, class Key, class Value>
  ATTNKIT_INLINE void pack(const Widths& w, int64_t n, const Key& key, const Value& value) const {
    simd::pack_keys<Isa>(n, w.d, key, keys, simd::kKeys);
    simd::pack_values<Isa>(n, w.e, value, values);
  }
};

// One head of a row.
struct Head {
  const attn_run& run;
  const Widths& w;
  const Qkv<>& x;
  int64_t b, h;
  const Sight& sight;
  const float* kept;  // its first key in the state, the value behind it; NULL without one
  int64_t token;      // floats of one position in the state
  // Do keys and values of the run come from beyond the second cache?
  bool far = run.batch * (sight.past + sight.fresh) * w.kv_heads * (w.d + w.e) >= kFar;

  // Keys and values of n positions from `from` on, as they stand in the state and in the ports.
  template <class Isa>
  ATTNKIT_INLINE void pack(int64_t from, int64_t n, const Block& block) const {
    const int64_t kv = h / w.group(), past = sight.past;
    block.pack<Isa>(
        w, n, [&](int64_t j) { return from + j < past ? kept + (from + j) * token : x.k.row(b, kv, from + j - past); },
        [&](int64_t j) { return from + j < past ? kept + (from + j) * token + w.d : x.v.row(b, kv, from + j - past); });
  }

  // The largest number of keys that one of these queries sees.
  ATTNKIT_INLINE int64_t most(const Span& queries) const {
    int64_t most = 0;
    for (int64_t i = queries.begin; i < queries.end; ++i) most = std::max(most, sight.seen(i));
    return most;
  }

  // Asks memory for what comes after the block of keys from `from` on, a part of it with each group of queries: the
  // next group of queries, keys and values of the next block or of the head that follows.
  template <class Isa>
  ATTNKIT_INLINE void ask(const Span& queries, int64_t i, int64_t from, int64_t keys) const {
    constexpr int64_t group = simd::kTogether<Isa>;
    const int64_t count = queries.size(), groups = (count + group - 1) / group, turn = i / group;
    for (int64_t s = i + group; from == 0 && s < std::min(i + 2 * group, count); ++s)
      simd::prefetch(x.q.row(b, h, queries.begin + s), w.d);
    const bool more = from + simd::kKeys < keys, here = more || queries.end < sight.queries;
    const int64_t next = b * w.heads + h + (here ? 0 : 1), nb = next / w.heads, nh = next % w.heads;
    if (nb == run.batch) return;
    for (int64_t s = 0; !here && turn + 1 == groups && s < std::min(group, run.queries); ++s)
      simd::prefetch(x.q.row(nb, nh, s), w.d);
    const int64_t begin = more ? from + simd::kKeys : 0;
    const int64_t n = std::min(simd::kKeys, (here ? keys : sight.past + sight.fresh) - begin);
    for (int64_t j = begin + turn * n / groups; j < begin + (turn + 1) * n / groups; ++j) {
      if (j >= sight.past) {
        simd::prefetch(x.k.row(nb, nh / w.group(), j - sight.past), w.d);
        simd::prefetch(x.v.row(nb, nh / w.group(), j - sight.past), w.e);
      } else if (here) {
        simd::prefetch(kept + j * token, w.d + w.e);
      }
    }
  }

  // A block of queries of it.  pack(from, n) packs that many keys and values from `from` on; edit(i, from, n, scores)
  // may change the scores of the block's query i and the n keys from `from` on, of which it sees no more, before they
  // are scaled.  Lanes behind those may hold anything.
  template <class Isa, class Pack, class Edit>
  ATTNKIT_INLINE void attend(const Span& queries, float scale, const Block& block, const Pack& pack,
                             const Edit& edit) const {
    const int64_t first = queries.begin, count = queries.size(), keys = most(queries), width = simd::whole_lanes(w.e);
    int64_t seen[simd::kQueries];
    for (int64_t i = 0; i < count; ++i) seen[i] = sight.seen(first + i);
    simd::Online online;
    online.out = block.out;
    online.out_row = width;
    online.begin(count, width);
    for (int64_t from = 0; from < keys; from += simd::kKeys) {
      const int64_t n = std::min(simd::kKeys, keys - from);
      pack(from, n);
      simd::attend_block<Isa>(
          x.q.row(b, h, first), x.q.next, count, {block.keys, simd::kKeys, block.values, width, n, w.d, width}, from,
          seen, scale, online, [&](int64_t i, float* scores) __attribute__((always_inline)) {
            if (far && i % simd::kTogether<Isa> == 0) ask<Isa>(queries, i, from, keys);
            edit(i, from, std::clamp<int64_t>(seen[i] - from, 0, n), scores);
          });
    }
    float* lse = saved<float>(run, w, b, h);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < w.e; c += simd::kLanes) {
        const simd::Vec<Isa> sum = simd::Vec<Isa>{} + online.sum[i], o = simd::at<Isa>(online.out + i * width + c);
        simd::store(o / sum, w.e - c, x.o.row(b, h, first + i) + c);
      }
      if (lse) lse[first + i] = online.max[i] + std::log(online.sum[i]);
    }
  }
};

}  // namespace attnkit::attend
#endif
