// The part of latte that is the same on every device: options, ports, what it refuses.
#pragma once
#include <attnkit/plugin.hpp>
#include <cmath>

namespace latte {

struct Model {
  static constexpr attnkit::About about{
      .name = "latte",
      .summary = "attention through latents: linear cost, a state of constant size",
      .citation = "Dolga, Cobzarenco and Barber, Latent Attention for Linear Time Transformers, arXiv:2402.17512",
      .state_revision = "1"};

  static attnkit::Options options() {
    return {attnkit::Option::integer("latents", 0, 0, 1 << 16,
                                     "L, the latents of all heads together; heads must divide it; 0 means d_model"),
            attnkit::Option::text("scale", "none", {"none", "inverse_sqrt"},
                                  "multiplies both logits by 1 (none) or D^-1/2 (inverse_sqrt), D = d_model / heads"),
            attnkit::Option::boolean("cross", false,
                                     "allows cross attention, which the paper does not define: queries' latents from "
                                     "the target, keys' latents and values from the source")};
  }

  Model(const attn_block& b, const attnkit::Values& values)
      : block(b),
        cross(values.boolean("cross")),
        latents(of_a_head(b, values)),
        scale(values.text("scale") == "none" ? 1 : 1 / std::sqrt(static_cast<double>(b.key_width))) {}

  attnkit::QkvPorts list(attnkit::Ports& ports) const {
    return {ports.query("latent_q", latents, "a query's logits over the latents of its head", ATTN_NO_BIAS),
            ports.key("latent_k", latents, "a position's logits for each latent of its head", ATTN_NO_BIAS),
            ports.key("v", block.head_width, "values"),
            ports.output("o", block.head_width, "weighted mean of the values")};
  }

  void check_role() const {
    if (block.role == ATTN_DECODER_CROSS && !cross)
      throw attnkit::unsupported(
          "Latte's paper defines self attention alone: set cross = true for the form with queries' latents from the "
          "target and keys' latents and values from the source, or use another mechanism here");
  }

  attn_block block;
  bool cross;
  int64_t latents;  // of a head, l = L / H
  double scale;

 private:
  static int64_t of_a_head(const attn_block& b, const attnkit::Values& values) {
    const int64_t given = values.integer("latents"), all = given != 0 ? given : int64_t{b.heads} * b.key_width;
    if (all % b.heads != 0)
      throw attnkit::unsupported("latents ", all, " cannot be shared out among ", b.heads,
                                 " heads: choose a multiple of ", b.heads)
          .at(values.index("latents"));
    return all / b.heads;
  }
};

}  // namespace latte
