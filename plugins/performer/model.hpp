// The part of performer that is the same on every device: options, the stabiliser, the random directions.
#ifndef PLUGINS_PERFORMER_MODEL_HPP
#define PLUGINS_PERFORMER_MODEL_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/random.hpp>
#include <cmath>
#include <vector>

namespace attnkit::performer {

// The random directions: blocks of D orthonormal rows, rescaled; the same bytes for a seed on every machine.
ATTNKIT_EXACT inline double inner(const double* x, const double* y, int64_t n) {
  ATTNKIT_NO_CONTRACTION
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// Gram-Schmidt of a Gaussian row against `done` orthonormal rows before it.  Twice: once leaves the rounding of a row
// that was nearly in their span.
ATTNKIT_EXACT inline void draw_row(Random& random, double* rows, int64_t done, int64_t d) {
  ATTNKIT_NO_CONTRACTION
  double* row = rows + done * d;
  double size = 0;
  while (size < 1e-6) {
    for (int64_t f = 0; f < d; ++f) row[f] = random.normal();
    for (int pass = 0; pass < 2; ++pass)
      for (int64_t r = 0; r < done; ++r) {
        const double* other = rows + r * d;
        const double share = inner(row, other, d);
        for (int64_t f = 0; f < d; ++f) row[f] -= share * other[f];
      }
    size = std::sqrt(inner(row, row, d));
  }
  for (int64_t f = 0; f < d; ++f) row[f] /= size;
}

// The norm of a Gaussian row of d numbers.
ATTNKIT_EXACT inline double draw_norm(Random& random, int64_t d) {
  ATTNKIT_NO_CONTRACTION
  double square = 0;
  for (int64_t f = 0; f < d; ++f) {
    const double x = random.normal();
    square += x * x;
  }
  return std::sqrt(square);
}

// Writes m rows of d numbers.  Every row has the direction of a Gaussian one; its norm is that of another Gaussian row,
// or d^1/2 when equal_norms.
ATTNKIT_EXACT inline void draw_omega(Random random, bool equal_norms, int64_t m, int64_t d, float* omega) {
  ATTNKIT_NO_CONTRACTION
  std::vector<double> block(static_cast<size_t>(d * d));
  for (int64_t r = 0; r < m; ++r) {
    const int64_t done = r % d;
    draw_row(random, block.data(), done, d);
    const double norm = equal_norms ? std::sqrt(static_cast<double>(d)) : draw_norm(random, d);
    for (int64_t f = 0; f < d; ++f)
      omega[r * d + f] = static_cast<float>(norm * block[static_cast<size_t>(done * d + f)]);
  }
}

enum class Stabiliser { kRunning, kFixed, kGlobal };

struct Model {
  static constexpr About about{
      .name = "performer",
      .summary = "softmax attention estimated with positive random features (FAVOR+): constant state, streams",
      .citation = "Choromanski et al., Rethinking Attention with Performers, ICLR 2021, arXiv:2009.14794",
      .state_revision = "1"};
  static Options options() {
    return {Option::integer("features", 128, 1, 65536, "random features m: rows of omega"),
            Option::real("feature_eps", 0, 0, 1, "added to every feature; not the guard's eps"),
            Option::text("scaling", "gaussian", {"gaussian", "sqrt_d"},
                         "norms of omega's rows: those of independent Gaussian rows, or all D^1/2"),
            Option::text("stabiliser", "running", {"running", "fixed", "global"},
                         "what exponents of keys are lowered by: a running maximum, the option fixed, or the largest "
                         "projection of all keys of the head"),
            Option::real("fixed", 0, -1e4, 1e4, "the constant of stabiliser = fixed; part of the model"),
            Guard::option("none"),
            Guard::eps_option(1e-6)};
  }

  Model(const attn_block& b, const Values& values)
      : m(values.integer("features")),
        d(b.key_width),
        scale(1 / std::sqrt(std::sqrt(static_cast<double>(d)))),
        root(1 / std::sqrt(static_cast<double>(d))),
        fixed(values.real("fixed")),
        feature_eps(values.real("feature_eps")),
        guard(Guard::from(values)),
        cancels(feature_eps == 0 && guard.kind == Guard::kNone),
        equal_norms(values.text("scaling") == "sqrt_d") {
    choose(values);
  }
  void list(Ports& ports) { omega = ports.table("omega", {m, d}, "random directions, shared by the heads"); }

  void choose(const Values& values) {
    const auto name = values.text("stabiliser");
    if (name == "running" && feature_eps > 0)
      throw unsupported(
          "feature_eps = ", feature_eps,
          " would make results depend on the order of the keys, because a running stabiliser only cancels "
          "at 0: set stabiliser to fixed or global")
          .at(values.index("feature_eps"));
    if (name == "running" && guard.kind != Guard::kNone)
      throw unsupported("guard = ", values.text("guard"),
                        " needs a scale and a running stabiliser has none of its own; its denominators are 1 or more: "
                        "leave the guard none, or set stabiliser to fixed or global")
          .at(values.index("guard"));
    if (name != "fixed" && fixed != 0)
      throw unsupported("fixed = ", values.real("fixed"), " is not read when stabiliser is ", name,
                        ": set stabiliser to fixed, or leave fixed out")
          .at(values.index("fixed"));
    if (name == "fixed") stabiliser = Stabiliser::kFixed;
    if (name == "global" && !cancels) stabiliser = Stabiliser::kGlobal;
  }

  void check_stabiliser(const attn_block& block, const Request& r) const {
    if (stabiliser == Stabiliser::kGlobal && (block.causal || r.streams() || r.shows_prefixes()))
      throw unsupported(
          "stabiliser = global with feature_eps or a guard lets keys that a query does not see yet change its result, "
          "because a maximum over all keys does not cancel then: set feature_eps to 0 and guard to none, or stabiliser "
          "to fixed, for causal blocks, streams and prefixes");
  }

  void fill(uint32_t port, uint64_t seed, float* data, int64_t) const {
    draw_omega(Random(seed, port), equal_norms, m, d, data);
  }

  int64_t m, d;
  double scale, root;         // D^-1/4, D^-1/2
  double fixed, feature_eps;  // c of kFixed
  Guard guard;
  bool cancels;  // factors of a row's features do not matter
  Stabiliser stabiliser = Stabiliser::kRunning;
  bool equal_norms;
  Port omega;
};

}  // namespace attnkit::performer
#endif
