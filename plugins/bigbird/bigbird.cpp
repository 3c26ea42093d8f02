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
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/stages.hpp>
#include <cmath>

namespace {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::unsupported;
using attnkit::View;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

constexpr int64_t kMostRandom = 64;

// The blocks with keys that a block sees: the first n of all, or of a list.
struct Seen {
  bool all;
  int64_t n;
  int32_t list[5 + kMostRandom];
  int64_t operator[](int64_t x) const { return all ? x : list[x]; }
};

struct Shape : attnkit::Widths {
  int64_t block, length, random;
  bool repeats;
  int64_t blocks() const { return length / block; }
  // Blocks with a token, in a row of n tokens.
  int64_t live(int64_t n) const { return (n + block - 1) / block; }
  bool global(int64_t i) const { return i == 0 || i == blocks() - 1; }
  int64_t slots() const { return simd::whole_lanes(block); }
  int64_t width() const { return simd::whole_lanes(e); }

  // The blocks that block i sees whatever the table says, at most five, each once.  Returns their number.
  int64_t fixed_blocks(int64_t i, int32_t* list) const {
    const int64_t wanted[] = {0, i - 1, i, i + 1, blocks() - 1};
    int64_t n = 0;
    for (const int64_t t : wanted)
      if (n == 0 || t > list[n - 1]) list[n++] = static_cast<int32_t>(t);
    return n;
  }

