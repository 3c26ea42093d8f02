// rope_linear: linear attention with elu(x) + 1 features whose first half is turned by the position.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Su et al.: RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv:2104.09864, Eq. 19; half of the
// features, adjacent pairs and the query's scale as in Agostinelli, Hong, Chen: LeaPformer, ICML 2024.
//
//   o_i = sum_j (R_i A_i . R_j B_j) v_j / g(sum_j A_i . B_j),   A = elu(s Q) + 1, B = elu(K) + 1
//
// R_p turns features 2m and 2m + 1 by p base^(-2m / r) for 2m < r, positions from 0, r = D/2; the denominator is not
// turned, so it stays positive.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;
using attnkit::linear::Place;

struct RopeLinear {
  static constexpr attnkit::About about{
      .name = "rope_linear",
      .summary = "linear attention with elu(x) + 1 features and rotary positions: constant state, relative positions",
      .citation = "Su et al., RoFormer, arXiv:2104.09864, Eq. 19; Agostinelli, Hong and Chen, LeaPformer, ICML 2024",
      .state_revision = "1"};
  static constexpr const char* output_doc = "weighted sum of the values";

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

  explicit RopeLinear(const attnkit::linear::Setup& s)
      : d(s.shape.d),
        scale(attnkit::scale_from(s.values, d)),
        cross(s.block.role == ATTN_DECODER_CROSS),
        crosses(s.values.boolean("cross")) {
    s.shape.split = d;
    const int64_t given = s.values.integer("rotated"), rotated = given ? given : d / 2;
    if (rotated % 2 != 0 || rotated > d)
      throw attnkit::unsupported("rotated is ", rotated, " of ", d,
                                 " features, and features turn in pairs: ", "set rotated to an even number up to ", d)
          .at(s.values.index("rotated"));
    for (int64_t f = 0; f < rotated; f += 2) {
      const double part = static_cast<double>(f) / static_cast<double>(rotated);
      turns.push_back(std::pow(s.values.real("base"), -part) / 1.5707963267948966);
    }
  }

  void check(const attnkit::Request&, attnkit::Info&) const {
    if (cross && !crosses)
      throw attnkit::unsupported(
          "rope_linear compares positions, and those of a target and of a source have no distance: use a mechanism "
          "without positions such as linear or relu for cross attention, or set cross = true to turn each side by its "
          "own");
  }

  // A row is the D turned features for S, then the D plain ones for z.
  template <class Real>
  ATTNKIT_INLINE void spread(const Real* x, double by, int64_t position, Real* row) const {
    attnkit::elu1(x, by, d, row + d);
    std::memcpy(row, row + d, static_cast<size_t>(d) * sizeof(Real));
    turn(position, row);
  }
  // Turns pairs of features by their angles at a position; back, if the position is negative.
  template <class Real>
  ATTNKIT_INLINE void turn(int64_t position, Real* row) const {
    for (size_t m = 0; m < turns.size(); ++m) {
      Real c, s;
      attnkit::quarter_turns(static_cast<double>(position) * turns[m], c, s);
      const Real even = row[2 * m], odd = row[2 * m + 1];
      row[2 * m] = even * c - odd * s;
      row[2 * m + 1] = even * s + odd * c;
    }
  }
  // The turned features' gradient, turned back, and that of the plain ones.
  template <class Real>
  ATTNKIT_INLINE void gradient(const Real* x, double by, int64_t position, const Real* row, const Real* given,
                               Real* to) const {
    std::memcpy(to, given, static_cast<size_t>(d) * sizeof(Real));
    turn(-position, to);
    for (int64_t f = 0; f < d; ++f) to[f] += given[d + f];
    attnkit::elu1_gradient(x, row + d, by, d, to, to);
  }
  template <class Real>
  ATTNKIT_INLINE void query(const Real* x, const Place& at, Real* row) const {
    spread(x, scale, at.position, row);
  }
  template <class Real>
  ATTNKIT_INLINE void key(const Real* x, const Place& at, Real* row) const {
    spread(x, 1, at.position, row);
  }
  template <class Real>
  ATTNKIT_INLINE void query_gradient(const Real* x, const Place& at, Real* row, const Real* given, Real* to) const {
    gradient(x, scale, at.position, row, given, to);
  }
  template <class Real>
  ATTNKIT_INLINE void key_gradient(const Real* x, const Place& at, Real* row, const Real* given, Real* to) const {
    gradient(x, 1, at.position, row, given, to);
  }

  int64_t d;
  double scale;
  bool cross, crosses;
  std::vector<double> turns;  // quarter turns of each pair per position
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::linear::Mechanism<RopeLinear>)
