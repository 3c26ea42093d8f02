// relu: the simplest linear attention, "identity re-weighting".
//
// Agostinelli, Chen: Improving Autoregressive NLP Tasks via Modular Linearized Attention, ECML 2023 (simple ReLU).
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A = ReLU(s Q), B = ReLU(K),   g = none | add | clamp
//
// s is 1 (the authors') or D^-1/2.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;

struct Map {
  int64_t d;
  float scale;

  ATTNKIT_INLINE void query(const float* x, int64_t, int64_t, int64_t, float* row) const {
    attnkit::relu(x, scale, d, row);
  }
  ATTNKIT_INLINE void key(const float* x, int64_t, int64_t, int64_t, float* row) const { attnkit::relu(x, 1, d, row); }
};

struct Relu {
  static constexpr attnkit::About about{.name = "relu",
                                        .summary = "linear attention with ReLU features: constant state, no positions",
                                        .citation = "Agostinelli and Chen, Modular Linearized Attention, ECML 2023",
                                        .state_revision = "1"};
  using Plan = attnkit::linear::Plan;

  static attnkit::Options options() {
    return {Guard::option("clamp"), Guard::eps_option(1e-6), attnkit::scale_option()};
  }

  Relu(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), 0, b.head_width},
        guard(Guard::from(values)) {
    shape.features = shape.width;
    map = {shape.width, attnkit::scale_from(values, shape.width)};
    io = {ports.query("q", shape.width, "queries"), ports.key("k", shape.width, "keys"),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted mean of the values")};
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    return attnkit::linear::plan(shape, request, 0, info);
  }

  void run(const Plan& plan, const attn_run& run) const {
    attnkit::linear::run(shape, guard, plan, io, block.causal, map, run);
  }

  attn_block block;
  attnkit::linear::Shape shape;
  Guard guard;
  Map map;
  attnkit::linear::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Relu)
