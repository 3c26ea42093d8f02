#include "core/model/dense/dense.hpp"

#include <attnkit/kernels/simd.hpp>

#include "core/base/error.hpp"

namespace attnkit::core {

namespace {

std::shared_ptr<const DenseWeights> packed(const DenseSource& from, WeightType type) {
  switch (type) {
    case WeightType::bf16:
      return bf16_weights(from);
    case WeightType::int8:
      return int8_weights(from);
    case WeightType::int4:
      return int4_weights(from);
    case WeightType::stored:
      fail(ATTN_INTERNAL, "a layer of a type that the reader of weights did not choose");
    default:  // f16 is the device's; what computes here is f32
      return f32_weights(from);
  }
}

}  // namespace

std::byte* DenseWeights::Image::begin(const DenseSource& from, uint64_t bytes) {
  if (!from.image.empty()) {
    if (from.image.size() != bytes)
      fail(ATTN_INVALID, "packed weights of {} bytes: a layer of {} inputs and {} outputs has {}", from.image.size(),
           from.inputs, from.outputs, bytes);
    owner_ = from.owner;
    bytes_ = from.image;
    return nullptr;
  }
  auto* const memory = own_.get<std::byte>(static_cast<int64_t>(bytes));
  bytes_ = {memory, static_cast<size_t>(bytes)};
  return memory;
}

std::byte* DenseWeights::Image::grow(uint64_t more) {
  Buffer larger;
  auto* const memory = larger.get<std::byte>(static_cast<int64_t>(bytes_.size() + more));
  std::byte* const end = std::copy(bytes_.begin(), bytes_.end(), memory);
  own_ = std::move(larger);
  bytes_ = {memory, bytes_.size() + static_cast<size_t>(more)};
  return end;
}

// Changes with whatever changes an image; a test compares images with those of this number.
constexpr int packing_revision = 1;

std::string packing() {
#if defined(__aarch64__)
  const char* const machine = "aarch64";
#else
  const char* const machine = "x86_64";
#endif
  // Rounding is that of the machine's own multiply-adds.
  return fmt::format("{}-{}-{}", packing_revision, machine, simd::level > 0 ? "fma" : "plain");
}

Dense::Dense(int64_t inputs, int64_t outputs, std::span<const float> weight, std::span<const float> bias,
             WeightType type, Threads* threads)
    : inputs_(inputs),
      outputs_(outputs),
      has_bias_(!bias.empty()),
      type_(type),
      weights_(packed({inputs, outputs, weight, bias, threads}, type)) {}

Dense::Dense(int64_t inputs, int64_t outputs, bool has_bias, WeightType type, std::span<const std::byte> image,
             std::shared_ptr<const void> owner)
    : inputs_(inputs),
      outputs_(outputs),
      has_bias_(has_bias),
      type_(type),
      weights_(packed({inputs, outputs, {}, {}, nullptr, image, std::move(owner)}, type)) {}

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
