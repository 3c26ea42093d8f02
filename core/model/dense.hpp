// A dense layer y = W x + b whose result for a row does not depend on the rows beside it.
// Why not a BLAS: it picks kernels by the number of rows, so a token decoded alone would differ in its last bits from
// the same token decoded in a batch (docs/decisions/dense-layers.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/threads.hpp"

namespace attnkit {

class Dense {
 public:
  Dense() = default;
  // weight: (outputs, inputs), row by row; bias: (outputs) or empty.
  Dense(int64_t inputs, int64_t outputs, const std::vector<float>& weight, const std::vector<float>& bias);

  // y[r] = W x[r] + b for `rows` rows; strides in elements.  x and y do not overlap.  Any thread.
  void apply(Threads& threads, const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows) const;

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }
  // Weights and bias in an order of its own, the same on every machine.
  std::span<const float> numbers() const;
  int64_t parameters() const { return inputs_ * outputs_ + (has_bias_ ? outputs_ : 0); }

 private:
  int64_t inputs_ = 0, outputs_ = 0;
  bool has_bias_ = false;
  std::shared_ptr<Buffer> packed_;  // panels of 16 outputs: [panel][input][16], then the bias padded to panels
};

// A convolution over `kernel` rows that stand one behind the other.  weight: (outputs, inputs, kernel).
Dense convolution_of(int64_t inputs, int64_t outputs, int64_t kernel, const std::vector<float>& weight,
                     const std::vector<float>& bias);

}  // namespace attnkit
