// The part of local that is the same on every device.
#pragma once
#include <algorithm>
#include <attnkit/kernels/cache.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <limits>

namespace local {

// The keys that a sliding window shows, and their number.
struct Window {
  int64_t size;  // w
  bool causal;

  // Keys before and behind a query, its own aside: |i - j| < w / 2, or i - w < j <= i.
  int64_t before() const { return causal ? size - 1 : (size - 1) / 2; }
  int64_t behind() const { return causal ? 0 : (size - 1) / 2; }
  int64_t width() const { return before() + behind() + 1; }

  // 1 + 2 + ... + x, each at most limit.
  static int64_t capped_sum(int64_t x, int64_t limit) {
    const int64_t free = std::min(x, limit);
    return free * (free + 1) / 2 + (x - free) * limit;
  }
  // Pairs that one run weighs.  Queries stand at the last positions of a causal block, from 0 on otherwise.
  int64_t pairs(const attnkit::Request& r) const {
    const int64_t all = r.capacity();
    if (causal) return capped_sum(all, size) - capped_sum(all - std::min(r.queries, all), size);
    const int64_t n = std::min(r.queries, all + before());  // those further on see nothing
    const int64_t missed = std::max<int64_t>(0, n - 1 - before());
    return capped_sum(n + behind(), all) - capped_sum(behind(), all) - missed * (missed + 1) / 2;
  }
  // Keys of the past that some query of such a run sees.
  int64_t old(const attnkit::Request& r) const {
    if (r.queries == 0) return 0;
    const int64_t first = std::max<int64_t>(0, r.capacity() - r.queries - before());
    return std::max<int64_t>(0, r.past - first);
  }
};

struct Model {
  static constexpr attnkit::About about{
      .name = "local",
      .summary = "softmax attention in a sliding window: linear cost, constant state, blind beyond the window",
      .citation = "Beltagy et al., Longformer, arXiv:2004.05150; Tay et al., Long Range Arena, ICLR 2021",
      .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Option::integer("window", 128, 1, 1 << 24,
                                     "w: a query sees keys nearer than w / 2, in causal blocks the last w"),
            attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2"),
            attnkit::Cache::option()};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape(b, true),
        window{values.integer("window"), b.causal != 0},
        io(ports.qkv(shape, "weighted mean of the values in the window")),
        cache(values) {
    const double given = values.real("scale");
    scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d));
  }

  // Refuses what no device can do, and counts state and work.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "local attention sees the keys around a query's own position, and positions of a target and a source are not "
          "related in cross attention: use it in self attention, and a mechanism such as softmax or linear here");
    const int64_t all = r.capacity(), token = shape.kv_heads * (cache.floats(shape.d) + cache.floats(shape.e));
    info.flags = r.streams() && all > 0 && all <= window.size ? ATTN_REWINDS : 0;
    info.state(r, {std::min(all, window.size) * token, window.old(r) * token, std::min(r.keys, window.size) * token});
    info.flops = static_cast<uint64_t>(r.batch * shape.heads * window.pairs(r) * (2 * (shape.d + shape.e) + 5));
  }
  // Never 0, which would make the -infinity of keys that are not seen NaN.
  float factor() const { return std::max(static_cast<float>(scale), std::numeric_limits<float>::min()); }

  attn_block block;
  attnkit::Widths shape;
  Window window;
  double scale;
  attnkit::QkvPorts io;
  attnkit::Cache cache;
};

}  // namespace local
