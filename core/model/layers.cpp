#include "core/model/layers.hpp"

#include <algorithm>
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

void Embedding::apply(const Ids& ids, const std::vector<int32_t>& first, float* x) const {
  for (int64_t b = 0; b < ids.batch; ++b, x += ids.length * width) {
    const int64_t n = ids.length_of(b);
    for (int64_t i = 0; i < n; ++i) {
      const float* token = table.data() + ids.data[b * ids.stride + i] * width;
      for (int64_t c = 0; c < width; ++c) x[i * width + c] = scale * token[c];
    }
    add_positions(first.empty() ? 0 : first[b], n, x);
    std::fill(x + n * width, x + ids.length * width, 0.0f);
  }
}

void Embedding::add_positions(int64_t first, int64_t rows, float* x) const {
  if (!positions.empty()) add(x, positions.data() + first * width, rows * width);
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

std::vector<float> LayerReader::tensor(const std::string& name, const std::vector<int64_t>& shape,
                                       const Initial& initial) {
  std::vector<float> values = weights.f32(name, shape, initial);
  parameters += static_cast<int64_t>(values.size());
  return values;
}

LayerNorm LayerReader::norm(const std::string& name, int64_t width) {
  return {tensor(name + ".weight", {width}, constant(1)), tensor(name + ".bias", {width}, constant(0))};
}

Dense LayerReader::dense(const std::string& name, int64_t inputs, int64_t outputs) {
  const std::vector<float> weight = tensor(name + ".weight", {outputs, inputs}, xavier(inputs, outputs));
  return Dense(inputs, outputs, weight, tensor(name + ".bias", {outputs}, constant(0)));
}

Dense LayerReader::convolution(const std::string& name, int64_t inputs, int64_t outputs, int64_t kernel) {
  const std::vector<float> weight =
      tensor(name + ".weight", {outputs, inputs, kernel}, xavier(inputs * kernel, outputs));
  return convolution_of(inputs, outputs, kernel, weight, tensor(name + ".bias", {outputs}, constant(0)));
}

Embedding LayerReader::embedding(const std::string& name, const Manifest& m, int64_t vocabulary) {
  const Initial embedded = normal(1 / std::sqrt(static_cast<double>(m.d_model)));
  Embedding made{m.d_model, m.embed_scale ? std::sqrt(static_cast<float>(m.d_model)) : 1.0f, {}, {}};
  if (vocabulary > 0) made.table = tensor(name + ".embed.weight", {vocabulary, m.d_model}, embedded);
  if (m.positions == Positions::sinusoidal) made.positions = sinusoidal_positions(m.max_length, m.d_model);
  if (m.positions == Positions::learned)
    made.positions = tensor(name + ".positions.weight", {m.max_length, m.d_model}, embedded);
  return made;
}

}  // namespace attnkit
