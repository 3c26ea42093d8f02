// f32 and bf16 weights: every output is one chain of multiply-adds over the inputs, in f32.  bf16 weights are floats
// without their last 16 bits, half the memory to read; those of two inputs stand in one word, the first in its low
// half, so that a shift and a mask make floats of them.
#include <algorithm>
#include <attnkit/kernels/product.hpp>
#include <span>
#include <type_traits>

#include "core/base/bf16.hpp"
#include "core/base/sha256.hpp"
#include "core/model/dense/walk.hpp"

namespace attnkit::core {
namespace {

constexpr int64_t lanes = panel_outputs;

struct Bf16 {
  uint16_t bits;
};

void round(float from, float& to) { to = from; }

void round(float from, Bf16& to) { to.bits = round_to_bf16(from); }

float widened(float x) { return x; }
float widened(Bf16 x) { return from_bf16(x.bits); }

// Inputs that stand together.
template <class Stored>
constexpr int64_t group = sizeof(float) / sizeof(Stored);

template <class Stored>
int64_t padded_inputs(int64_t inputs) {
  return (inputs + group<Stored> - 1) / group<Stored> * group<Stored>;
}

// The weights of 16 outputs for each of a group's inputs.
template <class Isa>
ATTNKIT_INLINE void load(const float* at, simd::Vec<Isa> (&columns)[1]) {
  columns[0] = simd::at<Isa>(at);
}
template <class Isa>
ATTNKIT_INLINE void load(const Bf16* at, simd::Vec<Isa> (&columns)[2]) {
  const auto words = simd::at<Isa>(reinterpret_cast<const uint32_t*>(at));
  columns[0] = simd::bits_as<float>(words << 16);
  columns[1] = simd::bits_as<float>(words & 0xffff0000);
}

// Keeps a vector in its register, where gcc would read it again for each product.
template <class Isa>
ATTNKIT_INLINE void keep([[maybe_unused]] simd::Vec<Isa>& x) {
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

  static constexpr bool alone = group<Stored> == 1;

  const char* weights_of(int64_t panel) const {
    return reinterpret_cast<const char*>(weight + panel * padded_inputs<Stored>(inputs) * lanes);
  }

  template <class Isa>
  static constexpr int most_rows = alone ? simd::ProductTile<Isa>::rows : Isa::rows;

  // Adds the products of the first `count` inputs of a group.  next: how far the next panel is.
  template <class Isa, int R, int P, int64_t count>
  static ATTNKIT_INLINE void add(const Stored* w, int64_t next, const dense::Ahead& ahead, const float* x,
                                 int64_t x_row, simd::Vec<Isa> (&acc)[R][P]) {
    // gcc would read an input again for each panel; AVX2 has no registers to hold them.
    constexpr bool hold = P > 1 && std::is_same_v<Isa, simd::Avx512>;
    simd::Vec<Isa> held[R][count];
    if constexpr (hold) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int64_t i = 0; i < count; ++i) {
          simd::Vec<Isa> input = x[r * x_row + i] - simd::Vec<Isa>{};
          keep<Isa>(input);
          held[r][i] = input;
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      simd::Vec<Isa> columns[group<Stored>];
      load<Isa>(w + p * next, columns);
      if constexpr (dense::asks_ahead<Isa, R>) __builtin_prefetch(ahead.at + p * dense::memory_line, 0, 2);
#pragma GCC unroll 2
      for (int64_t i = 0; i < count; ++i) {
        simd::Vec<Isa> column = columns[i];
        keep<Isa>(column);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          if constexpr (hold)
            acc[r][p] += held[r][i] * column;
          else
            acc[r][p] += x[r * x_row + i] * column;
        }
      }
      // gcc would load the weights of all panels first, for which NEON has no room.
      if constexpr (!alone && R == 1 && std::is_same_v<Isa, simd::Neon>) asm volatile("" ::: "memory");
    }
  }

