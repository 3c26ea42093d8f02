#include "core/model/dense/dense.hpp"

#include "core/base/error.hpp"

namespace attnkit::core {

Dense::Dense(int64_t inputs, int64_t outputs, std::span<const float> weight, std::span<const float> bias,
             WeightType type, Threads* threads)
    : inputs_(inputs), outputs_(outputs), has_bias_(!bias.empty()) {
  const DenseSource from{inputs, outputs, weight, bias, threads};
  switch (type) {
    case WeightType::f32:
      weights_ = f32_weights(from);
      break;
    case WeightType::bf16:
      weights_ = bf16_weights(from);
      break;
    case WeightType::int8:
      weights_ = int8_weights(from);
      break;
    case WeightType::int4:
      weights_ = int4_weights(from);
      break;
    case WeightType::stored:
      fail(ATTN_INTERNAL, "a layer of a type that the reader of weights did not choose");
  }
}

Dense convolution_of(int64_t inputs, int64_t outputs, int64_t kernel, const std::vector<float>& weight,
                     const std::vector<float>& bias, WeightType type) {
  std::vector<float> by_row(weight.size());  // (outputs, kernel, inputs), as rows lie in memory
  for (int64_t o = 0; o < outputs; ++o)
    for (int64_t i = 0; i < inputs; ++i)
      for (int64_t k = 0; k < kernel; ++k)
        by_row[(o * kernel + k) * inputs + i] = weight[(o * inputs + i) * kernel + k];
  return Dense(inputs * kernel, outputs, by_row, bias, type);
}

void Dense::apply(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                  std::optional<Activation> f) const {
  weights_->run(threads, {x, x_stride, y, y_stride, rows}, {f, false});
}

void Dense::add(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows) const {
  weights_->run(threads, {x, x_stride, y, y_stride, rows}, {{}, true});
}

void Dense::digest(Sha256& to) const {
  if (weights_) weights_->digest(to);
}

}  // namespace attnkit::core
