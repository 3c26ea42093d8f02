// rope_linear: linear attention with elu(x) + 1 features whose first half is turned by the position.
//
// Su et al.: RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864, Eq. 19; half of the
// features, adjacent pairs and the query's scale as in Agostinelli, Hong, Chen: LeaPformer, ICML 2024.
//
//   o_i = sum_j (R_i A_i . R_j B_j) v_j / g(sum_j A_i . B_j),   A = elu(s Q) + 1, B = elu(K) + 1
//
// R_p turns features 2m and 2m + 1 by p base^(-2m / r) for 2m < r, positions from 0, r = D/2; the denominator is not
// turned, so it stays positive.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;

// A row is the D turned features for S, then the D plain ones for z.
struct Map {
  int64_t d, rotated;
  float scale;
  const double* turns;  // quarter turns of each pair per position

  ATTNKIT_INLINE void spread(const float* x, float by, int64_t position, float* row) const {
    attnkit::elu1(x, by, d, row + d);
    std::memcpy(row, row + d, static_cast<size_t>(d) * sizeof(float));
    for (int64_t f = 0; f < rotated; f += 2) {
      float c, s;
      attnkit::quarter_turns(static_cast<double>(position) * turns[f / 2], c, s);
      const float even = row[f], odd = row[f + 1];
      row[f] = even * c - odd * s;
      row[f + 1] = even * s + odd * c;
    }
  }
  ATTNKIT_INLINE void query(const float* x, int64_t, int64_t, int64_t position, float* row) const {
    spread(x, scale, position, row);
  }
  ATTNKIT_INLINE void key(const float* x, int64_t, int64_t, int64_t position, float* row) const {
    spread(x, 1, position, row);
  }
};

struct RopeLinear {
  static constexpr attnkit::About about{
      .name = "rope_linear",
      .summary = "linear attention with elu(x) + 1 features and rotary positions: constant state, relative positions",
      .citation = "Su et al., RoFormer, arXiv:2104.09864, Eq. 19; Agostinelli, Hong and Chen, LeaPformer, ICML 2024",
      .state_revision = "1"};
  using Plan = attnkit::linear::Plan;

  static attnkit::Options options() {
    using attnkit::Option;
    return {Guard::option("none"),
            Guard::eps_option(1e-6),
            Option::text("scale", "inverse_sqrt", {"none", "inverse_sqrt"},
                         "multiplies queries by 1 (none) or D^-1/2 (inverse_sqrt) before their map"),
            Option::integer("rotated", 0, 0, 1 << 20, "number of features that are turned, even; 0 means D / 2"),
            Option::real("base", 10000, 1, 1e9, "pair m of r turned features turns by base^(-2m / r) per position"),
            Option::boolean("cross", false,
                            "allows cross attention, each side turned by the position in its own sequence")};
  }

  RopeLinear(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), 0, b.head_width},
        guard(Guard::from(values)),
        scale(attnkit::scale_from(values, shape.width)),
        crosses(values.boolean("cross")) {
    shape.features = shape.split = shape.width;
    const int64_t rotated = rotated_of(values);
    for (int64_t f = 0; f < rotated; f += 2) {
      const double part = static_cast<double>(f) / static_cast<double>(rotated);
      turns.push_back(std::pow(values.real("base"), -part) / 1.5707963267948966);
    }
    io = {ports.query("q", shape.width, "queries"), ports.key("k", shape.width, "keys"),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted sum of the values")};
  }

  int64_t rotated_of(const attnkit::Values& values) const {
    const int64_t given = values.integer("rotated"), d = shape.width, rotated = given ? given : d / 2;
    if (rotated % 2 == 0 && rotated <= d) return rotated;
    throw attnkit::Refusal(ATTN_UNSUPPORTED,
                           attnkit::say("rotated is ", rotated, " of ", d, " features, and features turn in pairs: ",
                                        "set rotated to an even number up to ", d),
                           values.index("rotated"));
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    if (block.role == ATTN_DECODER_CROSS && !crosses)
      throw attnkit::unsupported(
          "rope_linear compares positions, and those of a target and of a source have no distance: use a mechanism "
          "without positions such as linear or relu for cross attention, or set cross = true to turn each side by its "
          "own");
    return attnkit::linear::plan(shape, request, 0, info);
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Map map{shape.width, 2 * static_cast<int64_t>(turns.size()), scale, turns.data()};
    attnkit::linear::run(shape, guard, plan, io, block.causal, map, run);
  }

  attn_block block;
  attnkit::linear::Shape shape;
  Guard guard;
  float scale;
  bool crosses;
  std::vector<double> turns;
  attnkit::linear::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(RopeLinear)
