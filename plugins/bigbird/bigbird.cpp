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
#include <attnkit/kernels/random.hpp>

#include "walk.hpp"

namespace {

using attnkit::View;
namespace bigbird = attnkit::bigbird;
namespace simd = attnkit::simd;

struct BigBird {
  static constexpr attnkit::About about{
      .name = "bigbird",
      .summary = "softmax attention over a window, global and random blocks: linear cost, encoders only",
      .citation = "Zaheer et al., Big Bird, NeurIPS 2020, arXiv:2007.14062",
      .state_revision = "1"};
  using Plan = bigbird::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("block", 64, 1, 4096, "tokens in a block; must divide length"),
            attnkit::Option::integer("random", 3, 0, 64, "random blocks that each block sees; part of the model"),
            attnkit::Option::integer("length", 1024, 1, 1 << 20,
                                     "tokens that the table of blocks is for; shorter rows are padded to it"),
            attnkit::Option::boolean("repeats", false,
                                     "a block that the table names once more counts once more, as in the authors' "
                                     "code; otherwise it counts once")};
  }

  BigBird(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads,
              values.integer("block"),
              b.d_model / static_cast<int64_t>(b.heads),
              b.head_width,
              values.integer("length"),
              values.integer("random"),
              values.boolean("repeats")} {
    check(values);
    io = {ports.query("q", shape.d, "queries"), ports.key("k", shape.d, "keys"), ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "weighted mean of the values"), 0};
    if (shape.random > 0)
      io.table = ports.table("blocks", {shape.heads, shape.blocks() - 2, shape.random},
                             "random blocks of every block but the first and the last", 0, 0);
  }

  void check(const attnkit::Values& values) const {
    const auto refuse = [&values](const char* option, std::string sentence) {
      throw attnkit::Refusal(ATTN_UNSUPPORTED, std::move(sentence), values.index(option));
    };
    if (shape.length % shape.block != 0)
      refuse("length", attnkit::say("length = ", shape.length, " is not a whole number of blocks of ", shape.block,
                                    " tokens: make it a multiple of block"));
    if (shape.blocks() < 5)
      refuse("length", attnkit::say("length = ", shape.length, " has ", shape.blocks(), " blocks of ", shape.block,
                                    " tokens and needs 5, for a window of 3 between the first and the last: use a "
                                    "smaller block, or softmax"));
    if (shape.random > shape.blocks() - 5)
      refuse("random", attnkit::say("random = ", shape.random, " blocks cannot be drawn from the ", shape.blocks() - 5,
                                    " that are left besides the window, the first and the last: draw fewer, or use a "
                                    "smaller block"));
  }

  // A table row is drawn without replacement from the blocks that block i does not see anyway.
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    std::vector<int32_t> taken(static_cast<size_t>(5 + shape.random));  // ascending
    for (int64_t row = 0; row < count / shape.random; ++row) {
      const int64_t i = row % (shape.blocks() - 2) + 1;
      int32_t* end = taken.data() + bigbird::fixed_blocks(shape, i, taken.data());
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

  Plan plan(const attn_request& r, attn_info& info) const {
    check_place(r);
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    Plan plan;
    plan.blocks = shape.live(r.keys);
    const int64_t listed = std::max(plan.blocks, 5 + shape.random);
    plan.worker_bytes =
        attnkit::aligned(size(plan.blocks * (shape.slots() * shape.d + shape.block * shape.width() + 1) +
                              simd::kQueries * shape.width() + listed));
    const int64_t items = r.batch * shape.heads;
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.flops = static_cast<uint64_t>(items * pairs(r) * (2 * (shape.d + shape.e) + 5));
    if (works(r.batch, r.queries, r.keys))
      info.bytes_read = size(items * (r.queries * shape.d + r.keys * (shape.d + shape.e)) +
                             shape.heads * (shape.blocks() - 2) * shape.random);
    info.bytes_written = size(items * r.queries * shape.e);
    return plan;
  }

  // Otherwise a run only writes zeros.
  static bool works(int64_t batch, int64_t queries, int64_t keys) { return batch > 0 && queries > 0 && keys > 0; }

  void check_place(const attn_request& r) const {
    attnkit::check::only_f32(r);
    if (block.causal || block.role != ATTN_ENCODER_SELF)
      throw attnkit::unsupported(
          "BigBird's first and last block see the whole sequence and all see them, so it fits the self attention of an "
          "encoder only: use a mechanism such as softmax, relu or leap here");
    if (r.flags & ATTN_STREAM)
      throw attnkit::unsupported(
          "BigBird cannot stream, its blocks see blocks that have not arrived: run whole sequences");
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "BigBird has no prefix form, its blocks see the whole sequence: run it without "
          "ATTN_PREFIX");
    const int64_t most = std::max(r.queries, r.keys);
    if (most > shape.length)
      throw attnkit::unsupported("the table of blocks is for ", shape.length, " tokens and up to ", most,
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
        const int64_t n = bigbird::fixed_blocks(shape, i, list);
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
    View<const int32_t> table;
    if (shape.random > 0) table = View<const int32_t>(run.ports[io.table]);
    if (works(run.batch, run.queries, run.keys)) check_table(table);
    const bigbird::Job job{shape,
                           plan,
                           run,
                           static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d))),
                           View<const float>(run.ports[io.q]),
                           View<const float>(run.ports[io.k]),
                           View<const float>(run.ports[io.v]),
                           View<float>(run.ports[io.o]),
                           table};
    const int64_t seen = std::min(run.keys, (5 + shape.random) * shape.block);
    attnkit::simd::share_heads<bigbird::Body>(job, 2.0 * static_cast<double>(run.queries * seen * (shape.d + shape.e)));
  }

  // A table comes from a file, so nothing it says is taken on trust.
  void check_table(const View<const int32_t>& table) const {
    for (int64_t h = 0; h < shape.heads && shape.random > 0; ++h)
      for (int64_t i = 0; i < shape.blocks() - 2; ++i)
        for (int64_t r = 0; r < shape.random; ++r)
          if (const int32_t t = table.row(0, h, i)[r]; t < 0 || t >= shape.blocks())
            throw attnkit::Refusal(ATTN_INVALID,
                                   attnkit::say("the table of blocks names block ", t, " for block ", i + 1,
                                                " of head ", h, " and there are blocks 0 to ", shape.blocks() - 1,
                                                ": store the table that was made for this model"),
                                   static_cast<int32_t>(io.table));
  }

  attn_block block;
  bigbird::Shape shape;
  bigbird::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(BigBird)
