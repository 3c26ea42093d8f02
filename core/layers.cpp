#include "core/layers.hpp"

#include <cmath>

namespace attnkit {

void LayerNorm::apply(const float* x, float* y, int64_t rows) const {
  const int64_t width = static_cast<int64_t>(weight.size());
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(width);
    for (int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const float inverse = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + 1e-5));
    const float centre = static_cast<float>(mean);
    for (int64_t i = 0; i < width; ++i) y[i] = (x[i] - centre) * inverse * weight[i] + bias[i];
  }
}

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
