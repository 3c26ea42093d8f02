// The part of rope_linear that is the same on every device.
#pragma once
#include <attnkit/kernels/guard.hpp>

namespace rope_linear {

struct Model {
  static constexpr attnkit::About about{
      .name = "rope_linear",
      .summary = "linear attention with elu(x) + 1 features and rotary positions: constant state, relative positions",
      .citation = "Su et al., RoFormer, arXiv:2104.09864, Eq. 19; Agostinelli, Hong and Chen, LeaPformer, ICML 2024",
      .state_revision = "1"};
  static constexpr const char* output_doc = "weighted sum of the values";

  static attnkit::Options options() {
    using attnkit::Option;
    return {attnkit::Guard::option("none"),
            attnkit::Guard::eps_option(1e-6),
            Option::text("scale", "inverse_sqrt", {"none", "inverse_sqrt"},
                         "multiplies queries by 1 (none) or D^-1/2 (inverse_sqrt) before their map"),
            Option::integer("rotated", 0, 0, 1 << 20, "number of features that are turned, even; 0 means D / 2"),
            Option::real("base", 10000, 1, 1e9, "pair m of r turned features turns by base^(-2m / r) per position"),
            Option::boolean("cross", false,
                            "allows cross attention, each side turned by the position in its own sequence")};
  }

  template <class Setup>
  explicit Model(const Setup& s)
      : d(s.shape.d),
        rotated(s.values.integer("rotated") ? s.values.integer("rotated") : d / 2),
        scale(attnkit::scale_from(s.values, d)),
        base(s.values.real("base")),
        cross(s.block.role == ATTN_DECODER_CROSS),
        crosses(s.values.boolean("cross")) {
    if (rotated % 2 != 0 || rotated > d)
      throw attnkit::unsupported("rotated is ", rotated, " of ", d,
                                 " features, and features turn in pairs: ", "set rotated to an even number up to ", d)
          .at(s.values.index("rotated"));
  }

  void check(const attnkit::Request&, attnkit::Info&) const {
    if (cross && !crosses)
      throw attnkit::unsupported(
          "rope_linear compares positions, and those of a target and of a source have no distance: use a mechanism "
          "without positions such as linear or relu for cross attention, or set cross = true to turn each side by its "
          "own");
  }

  int64_t d, rotated;
  double scale, base;
  bool cross, crosses;
};

}  // namespace rope_linear
