// One head of BigBird: which blocks a block sees, and the walk over the blocks of queries.
#ifndef ATTNKIT_BIGBIRD_WALK_HPP
#define ATTNKIT_BIGBIRD_WALK_HPP
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/work.hpp>

namespace attnkit::bigbird {

struct Shape {
  int64_t heads, block, d, e, length, random;
  bool repeats;
  int64_t blocks() const { return length / block; }
  // Blocks with a token, in a row of n tokens.
  int64_t live(int64_t n) const { return (n + block - 1) / block; }
  bool global(int64_t i) const { return i == 0 || i == blocks() - 1; }
  int64_t slots() const { return simd::whole_lanes(block); }
  int64_t width() const { return simd::whole_lanes(e); }
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
  int64_t blocks;  // packed
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

struct Body : simd::HeadWork<Body, Job> {
  using HeadWork::HeadWork;

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const Shape& shape = job.shape;
    const Sight sight(job.run, b, false);
    const int64_t queries = sight.fresh > 0 ? sight.queries : 0;
    for (int64_t i = queries; i < job.run.queries; ++i)
      std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(shape.e) * sizeof(float));
    if (queries == 0) return;

    const Packed packed = pack(b, h, sight.fresh);
    for (int64_t i = 0; i < shape.live(queries); ++i) {
      const int64_t n = look(h, i, shape.live(sight.fresh), packed.list);
      const int64_t stop = std::min(queries, (i + 1) * shape.block);
      for (int64_t from = i * shape.block; from < stop; from += simd::kQueries)
        attend<Isa>(packed, n, b, h, from, std::min(simd::kQueries, stop - from));
    }
  }

  // Keys by feature and values by row, of one block after another; block t holds live[t] keys.
  struct Packed {
    float *keys, *values, *out;
    int32_t *live, *list;
  };

  ATTNKIT_INLINE Packed pack(int64_t b, int64_t h, int64_t n) const {
    const Shape& shape = job.shape;
    float* const keys = floats();
    float* values = keys + job.plan.blocks * shape.slots() * shape.d;
    float* out = values + job.plan.blocks * shape.block * shape.width();
    auto* live = reinterpret_cast<int32_t*>(out + simd::kQueries * shape.width());
    for (int64_t t = 0; t < shape.live(n); ++t) {
      const int64_t from = t * shape.block, count = std::min(shape.block, n - from);
      live[t] = static_cast<int32_t>(count);
      simd::pack_keys(
          count, shape.d, [&](int64_t j) { return job.k.row(b, h, from + j); }, keys + t * shape.slots() * shape.d,
          shape.slots());
      simd::pack_values(
          count, shape.e, [&](int64_t j) { return job.v.row(b, h, from + j); }, values + from * shape.width());
    }
    return {keys, values, out, live, live + job.plan.blocks};
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

  // Queries from `from` on, all of one block, which sees the n blocks listed.
  template <class Isa>
  ATTNKIT_INLINE void attend(const Packed& packed, int64_t n, int64_t b, int64_t h, int64_t from,
                             int64_t queries) const {
    const Shape& shape = job.shape;
    const int64_t slots = shape.slots(), width = shape.width();
    int64_t seen[simd::kQueries];
    std::fill(seen, seen + queries, shape.block);
    simd::Online online;
    online.out = packed.out;
    online.out_row = width;
    online.begin(queries, width);
    for (const int32_t* t = packed.list; t != packed.list + n; ++t)
      for (int64_t j = 0; j < packed.live[*t]; j += simd::kKeys)
        simd::attend_block<Isa>(
            job.q.row(b, h, from), job.q.next, queries,
            {packed.keys + *t * slots * shape.d + j, slots, packed.values + (*t * shape.block + j) * width, width,
             std::min(simd::kKeys, packed.live[*t] - j), shape.d, width},
            j, seen, job.scale, online);
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t c = 0; c < shape.e; c += simd::kLanes)
        simd::store(simd::at(online.out + i * width + c).v / online.sum[i], shape.e - c, job.o.row(b, h, from + i) + c);
  }
};

}  // namespace attnkit::bigbird
#endif
