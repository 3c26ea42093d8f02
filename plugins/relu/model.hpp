// The part of relu that is the same on every device.
#pragma once
#include <attnkit/kernels/guard.hpp>

namespace relu {

struct Model {
  static constexpr attnkit::About about{.name = "relu",
                                        .summary = "linear attention with ReLU features: constant state, no positions",
                                        .citation = "Agostinelli and Chen, Modular Linearized Attention, ECML 2023",
                                        .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Guard::option("clamp"), attnkit::Guard::eps_option(1e-6), attnkit::scale_option()};
  }

  template <class Setup>
  explicit Model(const Setup& s) : d(s.shape.d), scale(attnkit::scale_from(s.values, d)) {}

  int64_t d;
  double scale;
};

}  // namespace relu
