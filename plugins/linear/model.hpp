// The part of linear that is the same on every device.
#pragma once
#include <attnkit/kernels/guard.hpp>

namespace linear {

struct Model {
  static constexpr attnkit::About about{
      .name = "linear",
      .summary = "linear attention with elu(x) + 1 features: positive weights, constant state, no positions",
      .citation = "Katharopoulos et al., Transformers are RNNs, ICML 2020, arXiv:2006.16236",
      .state_revision = "1"};
  static attnkit::Options options() { return {attnkit::Guard::option("add"), attnkit::Guard::eps_option(1e-6)}; }

  template <class Setup>
  explicit Model(const Setup& s) : d(s.shape.d) {}

  int64_t d;
};

}  // namespace linear
