// linear: the linear transformer's attention with elu(x) + 1 features.
//
// Katharopoulos et al.: Transformers are RNNs: Fast Autoregressive Transformers with Linear Attention, ICML 2020,
// arXiv:2006.16236.
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A = elu(Q) + 1, B = elu(K) + 1,   g = none | add | clamp
//
// Every weight is positive.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;

struct Map {
  int64_t d;

  ATTNKIT_INLINE void query(const float* x, int64_t, int64_t, int64_t, float* row) const {
    attnkit::elu1(x, 1, d, row);
  }
  ATTNKIT_INLINE void key(const float* x, int64_t, int64_t, int64_t, float* row) const { attnkit::elu1(x, 1, d, row); }
};

struct Linear {
  static constexpr attnkit::About about{
      .name = "linear",
      .summary = "linear attention with elu(x) + 1 features: positive weights, constant state, no positions",
      .citation = "Katharopoulos et al., Transformers are RNNs, ICML 2020, arXiv:2006.16236",
      .state_revision = "1"};
  using Plan = attnkit::linear::Plan;

  static attnkit::Options options() { return {Guard::option("add"), Guard::eps_option(1e-6)}; }

  Linear(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), 0, b.head_width},
        guard(Guard::from(values)) {
    shape.features = shape.width;
    io = {ports.query("q", shape.width, "queries"), ports.key("k", shape.width, "keys"),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted mean of the values")};
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    return attnkit::linear::plan(shape, request, 0, info);
  }

  void run(const Plan& plan, const attn_run& run) const {
    attnkit::linear::run(shape, guard, plan, io, block.causal, Map{shape.width}, run);
  }

  attn_block block;
  attnkit::linear::Shape shape;
  Guard guard;
  attnkit::linear::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Linear)
