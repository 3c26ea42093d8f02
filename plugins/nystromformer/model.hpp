// The part of nystromformer that is the same on every device: options, ports, what it refuses and costs.
#pragma once
#include <algorithm>
#include <attnkit/kernels/random.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>

#include "shape.hpp"

namespace nystromformer {

struct Model {
  static constexpr attnkit::About about{
      .name = "nystromformer",
      .summary = "softmax attention through landmarks and a pseudo-inverse: linear cost, whole sequences only",
      .citation = "Xiong et al., Nystromformer, AAAI 2021, arXiv:2102.03902",
      .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Option::integer("landmarks", 64, 1, 4096, "l, the number of segment means of queries and of keys"),
            attnkit::Option::integer("iterations", 6, 1, 16, "steps towards the pseudo-inverse"),
            attnkit::Option::boolean("conv", false, "adds a depthwise convolution of the values, one filter per head"),
            attnkit::Option::integer("kernel", 35, 1, 4095, "width of the convolution, odd"),
            attnkit::Option::integer("length", 0, 0, 1 << 20,
                                     "padded length that segments divide, part of the model; 0: each row's own length, "
                                     "rounded up to a multiple of landmarks")};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{attnkit::Widths(b), values.integer("landmarks"), values.integer("length"), values.integer("iterations"),
              values.boolean("conv") ? values.integer("kernel") : 0},
        io(ports.qkv(shape, "approximate weighted mean of the values")) {
    if (shape.length % shape.landmarks != 0)
      throw attnkit::unsupported("length ", shape.length, " is not a multiple of landmarks ", shape.landmarks,
                                 ": segments are equally long, choose a multiple, or 0")
          .at(values.index("length"));
    if (values.integer("kernel") % 2 == 0)
      throw attnkit::unsupported("kernel ", values.integer("kernel"),
                                 " is even and would shift the sequence by half a position: choose an odd one")
          .at(values.index("kernel"));
    if (shape.kernel > 0) conv = ports.learned("conv", {shape.heads, shape.kernel}, "filter of the values, by head");
  }

  // torch.nn.Conv2d's default with one input channel: uniform in +-1/sqrt(kernel).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random(seed, port).fill_uniform(1 / std::sqrt(static_cast<double>(shape.kernel)), data, count);
  }

  // Throws Refusal, or fills what is the same on every device.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    refuse(r);
    info.count(r, r.batch * shape.heads, shape.flops(r.queries, r.keys));
  }

  attn_block block;
  Shape shape;
  attnkit::QkvPorts io;
  attnkit::Port conv;

 private:
  void refuse(const attnkit::Request& r) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "landmarks of queries and keys are segments of one sequence, so there is no cross attention: use a mechanism "
          "such as softmax or linformer there");
    if (block.causal)
      throw attnkit::unsupported(
          "a landmark is the mean of positions that a causal query may not see, so there is no causal form: make the "
          "block bidirectional, or use a mechanism such as softmax or linear");
    attnkit::check_sight(block, r);
    if (r.shows_prefixes())
      throw attnkit::unsupported(
          "landmarks are means over the whole sequence, so a query cannot see a part of it: run it without "
          "ATTN_PREFIX");
    const int64_t most = std::max(r.queries, r.keys);
    if (shape.length > 0 && most > shape.length)
      throw attnkit::unsupported("length = ", shape.length, " cannot hold a sequence of ", most,
                                 ": shorten it, or set a larger length, or 0");
  }
};

}  // namespace nystromformer