  // The keys that block i of head h sees in a row of that many keys.
  Seen seen(const View<const int32_t>& table, int64_t h, int64_t i, int64_t keys) const {
    const int64_t live = this->live(keys);
    Seen seen;
    seen.all = global(i);
    seen.n = live;
    if (seen.all) return seen;
    int32_t *list = seen.list, *end = list + fixed_blocks(i, list);
    const int32_t* drawn = table.row(0, h, i - 1);
    for (int64_t r = 0; r < random; ++r)
      if (repeats || std::find(list, end, drawn[r]) == end) *end++ = drawn[r];
    seen.n = std::remove_if(list, end, [live](int32_t t) { return t >= live; }) - list;
    return seen;
  }
  // Keys of block t in a row of so many.
  attend::Span rows(int64_t t, int64_t keys) const { return {t * block, std::min((t + 1) * block, keys)}; }
};

// Of a head: its blocks, keys by feature and values by row.
struct Packed {
  float *keys, *values;
  Packed(Layout& layout, const Shape& s, int64_t blocks)
      : keys(layout.take(blocks * s.slots() * s.d)), values(layout.take(blocks * s.block * s.width())) {}
};

// Of a worker: results.
struct Own {
  float* out;
  Own(Layout& layout, const Shape& s, int64_t) : out(layout.take(simd::kQueries * s.width())) {}
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
          held(t), s.d, [&](int64_t j) { return job.x.k.row(b, h, from + j); }, packed.keys + t * s.slots() * s.d,
          s.slots());
      simd::pack_values<Isa>(
          held(t), s.e, [&](int64_t j) { return job.x.v.row(b, h, from + j); }, packed.values + from * s.width());
    }
    for (int64_t i = begin; stage == 1 && i < end; ++i) {
      const Seen blocks = s.seen(job.table, h, i, keys);
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
    const int64_t slots = s.slots(), width = s.width();
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

struct BigBird {
  static constexpr attnkit::About about{
      .name = "bigbird",
      .summary = "softmax attention over a window, global and random blocks: linear cost, encoders only",
      .citation = "Zaheer et al., Big Bird, NeurIPS 2020, arXiv:2007.14062",
      .state_revision = "1"};
  struct Plan {
    int64_t blocks;
    simd::Staged bytes;
    attend::Plan backward;
  };

  static attnkit::Options options() {
    return {
        attnkit::Option::integer("block", 64, 1, 4096, "tokens in a block; must divide length"),
        attnkit::Option::integer("random", 3, 0, kMostRandom, "random blocks that each block sees; part of the model"),
        attnkit::Option::integer("length", 1024, 1, 1 << 20,
                                 "tokens that the table of blocks is for; shorter rows are padded to it"),
        attnkit::Option::boolean("repeats", false,
                                 "a block that the table names once more counts once more, as in the authors' "
                                 "code; otherwise it counts once")};
  }

  BigBird(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{attnkit::Widths(b), values.integer("block"), values.integer("length"), values.integer("random"),
              values.boolean("repeats")},
        io(ports.qkv(shape, "weighted mean of the values")) {
    if (shape.length % shape.block != 0)
      throw unsupported("length = ", shape.length, " is not a whole number of blocks of ", shape.block,
                        " tokens: make it a multiple of block")
          .at(values.index("length"));
    if (shape.blocks() < 5)
      throw unsupported("length = ", shape.length, " has ", shape.blocks(), " blocks of ", shape.block,
                        " tokens and needs 5, for a window of 3 between the first and the last: use a "
                        "smaller block, or softmax")
          .at(values.index("length"));
    if (shape.random > shape.blocks() - 5)
      throw unsupported("random = ", shape.random, " blocks cannot be drawn from the ", shape.blocks() - 5,
                        " that are left besides the window, the first and the last: draw fewer, or use a "
                        "smaller block")
          .at(values.index("random"));
    if (shape.random > 0)
      table = ports.table("blocks", {shape.heads, shape.blocks() - 2, shape.random},
                          "random blocks of every block but the first and the last", 0, 0);
  }

  // A table row is drawn without replacement from the blocks that block i does not see anyway.
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    std::vector<int32_t> taken(static_cast<size_t>(5 + shape.random));  // ascending
    for (int64_t row = 0; row < count / shape.random; ++row) {
      const int64_t i = row % (shape.blocks() - 2) + 1;
      int32_t* end = taken.data() + shape.fixed_blocks(i, taken.data());
      for (int64_t r = 0; r < shape.random; ++r) {
        // The t-th of the blocks that are not taken: each taken one at or below it moves it on.
        auto t = static_cast<int32_t>(random.below(static_cast<uint64_t>(shape.blocks() - (end - taken.data()))));
        int32_t* at = taken.data();
        for (; at != end && *at <= t; ++at) ++t;
        std::memcpy(data + row * shape.random + r, &t, sizeof t);
        std::copy_backward(at, end, end + 1);
        *at = t;
        ++end;
      }
    }
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    check_place(r);
    const int64_t blocks = shape.live(r.keys);
    const Plan plan{blocks, simd::Staged::measure<Packed, Own>(shape, blocks), attend::Plan(shape, r, info)};
    info.scratch(r, plan.bytes.worker_bytes());
    info.flops = static_cast<uint64_t>(r.batch * shape.heads * pairs(r) * (2 * (shape.d + shape.e) + 5));
    if (!works(r)) info.bytes_read = 0;
    return plan;
  }

  // Otherwise a run only writes zeros.
  static bool works(const auto& r) { return r.batch > 0 && r.queries > 0 && r.keys > 0; }

  void check_place(const attnkit::Request& r) const {
    if (block.causal || block.role != ATTN_ENCODER_SELF)
      throw unsupported(
          "BigBird's first and last block see the whole sequence and all see them, so it fits the self attention of an "
          "encoder only: use a mechanism such as softmax, relu or leap here");
    if (r.streams())
      throw unsupported("BigBird cannot stream, its blocks see blocks that have not arrived: run whole sequences");
    if (r.shows_prefixes())
      throw unsupported("BigBird has no prefix form, its blocks see the whole sequence: run it without ATTN_PREFIX");
    const int64_t wanted = std::max(r.queries, r.keys);
    if (wanted > shape.length)
      throw unsupported("the table of blocks is for ", shape.length, " tokens and up to ", wanted,
                        " were asked for: raise the option \"length\", or shorten the sequence");
  }

  // The most pairs of query and key that a table can make of one head: all its blocks hold tokens, as far as there are
  // any.  Exact when the row is as long as the table.
  int64_t pairs(const attn_request& r) const {
    int64_t pairs = 0;
    for (int64_t i = 0; r.keys > 0 && i < shape.live(r.queries); ++i) {
      int64_t keys = r.keys;
      if (!shape.global(i)) {
        int32_t list[5];
        int64_t seen = 0;
        const int64_t n = shape.fixed_blocks(i, list);
        for (const int32_t* t = list; t != list + n; ++t)
          seen += std::clamp<int64_t>(r.keys - *t * shape.block, 0, shape.block);
        seen += shape.random * shape.block;
        keys = shape.repeats ? seen : std::min(keys, seen);
      }
      pairs += keys * std::min(shape.block, r.queries - i * shape.block);
    }
    return pairs;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const View<const int32_t> blocks(run, table);
    if (works(run)) check_table(blocks);
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale(), false, [&](const Sight& sight, int64_t h, int64_t i, const auto& see) {
        const Seen seen = shape.seen(blocks, h, i / shape.block, sight.fresh);
        for (int64_t x = 0; x < seen.n; ++x) {
          const attend::Span keys = shape.rows(seen[x], sight.fresh);
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

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.d)); }

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
              give(head, shape.rows(i, sight.queries), shape.seen(blocks, h, i, sight.fresh), sight.fresh);
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
      tiles(shape.rows(seen[x], fresh), [&](const attend::Span& keys) {
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

  attn_block block;
  Shape shape;
  attnkit::QkvPorts io;
  attnkit::Port table;
};

}  // namespace

ATTNKIT_PLUGIN(BigBird)
