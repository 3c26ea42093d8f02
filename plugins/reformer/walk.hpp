// One head of Reformer: hash, sort, attend within chunks, mix the rounds.
//
// Padding is last in the order of every round, in a bucket of its own, and nobody sees it; so the tokens of a round are
// the first n of its order, and the chunks behind them are left out.
#ifndef ATTNKIT_REFORMER_WALK_HPP
#define ATTNKIT_REFORMER_WALK_HPP
#include "hash.hpp"

namespace attnkit::reformer {

constexpr float kSelf = -1e5f;  // the score of a token with itself

struct Shape {
  int64_t heads;
  tiles::Shape tile;  // a block is a chunk
  int64_t rounds, buckets, length, columns;
  double eps;

  static int64_t whole(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk * chunk; }
  // The paper's number of buckets for this many chunks: the power of two at or below twice as many.
  static int64_t buckets_for(int64_t chunks) {
    int64_t count = 2;
    while (count * 2 <= 2 * chunks) count *= 2;
    return count;
  }
  // What follows for a row of n tokens.
  int64_t padded(int64_t n) const { return length > 0 ? length : whole(n, tile.block); }
  bool plain(int64_t n) const { return padded(n) <= tile.block; }
  int64_t buckets_of(int64_t n) const { return buckets > 0 ? buckets : buckets_for(padded(n) / tile.block); }
  int64_t chunks(int64_t n) const { return whole(n, tile.block) / tile.block; }
  // Tokens in the last chunk of a round, which the first chunk of the next one sees.
  int64_t across(int64_t n) const { return plain(n) ? 0 : std::max<int64_t>(0, n - (padded(n) - tile.block)); }
};

struct Ports {
  uint32_t q, v, o, rotations;
};

// Scratch of one worker, for rows of up to n tokens.
struct Space {
  static uint64_t bytes(const Shape& s, int64_t n) {
    const int64_t chunks = s.chunks(n) + 1;
    return aligned(static_cast<uint64_t>(HashSpace::doubles(s.tile.d, s.columns)) * sizeof(double) +
                   static_cast<uint64_t>(chunks * (s.tile.key_floats() + s.tile.value_floats() + 1) +
                                         s.tile.tile_floats(2) + (3 + 1 + s.rounds) * n + 2 * s.columns) *
                       sizeof(float));
  }
  Space(const Shape& s, int64_t n, char* at)
      : hash(reinterpret_cast<double*>(at), s.tile.d, s.columns),
        keys(reinterpret_cast<float*>(reinterpret_cast<double*>(at) + HashSpace::doubles(s.tile.d, s.columns))),
        values(keys + (s.chunks(n) + 1) * s.tile.key_floats()),
        tile(values + (s.chunks(n) + 1) * s.tile.value_floats()),
        factor(tile + s.tile.tile_floats(2)),
        max(factor + n),
        sum(max + n),
        buckets(reinterpret_cast<int32_t*>(sum + n)),
        order(buckets + n),
        ends(order + s.rounds * n),
        live(ends + 2 * s.columns) {}
  HashSpace hash;
  float *keys, *values, *tile;  // packed chunks of a round; the last one is the last chunk of the round before
  float *factor, *max, *sum;    // by token: what makes a key of it; its rounds so far
  int32_t *buckets, *order, *ends, *live;
};

struct Plan {
  int64_t tokens;
  uint64_t worker_bytes;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  View<const float> x, v, rotations;
  View<float> o;
};

// Heads [begin, end) of all batch rows; the body that simd::dispatch compiles three times.
struct Body {
  const Job& job;
  int64_t begin, end;
  uint32_t worker;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) one<Isa>(item / job.shape.heads, item % job.shape.heads);
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const Shape& shape = job.shape;
    const Sight sight(job.run, b, false);
    const int64_t n = std::min(sight.queries, sight.fresh), e = shape.tile.e;
    for (int64_t i = n; i < job.run.queries; ++i) std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(e) * 4);
    if (n == 0) return;

    const Space space(shape, job.plan.tokens,
                      static_cast<char*>(job.run.exec->scratch) + worker * job.plan.worker_bytes);
    const auto offset = static_cast<float>(static_cast<double>(shape.tile.d) * shape.eps);
    for (int64_t i = 0; i < n; ++i) {
      const float* x = job.x.row(b, h, i);
      space.factor[i] = 1 / std::sqrt(simd::dot(x, x, shape.tile.d) + offset);
    }
    const int64_t rounds = arrange<Isa>(b, h, n, space);
    for (int64_t r = 0; r < rounds; ++r)
      attend<Isa>(b, h, n, space, space.order + r * n, space.order + (r + rounds - 1) % rounds * n, r == 0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < e; ++c) job.o.row(b, h, i)[c] /= space.sum[i];
  }

  // Fills the order of every round; returns their number.  Rows of one chunk need no order: everyone sees everyone.
  template <class Isa>
  ATTNKIT_INLINE int64_t arrange(int64_t b, int64_t h, int64_t n, const Space& space) const {
    const Shape& shape = job.shape;
    if (shape.plain(n)) {
      for (int64_t i = 0; i < n; ++i) space.order[i] = static_cast<int32_t>(i);
      return 1;
    }
    const int64_t count = shape.buckets_of(n);
    for (int64_t r = 0; r < shape.rounds; ++r) {
      hash<Isa>(job.x, b, h, n, job.rotations, r, shape.tile.d, count, space.hash, space.buckets);
      sort(space.buckets, n, count, space.ends, space.order + r * n);
    }
    return shape.rounds;
  }

  // One round over the tokens in their order; `before` is that of the round before.
  template <class Isa>
  ATTNKIT_INLINE void attend(int64_t b, int64_t h, int64_t n, const Space& space, const int32_t* order,
                             const int32_t* before, bool first) const {
    const tiles::Shape& shape = job.shape.tile;
    const int64_t chunks = job.shape.chunks(n), across = job.shape.across(n);
    for (int64_t t = 0; t < chunks; ++t)
      pack(b, h, t, std::min(shape.block, n - t * shape.block), order + t * shape.block, space);
    pack(b, h, chunks, across, before + n - across, space);

    const tiles::Blocks blocks{shape, space.keys, space.values, space.live};
    tiles::Tile<Isa> tile;
    tile.scores = space.tile;
    tile.next = 2 * shape.slots();
    tile.out = tile.scores + tile.rows * tile.next;
    for (int64_t t = 0; t < chunks; ++t) {
      const auto own = static_cast<int32_t>(t), previous = static_cast<int32_t>(t > 0 ? t - 1 : chunks);
      const bool two = space.live[previous] > 0;
      const int32_t list[] = {own, previous};
      const int64_t stop = std::min(n, (t + 1) * shape.block);
      for (int64_t from = t * shape.block; from < stop; from += tile.rows) {
        for (int64_t r = 0; r < tile.rows; ++r) tile.q[r] = job.x.row(b, h, order[std::min(from + r, stop - 1)]);
        tiles::score(tile, blocks, list, two ? 2 : 1, 1.0f);
        hide_self(tile, order, from, stop, t == 0 ? before + n - across : nullptr, across);
        tiles::soften(tile, (two ? 2 : 1) * shape.slots());
        tiles::mix(tile, blocks, list, two ? 2 : 1);
        merge(tile, b, h, order, from, stop, space, first);
      }
    }
  }

  ATTNKIT_INLINE void pack(int64_t b, int64_t h, int64_t t, int64_t count, const int32_t* tokens,
                           const Space& space) const {
    const tiles::Shape& shape = job.shape.tile;
    space.live[t] = static_cast<int32_t>(count);
    if (count == 0) return;
    tiles::pack_keys(
        shape, count, [&](int64_t j) { return job.x.row(b, h, tokens[j]); },
        [&](int64_t j) { return space.factor[tokens[j]]; }, space.keys + t * shape.key_floats());
    tiles::pack_values(
        shape, count, [&](int64_t j) { return job.v.row(b, h, tokens[j]); }, space.values + t * shape.value_floats());
  }

  // Scores of tokens with themselves, in their own chunk and among the `across` tokens of the round before.
  template <class Isa>
  ATTNKIT_INLINE void hide_self(tiles::Tile<Isa>& tile, const int32_t* order, int64_t from, int64_t stop,
                                const int32_t* before, int64_t across) const {
    const tiles::Shape& shape = job.shape.tile;
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t at = std::min(from + r, stop - 1);
      float* scores = tile.scores + r * tile.next;
      scores[at % shape.block] = kSelf;
      if (!before) continue;
      for (int64_t j = 0; j < across; ++j)
        if (before[j] == order[at]) scores[shape.slots() + j] = kSelf;
    }
  }

  // Adds a tile to what its tokens have from earlier rounds: a softmax of the rounds by their logsumexp is one sum over
  // them all.
  template <class Isa>
  ATTNKIT_INLINE void merge(const tiles::Tile<Isa>& tile, int64_t b, int64_t h, const int32_t* order, int64_t from,
                            int64_t stop, const Space& space, bool first) const {
    const int64_t e = job.shape.tile.e, width = tiles::whole(e);
    for (int64_t r = 0; r < tile.rows && from + r < stop; ++r) {
      const int64_t i = order[from + r];
      const float* added = tile.out + r * width;
      float* o = job.o.row(b, h, i);
      if (first) {
        space.max[i] = tile.max[r];
        space.sum[i] = tile.sum[r];
        std::memcpy(o, added, static_cast<size_t>(e) * sizeof(float));
        continue;
      }
      const float max = tile.max[r] > space.max[i] ? tile.max[r] : space.max[i];
      const float old = std::exp(space.max[i] - max), fresh = std::exp(tile.max[r] - max);
      space.max[i] = max;
      space.sum[i] = space.sum[i] * old + tile.sum[r] * fresh;
      for (int64_t c = 0; c < e; ++c) o[c] = o[c] * old + added[c] * fresh;
    }
  }
};

inline void task(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  simd::dispatch(Body{*reinterpret_cast<const Job*>(arg), begin, end, worker});
}

}  // namespace attnkit::reformer
#endif
