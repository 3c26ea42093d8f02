// Pieces of feature maps: ReLU, elu + 1, and the rotation behind cosine re-weighting.
//
// A row A at proportion p becomes [A cos(pi p/2), A sin(pi p/2)], D' = 2 D; by the addition theorem the weight of two
// such rows is (A . B) cos(pi/2 (p - r)).
#ifndef ATTNKIT_KERNELS_FEATURES_HPP
#define ATTNKIT_KERNELS_FEATURES_HPP
#include <attnkit/kernels/map.hpp>
#include <cmath>
#include <type_traits>

namespace attnkit {

// Cosine and sine of `turns` quarter turns, in f32 to 1e-11 before rounding; NaN and infinity give NaN.  |turns| up to
// 2^50.
ATTNKIT_INLINE void quarter_turns(double turns, double& cosine, double& sine) {
  cosine = std::cos(turns * 1.5707963267948966);
  sine = std::sin(turns * 1.5707963267948966);
}
ATTNKIT_INLINE void quarter_turns(double turns, float& cosine, float& sine) {
  const double shift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, held in the low bits
  const double shifted = turns + shift;
  uint64_t quadrant;
  std::memcpy(&quadrant, &shifted, sizeof quadrant);
  const double y = (turns - (shifted - shift)) * 1.5707963267948966, y2 = y * y;
  const double s =
      y * (1 + y2 * (-1.0 / 6 + y2 * (1.0 / 120 + y2 * (-1.0 / 5040 + y2 * (1.0 / 362880 - y2 * (1.0 / 39916800))))));
  const double c =
      1 +
      y2 * (-0.5 + y2 * (1.0 / 24 + y2 * (-1.0 / 720 + y2 * (1.0 / 40320 + y2 * (-1.0 / 3628800 + y2 / 479001600)))));
  const bool swap = (quadrant & 1) != 0;
  const double x0 = swap ? s : c, y0 = swap ? c : s;
  cosine = static_cast<float>((quadrant + 1) & 2 ? -x0 : x0);
  sine = static_cast<float>(quadrant & 2 ? -y0 : y0);
}

// The same in each lane of doubles, to 1e-11.
template <class V>
ATTNKIT_INLINE void quarter_turns(const V& turns, V& cosine, V& sine) {
  const V shift = 6755399441055744.0 - V{};
  const V shifted = turns + shift;
  const auto quadrant = simd::bits_as<uint64_t>(shifted);
  const V y = (turns - (shifted - shift)) * 1.5707963267948966, y2 = y * y;
  V s = y2 * (-1.0 / 39916800) + 1.0 / 362880, c = y2 * (1.0 / 479001600) - 1.0 / 3628800;
  for (const double term : {-1.0 / 5040, 1.0 / 120, -1.0 / 6, 1.0}) s = s * y2 + term;
  for (const double term : {1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1.0}) c = c * y2 + term;
  s *= y;
  const auto swap = (quadrant & uint64_t{1}) == uint64_t{1};
  const V x0 = simd::select(swap, s, c), y0 = simd::select(swap, c, s);
  cosine = simd::select(((quadrant + uint64_t{1}) & uint64_t{2}) == uint64_t{2}, -x0, x0);
  sine = simd::select((quadrant & uint64_t{2}) == uint64_t{2}, -y0, y0);
}

// 1 / (1 + e^-x) in each lane of doubles, to 1e-11; NaN stays NaN.
template <class V>
ATTNKIT_INLINE V sigmoid(const V& x) {
  const V shift = 6755399441055744.0 - V{}, most = 700.0 - V{};
  const V y = simd::select(x < -700.0, most, simd::select(x > 700.0, -most, -x));
  const V shifted = y * 1.4426950408889634 + shift, r = y - (shifted - shift) * 0.6931471805599453;
  V p = r * (1.0 / 362880) + 1.0 / 40320;
  for (const double term : {1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0}) p = p * r + term;
  const V power = simd::bits_as<double>(simd::bits_as<uint64_t>(p) + (simd::bits_as<uint64_t>(shifted) << 52));
  return simd::select(x == x, 1.0 / (power + 1.0), x);
}

// Spreads A, which stands in row[0, d), over row[0, 2 d).
template <class Isa, class Real>
ATTNKIT_INLINE void spread(Real* row, int64_t d, Real cosine, Real sine) {
  const auto by_sine = [sine](const auto& x) __attribute__((always_inline)) { return x * sine; };
  const auto by_cosine = [cosine](const auto& x) __attribute__((always_inline)) { return x * cosine; };
  simd::map<Isa>(d, row + d, by_sine, row);
  simd::map<Isa>(d, row, by_cosine, row);
}
template <class Isa, class Real>
ATTNKIT_INLINE void rotate(Real* row, int64_t d, double proportion) {
  Real c, s;
  quarter_turns(proportion, c, s);
  spread<Isa>(row, d, c, s);
}

// From the gradient of row = [A cos, A sin], given, that of A.
template <class Isa, class Real>
ATTNKIT_INLINE void spread_gradient(int64_t d, Real cosine, Real sine, const Real* given, Real* to) {
  const auto turned = [=](const auto& a, const auto& b) __attribute__((always_inline)) {
    return a * cosine + b * sine;
  };
  simd::map<Isa>(d, to, turned, given, given + d);
}
template <class Isa, class Real>
ATTNKIT_INLINE void rotate_gradient(int64_t d, double proportion, const Real* given, Real* to) {
  Real c, s;
  quarter_turns(proportion, c, s);
  spread_gradient<Isa>(d, c, s, given, to);
}
// The same, that of the proportion.
template <class Isa, class Real>
ATTNKIT_INLINE Real turn_gradient(const Real* row, int64_t d, const Real* given) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  simd::Vector<Real, Isa> sums{};
  int64_t f = 0;
  for (; f + lanes <= d; f += lanes)
    sums +=
        simd::at<Isa>(row + f) * simd::at<Isa>(given + d + f) - simd::at<Isa>(row + d + f) * simd::at<Isa>(given + f);
  Real turned = simd::sum(sums);
  for (; f < d; ++f) turned += row[f] * given[d + f] - row[d + f] * given[f];
  return turned * static_cast<Real>(1.5707963267948966);
}