  template <class Isa, int R, int P>
  ATTNKIT_INLINE void tile(int64_t row, int64_t panel, dense::Ahead ahead) const {
    simd::Vec<Isa> acc[R][P];
    const int64_t padded = padded_inputs<Stored>(inputs);
    const Stored* w = weight + panel * padded * lanes;
    const int64_t x_row = rows.x_stride;
    const float* x = rows.x + row * x_row;
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[r][p] = simd::at<Isa>(bias + (panel + p) * lanes);
    }
    constexpr int64_t step = group<Stored>;
    int64_t k = 0;
    for (; k + step <= inputs; k += step, ahead.at += ahead.step)
      add<Isa, R, P, step>(w + k * lanes, padded * lanes, ahead, x + k, x_row, acc);
    if (k < inputs) add<Isa, R, P, 1>(w + k * lanes, padded * lanes, ahead, x + k, x_row, acc);
    const int64_t first = panel * lanes;
    float* y = rows.y + row * rows.y_stride + first;
    if (first + P * lanes <= outputs) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) dense::put(acc[r][p], lanes, finish.add, y + r * rows.y_stride + p * lanes);
      return;
    }
    // All sums leave their registers before memcpy is called: gcc keeps in memory, from the first product on, what a
    // call comes between.
    alignas(64) float sums[R][P * lanes];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) simd::store(acc[r][p], sums[r] + p * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
      for (int64_t p = 0; first + p * lanes < outputs; ++p) {
        auto sum = simd::at<Isa>(sums[r] + p * lanes);
        dense::put(sum, std::min(lanes, outputs - first - p * lanes), finish.add, y + r * rows.y_stride + p * lanes);
      }
  }
};

template <class Stored>
class Floats : public DenseWeights {
 public:
  explicit Floats(const DenseSource& from) : inputs_(from.inputs), outputs_(from.outputs) {
    const int64_t count = padded() * padded_inputs<Stored>(inputs_);
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(Stored);
    std::byte* const memory = image_.begin(from, bytes + static_cast<uint64_t>(padded()) * sizeof(float));
    weights_ = {image_.template at<Stored>(0), static_cast<size_t>(count)};
    biases_ = {image_.template at<float>(bytes), static_cast<size_t>(padded())};
    if (!memory) return;
    auto* const packed = reinterpret_cast<Stored*>(memory);
    auto* const bias = reinterpret_cast<float*>(memory + bytes);
    from.each_panel([&](int64_t first, int64_t last) {
      std::fill_n(packed + place(first, 0), padded_inputs<Stored>(inputs_) * lanes, Stored{});
      constexpr int64_t some = 64;  // inputs whose weights of all 16 outputs stay in the first cache
      for (int64_t begin = 0; begin < inputs_; begin += some)
        for (int64_t o = first; o < last; ++o)
          for (int64_t k = begin; k < std::min(inputs_, begin + some); ++k)
            round(from.weight[o * inputs_ + k], packed[place(o, k)]);
    });
    std::fill_n(bias, padded(), 0.0f);
    std::copy(from.bias.begin(), from.bias.end(), bias);
  }

  void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const override {
    const Kernel<Stored> kernel{weights_.data(), biases_.data(), inputs_, outputs_, rows, finish};
    dense::walk(threads, kernel, static_cast<double>(inputs_), [](const auto& piece) { simd::dispatch(piece); });
  }

  void row(int64_t output, float* weights) const override {
    for (int64_t k = 0; k < inputs_; ++k) weights[k] = widened(weights_[static_cast<size_t>(place(output, k))]);
  }

  void digest(Sha256& to) const override {
    std::vector<Stored> panel(static_cast<size_t>(inputs_ * lanes));
    for (int64_t first = 0; first < padded(); first += lanes) {
      for (int64_t k = 0; k < inputs_; ++k)
        for (int64_t l = 0; l < lanes; ++l)
          panel[static_cast<size_t>(k * lanes + l)] = weights_[static_cast<size_t>(place(first + l, k))];
      to.add_numbers(std::span<const Stored>(panel));
    }
    to.add_numbers(biases_);
  }

 private:
  int64_t padded() const { return (outputs_ + lanes - 1) / lanes * lanes; }
  int64_t place(int64_t output, int64_t input) const {
    constexpr int64_t step = group<Stored>;
    const int64_t panel = output / lanes * padded_inputs<Stored>(inputs_) * lanes;
    return panel + (input / step * lanes + output % lanes) * step + input % step;
  }

  int64_t inputs_, outputs_;
  std::span<const Stored> weights_;  // [panel][group of inputs][16][input of a group]
  std::span<const float> biases_;    // padded to panels
};

}  // namespace

std::shared_ptr<const DenseWeights> f32_weights(const DenseSource& from) {
  return std::make_shared<Floats<float>>(from);
}
std::shared_ptr<const DenseWeights> bf16_weights(const DenseSource& from) {
  return std::make_shared<Floats<Bf16>>(from);
}

}  // namespace attnkit::core
