// One head of BigBird: which blocks a block sees, and the walk over the blocks of queries.
#ifndef ATTNKIT_BIGBIRD_WALK_HPP
#define ATTNKIT_BIGBIRD_WALK_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/tiles.hpp>

namespace attnkit::bigbird {

struct Shape {
  int64_t heads;
  tiles::Shape tile;
  int64_t length, random;
  bool repeats;
  int64_t blocks() const { return length / tile.block; }
  // Blocks with a token, in a row of n tokens.
  int64_t live(int64_t n) const { return (n + tile.block - 1) / tile.block; }
  bool global(int64_t i) const { return i == 0 || i == blocks() - 1; }
};

// The blocks that block i sees whatever the table says, at most five, each once.  Returns their number.
inline int64_t fixed_blocks(const Shape& shape, int64_t i, int32_t* list) {
  const int64_t wanted[] = {0, i - 1, i, i + 1, shape.blocks() - 1};
  int64_t n = 0;
  for (const int64_t block : wanted)
    if (n == 0 || block > list[n - 1]) list[n++] = static_cast<int32_t>(block);
  return n;
}

struct Ports {
  uint32_t q, k, v, o, table;
};

struct Plan {
  int64_t blocks, seen;  // packed; the most that one query sees
  uint64_t worker_bytes;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  float scale;
  View<const float> q, k, v;
  View<float> o;
  View<const int32_t> table;
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
    const int64_t queries = sight.fresh > 0 ? sight.queries : 0;
    for (int64_t i = queries; i < job.run.queries; ++i)
      std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(shape.tile.e) * sizeof(float));
    if (queries == 0) return;

    auto* keys = reinterpret_cast<float*>(static_cast<char*>(job.run.exec->scratch) + worker * job.plan.worker_bytes);
    float* values = keys + job.plan.blocks * shape.tile.key_floats();
    float* scores = values + job.plan.blocks * shape.tile.value_floats();
    auto* live = reinterpret_cast<int32_t*>(scores + shape.tile.tile_floats(job.plan.seen));
    const tiles::Blocks blocks{shape.tile, keys, values, live};
    pack(b, h, sight.fresh, keys, values, live);

    tiles::Tile<Isa> tile;
    tile.scores = scores;
    tile.next = job.plan.seen * shape.tile.slots();
    tile.out = scores + tile.rows * tile.next;
    int32_t* list = live + job.plan.blocks;
    for (int64_t i = 0; i < shape.live(queries); ++i) {
      const int64_t n = look(h, i, shape.live(sight.fresh), list);
      const int64_t stop = std::min(queries, (i + 1) * shape.tile.block);
      for (int64_t from = i * shape.tile.block; from < stop; from += tile.rows)
        attend(tile, blocks, list, n, b, h, from, stop);
    }
  }

  ATTNKIT_INLINE void pack(int64_t b, int64_t h, int64_t n, float* keys, float* values, int32_t* live) const {
    const tiles::Shape& shape = job.shape.tile;
    for (int64_t t = 0; t < job.shape.live(n); ++t) {
      const int64_t from = t * shape.block, count = std::min(shape.block, n - from);
      live[t] = static_cast<int32_t>(count);
      tiles::pack_keys(
          shape, count, [&](int64_t j) { return job.k.row(b, h, from + j); }, [](int64_t) { return 1.0f; },
          keys + t * shape.key_floats());
      tiles::pack_values(
          shape, count, [&](int64_t j) { return job.v.row(b, h, from + j); }, values + t * shape.value_floats());
    }
  }

  // Lists the blocks below `live` that block i sees; returns their number.
  ATTNKIT_INLINE int64_t look(int64_t h, int64_t i, int64_t live, int32_t* list) const {
    const Shape& shape = job.shape;
    if (shape.global(i)) {
      for (int64_t t = 0; t < live; ++t) list[t] = static_cast<int32_t>(t);
      return live;
    }
    int64_t n = fixed_blocks(shape, i, list);
    const int32_t* drawn = job.table.row(0, h, i - 1);
    for (int64_t r = 0; r < shape.random; ++r)
      if (shape.repeats || std::find(list, list + n, drawn[r]) == list + n) list[n++] = drawn[r];
    return std::remove_if(list, list + n, [live](int32_t t) { return t >= live; }) - list;
  }

  // Queries [from, stop) of one block, as many as a tile takes.
  template <class Isa>
  ATTNKIT_INLINE void attend(tiles::Tile<Isa>& tile, const tiles::Blocks& blocks, const int32_t* list, int64_t n,
                             int64_t b, int64_t h, int64_t from, int64_t stop) const {
    const int64_t e = job.shape.tile.e, width = tiles::whole(e);
    for (int64_t r = 0; r < tile.rows; ++r) tile.q[r] = job.q.row(b, h, std::min(from + r, stop - 1));
    tiles::score(tile, blocks, list, n, job.scale);
    tiles::soften(tile, n * job.shape.tile.slots());
    tiles::mix(tile, blocks, list, n);
    for (int64_t r = 0; r < tile.rows && from + r < stop; ++r)
      for (int64_t c = 0; c < e; c += simd::kLanes)
        simd::store(simd::at(tile.out + r * width + c).v / tile.sum[r], e - c, job.o.row(b, h, from + r) + c);
  }
};

inline void task(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  simd::dispatch(Body{*reinterpret_cast<const Job*>(arg), begin, end, worker});
}

}  // namespace attnkit::bigbird
#endif
