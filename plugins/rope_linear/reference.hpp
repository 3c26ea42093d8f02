// rope_linear in float64, as the paper writes it: o_i = sum_j turned(a_i, b_j, i - j) v_j / g(sum_j a_i . b_j) over the
// keys j that query i sees, a_i and b_j being their maps.
#pragma once
#include <cmath>
#include <complex>

#include "support/matrix.hpp"

namespace attnkit::test {

struct Form {
  bool scaled = true;
  int64_t rotated = 0;
  double base = 10000;

  // elu(s x) + 1, s = D^-1/2 for queries.
  Row map(const Row& x, bool query) const {
    const double scale = query && scaled ? 1 / std::sqrt(static_cast<double>(x.size())) : 1;
    Row y;
    for (const double v : x) y.push_back(v * scale > 0 ? v * scale + 1 : std::exp(v * scale));
    return y;
  }
  // (R_i a) . (R_j b): as complex numbers, pair m of a and the conjugate of that of b turn by (i - j) base^(-2m / r).
  double turned(const Row& a, const Row& b, int64_t distance) const {
    const size_t r = rotated ? static_cast<size_t>(rotated) : a.size() / 2;
    double dot = 0;
    for (size_t f = 0; f < r; f += 2) {
      const double angle =
          static_cast<double>(distance) * std::pow(base, -static_cast<double>(f) / static_cast<double>(r));
      dot += (std::complex(a[f], a[f + 1]) * std::complex(b[f], -b[f + 1]) * std::polar(1.0, angle)).real();
    }
    for (size_t f = r; f < a.size(); ++f) dot += a[f] * b[f];
    return dot;
  }
};

}  // namespace attnkit::test
