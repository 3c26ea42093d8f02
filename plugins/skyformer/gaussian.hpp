// The Gaussian kernel of rows with the sampled ones, and what the values' sums become between keys and queries.
#pragma once
#include <attnkit/kernels/linear.hpp>

#include "inverse.hpp"

namespace skyformer {

namespace simd = attnkit::simd;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kRows = attnkit::linear::kEvents;  // rows of A at a time

struct Model {
  int64_t heads, d, e, m, steps;
  double scale, gamma;

  int64_t padded() const { return (m + kLanes - 1) / kLanes * kLanes; }
  double flops(int64_t rows) const {
    const auto x = static_cast<double>(m);
    return x * static_cast<double>((3 * d + 2 * e) * rows) + x * x * static_cast<double>(3 * d + 2 * e) +
           8 * x * x * x * static_cast<double>(steps);
  }
};

// What one worker computes in.
struct Scratch {
  double *y, *spare[4], *delta, *row;  // the matrix and its inverse; a row of E doubles
  float *x, *weights, *s, *u;          // samples [D][padded], rows of A, S [m][E], delta Z delta S [m][E]

  // Lays the arrays out from base on, which may be null, and returns their bytes.
  uint64_t lay(const Model& model, char* base) {
    const Square square(model.m);
    uint64_t used = 0;
    const auto take = [&](auto*& array, int64_t count) {
      array = base == nullptr ? nullptr : reinterpret_cast<std::remove_reference_t<decltype(array)>>(base + used);
      used += attnkit::aligned(static_cast<uint64_t>(count) * sizeof *array);
    };
    take(y, square.count());
    for (double*& matrix : spare) take(matrix, square.count());
    take(delta, model.m);
    take(row, model.e);
    take(x, model.d * model.padded());
    take(weights, kRows * model.padded());
    take(s, model.m * model.e);
    take(u, model.m * model.e);
    return used;
  }
};

// By differences: |x|^2 + |y|^2 - 2 x y would lose what is left of two near rows far from the origin.
template <int R, int C>
ATTNKIT_INLINE void gauss(const Model& model, const float* rows, int64_t row_next, int64_t r, int64_t i,
                          const Scratch& scratch) {
  const int64_t next = model.padded(), d = model.d;
  Vec sums[R][C] = {};
  for (int64_t f = 0; f < d; ++f) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const Vec sample = simd::at(scratch.x + f * next + i + c * kLanes).v;
#pragma GCC unroll 4
      for (int t = 0; t < R; ++t) {
        const Vec apart = sample - rows[(r + t) * row_next + f];
        sums[t][c] += apart * apart;
      }
    }
  }
  const auto factor = static_cast<float>(-0.5 * model.scale * model.scale);
  for (int t = 0; t < R; ++t)
    for (int c = 0; c < C; ++c) {
      Vec weight = sums[t][c] * factor;
      simd::exp(weight);
      simd::at(scratch.weights + (r + t) * next + i + c * kLanes).v = weight;
    }
}

// weights[r] = k(row r, each sample), for n rows.
template <class Isa>
ATTNKIT_INLINE void weigh(const Model& model, const float* rows, int64_t row_next, int64_t n, const Scratch& scratch) {
  const int64_t next = model.padded();
  constexpr int64_t columns = Isa::columns * kLanes;
  int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    int64_t i = 0;
    for (; i + columns <= next; i += columns) gauss<4, Isa::columns>(model, rows, row_next, r, i, scratch);
    for (; i < next; i += kLanes) gauss<4, 1>(model, rows, row_next, r, i, scratch);
  }
  for (; r < n; ++r)
    for (int64_t i = 0; i < next; i += kLanes) gauss<1, 1>(model, rows, row_next, r, i, scratch);
}

// y = delta M delta.
ATTNKIT_INLINE void matrix(const Model& model, const Square& square, const Scratch& scratch) {
  const double factor = -0.5 * model.scale * model.scale;
  double *y = scratch.y, *delta = scratch.delta;
  std::memset(y, 0, static_cast<size_t>(square.count()) * sizeof(double));
  for (int64_t i = 0; i < model.m; ++i) {
    double* row = y + i * square.next;
    for (int64_t f = 0; f < model.d; ++f) {
      const float* x = scratch.x + f * model.padded();
      for (int64_t j = i; j < model.m; ++j) {
        const double apart = double{x[i]} - double{x[j]};
        row[j] += apart * apart;
      }
    }
    for (int64_t j = i; j < model.m; ++j) row[j] = std::exp(row[j] * factor);
    row[i] += model.gamma;
    for (int64_t j = 0; j < i; ++j) row[j] = y[j * square.next + i];
  }
  for (int64_t i = 0; i < model.m; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < model.m; ++j) sum += y[i * square.next + j];
    delta[i] = 1 / std::sqrt(sum);
  }
  for (int64_t i = 0; i < model.m; ++i)
    for (int64_t j = 0; j < model.m; ++j) y[i * square.next + j] *= delta[i] * delta[j];
}

// u = delta Z delta S.
template <class Isa>
ATTNKIT_INLINE void solve(const Model& model, const Scratch& scratch) {
  const int64_t m = model.m, e = model.e;
  const Square square(m);
  matrix(model, square, scratch);
  const double* z = skyformer::invert<Isa>(square, scratch.y, model.steps, scratch.spare);
  for (int64_t i = 0; i < m; ++i) {
    double* row = scratch.row;
    std::memset(row, 0, static_cast<size_t>(e) * sizeof(double));
    for (int64_t j = 0; j < m; ++j) {
      const double weight = z[i * square.next + j] * scratch.delta[j];
      for (int64_t c = 0; c < e; ++c) row[c] += weight * double{scratch.s[j * e + c]};
    }
    for (int64_t c = 0; c < e; ++c) scratch.u[i * e + c] = static_cast<float>(scratch.delta[i] * row[c]);
  }
}

}  // namespace skyformer
