// The guard of a denominator, and the scale of queries, as options.
#ifndef ATTNKIT_KERNELS_GUARD_HPP
#define ATTNKIT_KERNELS_GUARD_HPP
#include <attnkit/plugin.hpp>
#include <cmath>

namespace attnkit {

// The denominator, for a sum x of weights: x, x + eps, or max(x, eps).
struct Guard {
  enum Kind { kNone, kAdd, kClamp } kind = kClamp;
  double eps = 0;

  static Option option(const char* fallback) {
    return Option::text("guard", fallback, {"none", "add", "clamp"},
                        "denominator x becomes x (none), x + eps (add) or max(x, eps) (clamp); part of the model");
  }
  static Option eps_option(double fallback) {
    return Option::real("eps", fallback, 0, 1e6, "the guard's epsilon, absolute");
  }
  // None where the mechanism has no such option.
  static Guard from(const Values& values) {
    if (!values.has("guard")) return {kNone, 0};
    const auto name = values.text("guard");
    return {name == "none" ? kNone : name == "add" ? kAdd : kClamp, values.real("eps")};
  }
  // NaN stays NaN.
  template <class Real>
  inline __attribute__((always_inline)) Real operator()(Real x) const {
    const auto e = static_cast<Real>(eps);
    if (kind == kNone) return x;
    if (kind == kAdd) return x + e;
    return x < e ? e : x;
  }
  // Its derivative; 1 where x is eps, as torch has it.
  template <class Real>
  inline __attribute__((always_inline)) Real slope(Real x) const {
    return kind == kClamp && x < static_cast<Real>(eps) ? 0 : 1;
  }
};

// The option of mechanisms that may scale queries by D^-1/2 before their map, and its value for width d.
inline Option scale_option() {
  return Option::text(
      "scale", "none", {"none", "inverse_sqrt"},
      "multiplies queries by 1 (none) or D^-1/2 (inverse_sqrt) first; matters only where the guard bites");
}
inline double scale_from(const Values& values, int64_t d) {
  return values.text("scale") == "inverse_sqrt" ? 1 / std::sqrt(static_cast<double>(d)) : 1.0;
}

}  // namespace attnkit
#endif
