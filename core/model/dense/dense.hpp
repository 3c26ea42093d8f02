// A dense layer y = f(W x + b) whose result for a row does not depend on the rows beside it.
// Why not a BLAS: it picks kernels by the number of rows, so a token decoded alone would differ in its last bits from
// the same token decoded in a batch (docs/decisions/dense-layers.md).
#pragma once

#include <vector>

#include "core/model/dense/weights.hpp"

namespace attnkit::core {

class Dense {
 public:
  Dense() = default;
  // weight: (outputs, inputs), row by row; bias: (outputs) or empty; both are copied, by these threads or the caller's.
  Dense(int64_t inputs, int64_t outputs, std::span<const float> weight, std::span<const float> bias,
        WeightType type = WeightType::f32, Threads* threads = nullptr);

  // The same of an image() of such a layer.  Throws Error (ATTN_INVALID) unless it has the size for it.
  Dense(int64_t inputs, int64_t outputs, bool has_bias, WeightType type, std::span<const std::byte> image,
        std::shared_ptr<const void> owner);

  // y[r] = f(W x[r] + b) for `rows` rows; strides in elements.  x and y do not overlap.  Any thread.
  void apply(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
             std::optional<Activation> f = {}) const;
  // y[r] += W x[r] + b
  void add(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows) const;

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  int64_t parameters() const { return inputs_ * outputs_ + (has_bias_ ? outputs_ : 0); }
  __int128 multiply_adds(int64_t rows) const { return __int128{rows} * inputs_ * outputs_; }
  bool has_bias() const { return has_bias_; }
  uint64_t bytes() const { return weights_ ? weights_->image().size() : 0; }
  const std::shared_ptr<const DenseWeights>& weights() const { return weights_; }
  WeightType type() const { return type_; }
  // The weights of one output, as they are used: (inputs).
  void row(int64_t output, float* weights) const { weights_->row(output, weights); }
  // Adds the weights as they are used and the bias.
  void digest(Sha256& to) const;

 private:
  int64_t inputs_ = 0, outputs_ = 0;
  bool has_bias_ = false;
  WeightType type_ = WeightType::f32;
  std::shared_ptr<const DenseWeights> weights_;
};

// A convolution over `kernel` rows that stand one behind the other.  weight: (outputs, inputs, kernel).
Dense convolution_of(int64_t inputs, int64_t outputs, int64_t kernel, const std::vector<float>& weight,
                     const std::vector<float>& bias, WeightType type = WeightType::f32);

}  // namespace attnkit::core
