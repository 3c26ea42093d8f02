#include "core/model/layers.hpp"

#include <attnkit/kernels/simd.hpp>
#include <cmath>

namespace attnkit {

namespace {

using Halves = double __attribute__((vector_size(64)));  // eight, converted from half a Vec
using HalfVec = float __attribute__((vector_size(32), aligned(4), may_alias));
constexpr int64_t half = simd::kLanes / 2;

ATTNKIT_INLINE double sum_of(const Halves& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// The sum over a row of (x - centre)^power, in double as the variance of nearly equal numbers needs it.
template <int power>
ATTNKIT_INLINE double moment(const float* x, int64_t width, double centre) {
  Halves sums{};
  int64_t i = 0;
  for (; i + half <= width; i += half) {
    const Halves apart = __builtin_convertvector(*reinterpret_cast<const HalfVec*>(x + i), Halves) - centre;
    sums += power == 1 ? apart : apart * apart;
  }
  double sum = sum_of(sums);
  for (; i < width; ++i) sum += power == 1 ? x[i] - centre : (x[i] - centre) * (x[i] - centre);
  return sum;
}

struct Normalise {
  const LayerNorm& norm;
  const float* x;
  float* y;
  int64_t rows;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const int64_t width = static_cast<int64_t>(norm.weight.size());
    const float *weight = norm.weight.data(), *bias = norm.bias.data();
    for (int64_t r = 0; r < rows; ++r) {
      const float* in = x + r * width;
      float* out = y + r * width;
      const double mean = moment<1>(in, width, 0) / static_cast<double>(width);
      const double variance = moment<2>(in, width, mean) / static_cast<double>(width);
      const float inverse = static_cast<float>(1.0 / std::sqrt(variance + 1e-5)), centre = static_cast<float>(mean);
      int64_t i = 0;
      for (; i + simd::kLanes <= width; i += simd::kLanes)
        simd::at(out + i).v = (simd::at(in + i).v - centre) * inverse * simd::at(weight + i).v + simd::at(bias + i).v;
      for (; i < width; ++i) out[i] = (in[i] - centre) * inverse * weight[i] + bias[i];
    }
  }
};

}  // namespace

void LayerNorm::apply(const float* x, float* y, int64_t rows) const { simd::dispatch(Normalise{*this, x, y, rows}); }

void normalise_heads(float* o, int64_t rows, int64_t heads, int64_t width) {
  for (int64_t r = 0; r < rows * heads; ++r, o += width) {
    float squares = 0;
    for (int64_t i = 0; i < width; ++i) squares += o[i] * o[i];
    const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(width) + 1e-5f);
    for (int64_t i = 0; i < width; ++i) o[i] *= inverse;
  }
}

void activate(Activation activation, float* x, int64_t n) {
  if (activation == Activation::relu) {
    // A NaN must stay one, which max(x, 0) would hide.
    for (int64_t i = 0; i < n; ++i) x[i] = x[i] < 0 ? 0.0f : x[i];
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
  }
}

void add(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void Embedding::row(int32_t id, int64_t position, float* x) const {
  const float* token = table.data() + id * width;
  for (int64_t i = 0; i < width; ++i) x[i] = scale * token[i];
  add_position(position, x);
}

void Embedding::add_position(int64_t position, float* x) const {
  if (!positions.empty()) add(x, positions.data() + position * width, width);
}

std::vector<float> sinusoidal_positions(int64_t rows, int64_t width) {
  std::vector<float> table(static_cast<size_t>(rows * width));
  for (int64_t p = 0; p < rows; ++p)
    for (int64_t i = 0; i < width; ++i) {
      const double angle =
          static_cast<double>(p) / std::pow(10000.0, static_cast<double>(i / 2 * 2) / static_cast<double>(width));
      table[p * width + i] = static_cast<float>(i % 2 ? std::cos(angle) : std::sin(angle));
    }
  return table;
}

}  // namespace attnkit
