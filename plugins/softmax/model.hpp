// The part of softmax that is the same on every device.
#pragma once
#include <algorithm>
#include <attnkit/kernels/cache.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <limits>

namespace softmax {

struct Model {
  static constexpr attnkit::About about{
      .name = "softmax",
      .summary = "scaled dot-product attention: exact, quadratic, the state grows with the length",
      .citation = "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762",
      .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2"),
            attnkit::Cache::option()};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), shape(b, true), io(ports.qkv(shape, "weighted mean of the values")), cache(values) {
    const double given = values.real("scale");
    scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d));
  }

  // Floats of one position in the state.
  int64_t token() const { return shape.kv_heads * (cache.floats(shape.d) + cache.floats(shape.e)); }

  // Refuses what no device can do, and counts state and work.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    info.flags = ATTN_REWINDS;
    info.state(r, {.floats = r.capacity() * token(), .read = r.capacity() * token(), .written = r.keys * token()});
    info.flops = static_cast<uint64_t>(shape.heads) * attnkit::pairs(r, block.causal) *
                 static_cast<uint64_t>(2 * (shape.d + shape.e) + 5);
  }
  // Never 0, which would make the -infinity of keys that are not seen NaN.
  float factor() const { return std::max(static_cast<float>(scale), std::numeric_limits<float>::min()); }

  attn_block block;
  attnkit::Widths shape;
  attnkit::QkvPorts io;
  attnkit::Cache cache;
  double scale;
};

}  // namespace softmax
