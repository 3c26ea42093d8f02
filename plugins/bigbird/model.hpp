// The part of bigbird that is the same on every device: options, the table, what it refuses and costs.
#pragma once
#include <algorithm>
#include <attnkit/kernels/random.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <cstring>
#include <vector>

namespace bigbird {

using attnkit::unsupported;

constexpr int64_t kMostRandom = 64;

struct Shape : attnkit::Widths {
  int64_t block, length, random;
  bool repeats;
  int64_t blocks() const { return length / block; }
  // Blocks with a token, in a row of n tokens.
  int64_t live(int64_t n) const { return (n + block - 1) / block; }
  bool global(int64_t i) const { return i == 0 || i == blocks() - 1; }

  // The blocks that block i sees whatever the table says, at most five, each once.  Returns their number.
  int64_t fixed_blocks(int64_t i, int32_t* list) const {
    const int64_t wanted[] = {0, i - 1, i, i + 1, blocks() - 1};
    int64_t n = 0;
    for (const int64_t t : wanted)
      if (n == 0 || t > list[n - 1]) list[n++] = static_cast<int32_t>(t);
    return n;
  }
};

struct Model {
  static constexpr attnkit::About about{
      .name = "bigbird",
      .summary = "softmax attention over a window, global and random blocks: linear cost, encoders only",
      .citation = "Zaheer et al., Big Bird, NeurIPS 2020, arXiv:2007.14062",
      .state_revision = "1"};

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

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
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

  // Refuses what no device can do, and counts the work.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    check_place(r);
    info.flops = static_cast<uint64_t>(r.batch * shape.heads * pairs(r) * (2 * (shape.d + shape.e) + 5));
    if (!works(r)) info.bytes_read = 0;
  }

  // Otherwise a run only writes zeros.
  static bool works(const auto& r) { return r.batch > 0 && r.queries > 0 && r.keys > 0; }

  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.d)); }

  attn_block block;
  Shape shape;
  attnkit::QkvPorts io;
  attnkit::Port table;

 private:
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
};

}  // namespace bigbird
