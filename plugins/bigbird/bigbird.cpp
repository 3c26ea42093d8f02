// bigbird: block-sparse softmax attention over a window, global and random blocks.
// The slow form to compare with the paper: reference.hpp.
//
// Zaheer et al.: Big Bird: Transformers for Longer Sequences, NeurIPS 2020, arXiv:2007.14062; blocks as in the authors'
// code.
//
//   o_i = sum_j p_ij v_j,   p_i. = softmax of D^-1/2 Q_i . K_j over the keys j of the blocks that i's block sees
//
// Of n = length / block blocks, the first and the last see all and are seen by all; block i also sees i - 1, i, i + 1
// and `random` blocks of a stored table.  Cost per head: at most (2 (D+E) + 5) (5 + random) block flops for a query of
// the other blocks, and that of softmax for those of the two.  A shorter row is padded to `length`, its padding unseen.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/attend_gradient.hpp>
#include <attnkit/kernels/stages.hpp>

#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::View;
using bigbird::Shape;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

// The blocks with keys that a block sees: the first n of all, or of a list.
struct Seen {
  bool all;
  int64_t n;
  int32_t list[5 + bigbird::kMostRandom];
  int64_t operator[](int64_t x) const { return all ? x : list[x]; }
};

int64_t slots_of(const Shape& s) { return simd::whole_lanes(s.block); }
int64_t width_of(const Shape& s) { return simd::whole_lanes(s.e); }

// The keys that block i of head h sees in a row of that many keys.
Seen seen_by(const Shape& s, const View<const int32_t>& table, int64_t h, int64_t i, int64_t keys) {
  const int64_t live = s.live(keys);
  Seen seen;
  seen.all = s.global(i);
  seen.n = live;
  if (seen.all) return seen;
  int32_t *list = seen.list, *end = list + s.fixed_blocks(i, list);
  const int32_t* drawn = table.row(0, h, i - 1);
  for (int64_t r = 0; r < s.random; ++r)
    if (s.repeats || std::find(list, end, drawn[r]) == end) *end++ = drawn[r];
  seen.n = std::remove_if(list, end, [live](int32_t t) { return t >= live; }) - list;
  return seen;
}
// Keys of block t in a row of so many.
attend::Span rows_of(const Shape& s, int64_t t, int64_t keys) {
  return {t * s.block, std::min((t + 1) * s.block, keys)};
}

// Of a head: its blocks, keys by feature and values by row.
struct Packed {
  float *keys, *values;
  Packed(Layout& layout, const Shape& s, int64_t blocks)
      : keys(layout.take(blocks * slots_of(s) * s.d)), values(layout.take(blocks * s.block * width_of(s))) {}
};

// Of a worker: results.
struct Own {
  float* out;
  Own(Layout& layout, const Shape& s, int64_t) : out(layout.take(simd::kQueries * width_of(s))) {}
};

struct Job {
  const Shape& shape;
  const attn_run& run;
  int64_t blocks;  // that there is scratch for
  float scale;
  attnkit::Qkv<> x;
  View<const int32_t> table;
};

// Packs the blocks of a head, then attends to them from each block of queries.
struct Head {
  const Job& job;
  int64_t b, h, queries, keys;
  void* memory;

  Head(const Job& j, int64_t row, int64_t head, void* shared) : job(j), b(row), h(head), memory(shared) {
    const Sight sight(j.run, b, false);
    queries = sight.queries;
    keys = sight.fresh;
  }
  int stages() const { return queries > 0 && keys > 0 ? 2 : 0; }
  int64_t pieces(int stage) const { return job.shape.live(stage == 0 ? keys : queries); }
  // Keys of block t.
  int64_t held(int64_t t) const { return std::min(job.shape.block, keys - t * job.shape.block); }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void* own_memory) const {
    const Shape& s = job.shape;
    Layout layout(memory), own_layout(own_memory);
    const Packed packed(layout, s, job.blocks);
    const Own own(own_layout, s, job.blocks);
    for (int64_t t = begin; stage == 0 && t < end; ++t) {
      const int64_t from = t * s.block;
      simd::pack_keys<Isa>(
          held(t), s.d, [&](int64_t j) { return job.x.k.row(b, h, from + j); }, packed.keys + t * slots_of(s) * s.d,
          slots_of(s));
      simd::pack_values<Isa>(
          held(t), s.e, [&](int64_t j) { return job.x.v.row(b, h, from + j); }, packed.values + from * width_of(s));
    }
    for (int64_t i = begin; stage == 1 && i < end; ++i) {
      const Seen blocks = seen_by(s, job.table, h, i, keys);
      const int64_t stop = std::min(queries, (i + 1) * s.block);
      for (int64_t from = i * s.block; from < stop; from += simd::kQueries)
        attend<Isa>(packed, own, blocks, from, std::min(simd::kQueries, stop - from));
    }
  }

  // Queries from `from` on, all of one block, which sees these blocks.
  template <class Isa>
  ATTNKIT_INLINE void attend(const Packed& packed, const Own& own, const Seen& blocks, int64_t from,
                             int64_t count) const {
    const Shape& s = job.shape;
    const int64_t slots = slots_of(s), width = width_of(s);
    int64_t seen[simd::kQueries];
    std::fill(seen, seen + count, s.block);
    simd::Online online;
    online.out = own.out;
    online.out_row = width;
    online.begin(count, width);
    for (int64_t x = 0; x < blocks.n; ++x) {
      const int64_t t = blocks[x];
      for (int64_t j = 0; j < held(t); j += simd::kKeys)
        simd::attend_block<Isa>(job.x.q.row(b, h, from), job.x.q.next, count,
                                {packed.keys + t * slots * s.d + j, slots, packed.values + (t * s.block + j) * width,
                                 width, std::min(simd::kKeys, held(t) - j), s.d, width},
                                j, seen, job.scale, online);
    }
    float* lse = attend::saved<float>(job.run, s, b, h);
    for (int64_t i = 0; i < count; ++i) {
      if (lse) lse[from + i] = online.max[i] + std::log(online.sum[i]);
      for (int64_t c = 0; c < s.e; c += simd::kLanes)
        simd::store(simd::at<Isa>(online.out + i * width + c) / online.sum[i], s.e - c,
                    job.x.o.row(b, h, from + i) + c);
    }
  }
};

