// The landmarks of a row and the softmax of their products.
#pragma once
#include <attnkit/kernels/inverse.hpp>
#include <cmath>

#include "shape.hpp"

namespace nystromformer {

// Rows of scores become softmax rows.
ATTNKIT_INLINE void softmax_rows(const attnkit::Square& s, double scale, double* a) {
  for (int64_t i = 0; i < s.n; ++i) {
    double *x = a + i * s.row, max = -__builtin_inf(), sum = 0;
    for (int64_t j = 0; j < s.n; ++j) {
      x[j] *= scale;
      max = x[j] > max ? x[j] : max;
    }
    for (int64_t j = 0; j < s.n; ++j) sum += x[j] = std::exp(x[j] - max);
    for (int64_t j = 0; j < s.n; ++j) x[j] /= sum;
  }
}

// Some of the landmarks.
struct Landmarks {
  int64_t begin, end;
};

// Element f of landmark t, the mean of a segment's rows, to to[t * next + f * step].
template <class Real>
ATTNKIT_INLINE void means(const Shape& s, const Landmarks& some, const attnkit::View<const Real>& rows, int64_t b,
                          int64_t h, int64_t segment, int64_t n, double* to, int64_t next, int64_t step) {
  for (int64_t t = some.begin; t < some.end; ++t) {
    for (int64_t f = 0; f < s.d; ++f) to[t * next + f * step] = 0;
    for (int64_t i = t * segment; i < std::min(n, (t + 1) * segment); ++i)
      for (int64_t f = 0; f < s.d; ++f) to[t * next + f * step] += double{rows.row(b, h, i)[f]};
    for (int64_t f = 0; f < s.d; ++f) to[t * next + f * step] /= static_cast<double>(segment);
  }
}

}  // namespace nystromformer
