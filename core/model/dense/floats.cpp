// f32 and bf16 weights: every output is one chain of multiply-adds over the inputs, in f32.  bf16 weights are floats
// without their last 16 bits, half the memory to read.
#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>

#include "core/base/buffer.hpp"
#include "core/base/sha256.hpp"
#include "core/model/dense/walk.hpp"

namespace attnkit {
namespace {

constexpr int64_t lanes = panel_outputs;

struct Bf16 {
  uint16_t bits;
};

void round(float from, float& to) { to = from; }

// To the nearest, ties to even.  A NaN stays one.
void round(float from, Bf16& to) {
  const auto bits = std::bit_cast<uint32_t>(from);
  const uint32_t kept = from == from ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000;
  to.bits = static_cast<uint16_t>(kept >> 16);
}

float widened(float x) { return x; }
float widened(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

ATTNKIT_INLINE void load(const float* at, simd::Vec& to) { to = simd::at(at).v; }

ATTNKIT_INLINE void load(const Bf16* at, simd::Vec& to) {
  using Halves = uint16_t __attribute__((vector_size(32)));
  Halves halves;
  std::memcpy(&halves, at, sizeof halves);
  const simd::Bits bits = __builtin_convertvector(halves, simd::Bits) << 16;
  std::memcpy(&to, &bits, sizeof to);
}

// Keeps a vector in its register: for few rows gcc would read a weight again for each of them.
template <class Isa>
ATTNKIT_INLINE void keep([[maybe_unused]] simd::Vec& x) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (std::is_same_v<Isa, simd::Avx512>) asm("" : "+v"(x));
#endif
}

template <class Stored>
struct Kernel {
  const Stored* weight;
  const float* bias;
  int64_t inputs, outputs;
  const DenseRows& rows;
  const DenseFinish& finish;

  template <class Isa, int R, int P>
  ATTNKIT_INLINE void tile(int64_t row, int64_t panel) const {
    simd::Vec acc[R][P];
    const Stored* w = weight + panel * inputs * lanes;
    const float* x = rows.x + row * rows.x_stride;
    for (int p = 0; p < P; ++p) {
      for (int r = 0; r < R; ++r) acc[r][p] = simd::at(bias + (panel + p) * lanes).v;
    }
    for (int64_t k = 0; k < inputs; ++k) {
      for (int p = 0; p < P; ++p) {
        const Stored* at = w + (p * inputs + k) * lanes;
        simd::Vec column;
        load(at, column);
        keep<Isa>(column);
        // Many rows compute long enough for the memory to be asked ahead; one row only waits for it.
        if constexpr (R * 2 > Isa::rows) __builtin_prefetch(at + 32 * lanes);
        for (int r = 0; r < R; ++r) acc[r][p] += x[r * rows.x_stride + k] * column;
      }
    }
    for (int p = 0; p < P; ++p) {
      const int64_t first = (panel + p) * lanes, n = std::min(lanes, outputs - first);
      for (int r = 0; r < R; ++r) dense::put(acc[r][p], n, finish.add, rows.y + (row + r) * rows.y_stride + first);
    }
  }
};

template <class Stored>
class Floats : public DenseWeights {
 public:
  explicit Floats(const DenseSource& from) : inputs_(from.inputs), outputs_(from.outputs) {
    Stored* packed = weight_.get<Stored>(padded() * inputs_);
    std::fill_n(packed, padded() * inputs_, Stored{});
    for (int64_t o = 0; o < outputs_; ++o)
      for (int64_t k = 0; k < inputs_; ++k) round(from.weight[o * inputs_ + k], packed[place(o) + k * lanes]);
    std::fill_n(bias_.get<float>(padded()), padded(), 0.0f);
    std::copy(from.bias.begin(), from.bias.end(), bias_.get<float>(padded()));
    weights_ = {packed, static_cast<size_t>(padded() * inputs_)};
    biases_ = {bias_.get<float>(padded()), static_cast<size_t>(padded())};
  }

  void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const override {
    const Kernel<Stored> kernel{weights_.data(), biases_.data(), inputs_, outputs_, rows, finish};
    dense::walk(threads, kernel, static_cast<double>(inputs_), [](const auto& piece) { simd::dispatch(piece); });
  }

  void row(int64_t output, float* weights) const override {
    const Stored* at = weights_.data() + place(output);
    for (int64_t k = 0; k < inputs_; ++k) weights[k] = widened(at[k * lanes]);
  }

  void digest(Sha256& to) const override {
    to.add_numbers(weights_);
    to.add_numbers(biases_);
  }
  uint64_t bytes() const override { return weight_.bytes() + bias_.bytes(); }

 private:
  int64_t padded() const { return (outputs_ + lanes - 1) / lanes * lanes; }
  int64_t place(int64_t output) const { return output / lanes * inputs_ * lanes + output % lanes; }

  int64_t inputs_, outputs_;
  Buffer weight_, bias_;  // [panel][input][16]; padded to panels
  std::span<const Stored> weights_;
  std::span<const float> biases_;
};

}  // namespace

std::shared_ptr<const DenseWeights> f32_weights(const DenseSource& from) {
  return std::make_shared<Floats<float>>(from);
}
std::shared_ptr<const DenseWeights> bf16_weights(const DenseSource& from) {
  return std::make_shared<Floats<Bf16>>(from);
}

}  // namespace attnkit