struct BigBird : bigbird::Model {
  struct Plan {
    int64_t blocks;
    simd::Staged bytes;
    attend::Plan backward;
  };
  using Model::Model;

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    const int64_t blocks = shape.live(r.keys);
    const Plan plan{blocks, simd::Staged::measure<Packed, Own>(shape, blocks), attend::Plan(shape, r, info)};
    info.scratch(r, plan.bytes.worker_bytes());
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const View<const int32_t> blocks(run, table);
    if (works(run)) check_table(blocks);
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale(), false, [&](const Sight& sight, int64_t h, int64_t i, const auto& see) {
        const Seen seen = seen_by(shape, blocks, h, i / shape.block, sight.fresh);
        for (int64_t x = 0; x < seen.n; ++x) {
          const attend::Span keys = rows_of(shape, seen[x], sight.fresh);
          for (int64_t j = keys.begin; j < keys.end; ++j) see(j);
        }
      });
      return;
    }
    const int64_t seen = std::min(run.keys, (5 + shape.random) * shape.block);
    const double flops = 2.0 * static_cast<double>(run.queries * seen * (shape.d + shape.e));
    simd::for_stages<Head>(run, shape.heads, flops, plan.bytes,
                           Job{shape, run, plan.blocks, static_cast<float>(scale()), {run, io}, blocks});
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    const View<const int32_t> blocks(run, table);
    const int64_t seen = std::min(run.keys, (5 + shape.random) * shape.block);
    const double flops = 5.0 * static_cast<double>(run.queries * seen * (shape.d + shape.e));
    attnkit::with_real(is_f64(run, io.o), [&](auto real) {
      using Gradient = attend::Gradient<decltype(real)>;
      const Gradient gradient(shape, scale(), plan.backward, grad, io);
      attnkit::for_each_head(
          run, shape.heads, {flops, plan.backward.worker_bytes}, [&](int64_t b, int64_t h, void* memory) {
            const typename Gradient::Head head(gradient, b, h, Layout(memory));
            const Sight sight(run, b, false);
            for (int64_t i = 0; i < shape.live(sight.queries); ++i)
              give(head, rows_of(shape, i, sight.queries), seen_by(shape, blocks, h, i, sight.fresh), sight.fresh);
          });
    });
  }

  // Calls f with tiles of a block.
  static void tiles(const attend::Span& block, const auto& f) {
    for (int64_t from = block.begin; from < block.end; from += attend::kTile)
      f(attend::Span{from, std::min(from + attend::kTile, block.end)});
  }

  // The gradients of a block of queries and the keys of the blocks that it sees.
  void give(const auto& head, const attend::Span& queries, const Seen& seen, int64_t fresh) const {
    for (int64_t x = 0; x < seen.n; ++x)
      tiles(rows_of(shape, seen[x], fresh), [&](const attend::Span& keys) {
        const auto loaded = head.load(keys);
        tiles(queries, [&](const attend::Span& some) { head.add(some, loaded, nullptr, true, true); });
      });
  }

  // A table comes from a file, so nothing it says is taken on trust.
  void check_table(const View<const int32_t>& blocks) const {
    for (int64_t h = 0; h < shape.heads && shape.random > 0; ++h)
      for (int64_t i = 0; i < shape.blocks() - 2; ++i)
        for (int64_t r = 0; r < shape.random; ++r)
          if (const int32_t t = blocks.row(0, h, i)[r]; t < 0 || t >= shape.blocks())
            throw attnkit::invalid("the table of blocks names block ", t, " for block ", i + 1, " of head ", h,
                                   " and there are blocks 0 to ", shape.blocks() - 1,
                                   ": store the table that was made for this model")
                .at(table.where());
  }
};

}  // namespace

ATTNKIT_PLUGIN(BigBird)
