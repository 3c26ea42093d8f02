// The guard of a denominator, and the scale of queries, as options.
#ifndef ATTNKIT_KERNELS_GUARD_HPP
#define ATTNKIT_KERNELS_GUARD_HPP
#include <attnkit/plugin.hpp>
#include <cmath>

namespace attnkit {

// What stands under the fraction instead of the plain sum x of weights: x, x + eps, or max(x, eps).
struct Guard {
  enum Kind { kNone, kAdd, kClamp } kind = kClamp;
  float eps = 0;

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
    return {name == "none" ? kNone : name == "add" ? kAdd : kClamp, static_cast<float>(values.real("eps"))};
  }
  // NaN stays NaN.
  inline __attribute__((always_inline)) float operator()(float x) const {
    if (kind == kNone) return x;
    if (kind == kAdd) return x + eps;
    return x < eps ? eps : x;
  }
};

// The option of mechanisms that may scale queries by D^-1/2 before their map, and its value for width d.
inline Option scale_option() {
  return Option::text(
      "scale", "none", {"none", "inverse_sqrt"},
      "multiplies queries by 1 (none) or D^-1/2 (inverse_sqrt) first; matters only where the guard bites");
}
inline float scale_from(const Values& values, int64_t d) {
  return values.text("scale") == "inverse_sqrt" ? static_cast<float>(1 / std::sqrt(static_cast<double>(d))) : 1.0f;
}

}  // namespace attnkit
#endif
