// The part of linformer that is the same on every device: options, ports, what it refuses and costs.
#pragma once
#include <attnkit/kernels/random.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>

#include "shape.hpp"

namespace linformer {

struct Model {
  static constexpr attnkit::About about{
      .name = "linformer",
      .summary = "softmax over learned mixtures of the keys: linear cost, whole sequences and cross attention",
      .citation = "Wang et al., Linformer: Self-Attention with Linear Complexity, 2020, arXiv:2006.04768",
      .state_revision = "1"};

  static attnkit::Options options() {
    return {
        attnkit::Option::integer("rank", 128, 1, 1 << 14, "k, the number of projected keys and values"),
        attnkit::Option::integer("n_max", 4096, 1, 1 << 20, "most keys of a sequence: columns of the projections"),
        attnkit::Option::text("sharing", "heads", {"heads", "per_head_kv", "all"},
                              "heads: E for keys and F for values, shared by the heads; per_head_kv: one matrix per "
                              "head for both; all: one matrix")};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{attnkit::Widths(b), values.integer("rank"), values.integer("n_max")},
        io(ports.qkv(shape, "weighted mean of the projected values")) {
    const int64_t k = shape.rank, n = shape.n_max;
    const auto sharing = values.text("sharing");
    if (sharing == "per_head_kv") {
      e = ports.learned("e", {shape.heads, k, n}, "projection of keys and values, by head");
      matrices = shape.heads;
    } else if (sharing == "all") {
      e = ports.learned("e", {k, n}, "projection of keys and values");
    } else {
      e = ports.learned("e", {k, n}, "projection of keys");
      f = ports.learned("f", {k, n}, "projection of values");
      matrices = 2;
    }
  }

  // torch.nn.Linear's default, a layer with n_max inputs: uniform in +-1/sqrt(n_max).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random(seed, port).fill_uniform(1 / std::sqrt(static_cast<double>(shape.n_max)), data, count);
  }

  // Throws Refusal, or fills what is the same on every device.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    if (block.causal)
      throw attnkit::unsupported(
          "each projected key mixes the keys of all positions, later ones included, so there is no causal form: make "
          "the block bidirectional, or use a mechanism such as softmax or linear");
    const int64_t keys = r.streams() ? r.capacity() : r.keys;
    if (keys > shape.n_max)
      throw attnkit::unsupported("n_max = ", shape.n_max, " columns, one for each key, cannot project ", keys,
                                 " keys: shorten the sequence, or train with a larger n_max");
    info.state(r, shape.heads * shape.head_floats());
    info.flops = static_cast<uint64_t>(r.batch * shape.heads) * shape.flops(r.queries, r.keys);
    if (r.batch > 0 && r.queries + r.keys > 0)  // only the columns of these keys are read
      info.bytes_read -= r.real_bytes(matrices * shape.rank * (shape.n_max - r.keys));
  }

  attn_block block;
  Shape shape;
  attnkit::QkvPorts io;
  attnkit::Port e, f;
  int64_t matrices = 1;
};

}  // namespace linformer
