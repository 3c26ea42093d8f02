// Pieces of feature maps: ReLU, elu + 1, and the rotation behind cosine re-weighting.
//
// A row A at proportion p becomes [A cos(pi p/2), A sin(pi p/2)], D' = 2 D; by the addition theorem the weight of two
// such rows is (A . B) cos(pi/2 (p - r)).
#ifndef ATTNKIT_KERNELS_FEATURES_HPP
#define ATTNKIT_KERNELS_FEATURES_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit {

// Cosine and sine of `turns` quarter turns, to 1e-11; NaN and infinity give NaN.  |turns| up to 2^50.
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

// Spreads A, which stands in row[0, d), over row[0, 2 d).
ATTNKIT_INLINE void rotate(float* row, int64_t d, double proportion) {
  float c, s;
  quarter_turns(proportion, c, s);
  for (int64_t f = 0; f < d; ++f) {
    row[d + f] = row[f] * s;
    row[f] *= c;
  }
}

// row = max(0, scale * x), NaN stays NaN.
ATTNKIT_INLINE void relu(const float* x, float scale, int64_t d, float* row) {
  for (int64_t f = 0; f < d; ++f) {
    const float y = x[f] * scale;
    row[f] = y < 0 ? 0 : y;
  }
}

// row = elu(scale * x) + 1: y + 1 for positive y, otherwise e^y, which is 0 below -87; NaN stays NaN.
ATTNKIT_INLINE void elu1(const float* x, float scale, int64_t d, float* row) {
  for (int64_t f = 0; f < d; f += simd::kLanes) {
    simd::Vec y;
    simd::load(x + f, d - f, y);
    y *= scale;
    simd::Vec power = y;
    simd::exp(power);
    simd::store(y > 0 ? y + 1.0f : power, d - f, row + f);
  }
}

}  // namespace attnkit
#endif