// row = max(0, scale * x), NaN stays NaN.
template <class Isa, class Real>
ATTNKIT_INLINE void relu(const Real* x, double scale, int64_t d, Real* row) {
  const auto positive = [by = static_cast<Real>(scale)](const auto& of) __attribute__((always_inline)) {
    const auto y = of * by;
    return simd::select(y < Real{0}, decltype(of * by){}, y);
  };
  simd::map<Isa>(d, row, positive, x);
}

// From the gradient of relu(x), given, that of x; 0 where x is 0.  They may stand in one place.
template <class Isa, class Real>
ATTNKIT_INLINE void relu_gradient(const Real* x, double scale, int64_t d, const Real* given, Real* to) {
  const auto where = [by = static_cast<Real>(scale)](const auto& of, const auto& g) __attribute__((always_inline)) {
    return simd::select(of > Real{0}, g * by, decltype(g * by){});
  };
  simd::map<Isa>(d, to, where, x, given);
}

// row = elu(scale * x) + 1: y + 1 for positive y, otherwise e^y, which is 0 below -87; NaN stays NaN.
template <class Isa, class Real>
ATTNKIT_INLINE void elu1(const Real* x, double scale, int64_t d, Real* row) {
  if constexpr (std::is_same_v<Real, double>) {
    for (int64_t f = 0; f < d; ++f) row[f] = x[f] * scale > 0 ? x[f] * scale + 1 : std::exp(x[f] * scale);
  } else {
    for (int64_t f = 0; f < d; f += simd::kLanes) {
      simd::Vec<Isa> y;
      simd::load(x + f, d - f, y);
      y *= static_cast<float>(scale);
      simd::Vec<Isa> power = y;
      simd::exp(power);
      simd::store(simd::select(y > 0.0f, y + 1.0f, power), d - f, row + f);
    }
  }
}

// From the gradient of row = elu1(x), that of x: 1 or e^y times it.
template <class Isa, class Real>
ATTNKIT_INLINE void elu1_gradient(const Real* x, const Real* row, double scale, int64_t d, const Real* given,
                                  Real* to) {
  const auto slope = [by = static_cast<Real>(scale)](const auto& of, const auto& power, const auto& g)
      __attribute__((always_inline)) {
    const auto scaled = g * by;
    return simd::select(of > Real{0}, scaled, scaled * power);
  };
  simd::map<Isa>(d, to, slope, x, row, given);
}

}  // namespace attnkit
#endif
