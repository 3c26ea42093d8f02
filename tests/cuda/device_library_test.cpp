// libattnkit_cuda.so, on the emulator or on a GPU: every function of its table against a float64 form of what it says,
// and every refusal.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "core/device/table.hpp"
#ifndef ATTNKIT_ON_A_GPU
#include <cuda_runtime.h>

#include "cuda/emulator/cublaslt.hpp"
#include "cuda/emulator/emulator.hpp"
#endif

namespace attnkit::core {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;
using Ids = std::vector<int32_t>;

constexpr DeviceType kF32 = DeviceType::f32;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

#ifdef ATTNKIT_ON_A_GPU
constexpr double kTf32Bound = 2e-3;  // of the sum of the terms' sizes: cuBLASLt does not say how it rounds each
#else
constexpr double kTf32Bound = 5e-6;
#endif

const DeviceTable& table() {
  static const DeviceTable* all = [] {
    void* library = dlopen(ATTNKIT_DEVICE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<DeviceTableFn>(dlsym(library, "attnkit_device_table"))();
  }();
  return *all;
}

Floats random_floats(int64_t n, uint64_t seed, double scale = 1, double centre = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Floats all(static_cast<size_t>(n));
  for (float& x : all) x = static_cast<float>(centre + scale * normal(random));
  return all;
}

// x with so many bits of its significand, halves to the even neighbour, or away from 0.
double rounded(double x, int bits, int least_exponent, bool even = true) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), least_exponent);
  const double steps = std::ldexp(x, bits - 1 - exponent);
  return std::ldexp(even ? std::nearbyint(steps) : std::round(steps), exponent - bits + 1);
}

double rounded(double x, DeviceType type) {
  switch (type) {
    case DeviceType::f32:
      return x;
    case DeviceType::tf32:
      return rounded(x, 11, -126, false);
    case DeviceType::bf16:
      return rounded(x, 8, -126);
    case DeviceType::f16:
      return rounded(x, 11, -14);
  }
  return 0;
}

// What 16 bits stand for.
double number_of(uint16_t bits, DeviceType type) {
  const int fraction = type == DeviceType::bf16 ? 7 : 10, bias = type == DeviceType::bf16 ? 127 : 15;
  const int exponent = (bits & 0x7FFF) >> fraction, rest = bits & ((1 << fraction) - 1);
  const double size = std::ldexp(exponent > 0 ? rest + (1 << fraction) : rest, std::max(exponent, 1) - bias - fraction);
  return (bits & 0x8000) != 0 ? -size : size;
}

double activated(double x, DeviceActivation f) {
  switch (f) {
    case DeviceActivation::none:
      return x;
    case DeviceActivation::relu:
      return std::max(x, 0.0);
    case DeviceActivation::gelu:
      return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    case DeviceActivation::gelu_tanh:
      return x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))) / 2;
    case DeviceActivation::quick_gelu:
      return x / (1 + std::exp(-1.702 * x));
    case DeviceActivation::silu:
      return x / (1 + std::exp(-x));
  }
  return 0;
}

// sizes: that the error is a share of, where it is not that of `expected`.
void expect_close(const Floats& got, const Doubles& expected, const std::string& what, double bound = 5e-6,
                  const Doubles& sizes = {}) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  double apart = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << what << ", " << i;
    apart += (double{got[i]} - expected[i]) * (double{got[i]} - expected[i]);
    const double own = sizes.empty() ? expected[i] : sizes[i];
    size += own * own;
  }
  EXPECT_LE(std::sqrt(apart), bound * std::sqrt(size)) << what;
}

// Each test has a device and a stream of its own.
class DeviceLibrary : public testing::Test {
 protected:
  void SetUp() override {
    error_.struct_size = sizeof error_;
    ASSERT_EQ(ATTN_OK, table().open(0, &device_, &error_)) << error_.message;
    ASSERT_EQ(ATTN_OK, table().make_stream(device_, &stream_, &error_)) << error_.message;
  }
  void TearDown() override {
    for (void* memory : memory_) table().release(device_, memory);
    if (stream_) table().free_stream(device_, stream_);
    if (device_) table().close(device_);
#ifndef ATTNKIT_ON_A_GPU
    EXPECT_EQ("", emulator::take_report());
    emulator::cublaslt() = {};
#endif
  }

  // table().f(the device, the stream, arguments...)
  template <class... Parameter, class... Argument>
  int32_t code_of(int32_t (*f)(DeviceHandle*, uintptr_t, Parameter...), const Argument&... arguments) {
    return f(device_, stream_, arguments..., &error_);
  }
  template <class... Parameter, class... Argument>
  void run(int32_t (*f)(DeviceHandle*, uintptr_t, Parameter...), const Argument&... arguments) {
    ASSERT_EQ(ATTN_OK, code_of(f, arguments...)) << error_.message;
  }

  // Device memory of n numbers, `off` of them past its beginning.
  template <class T>
  T* make(int64_t n, int64_t off = 0) {
    void* memory = nullptr;
    EXPECT_EQ(ATTN_OK, table().allocate(device_, static_cast<uint64_t>(n + off) * sizeof(T), &memory, &error_))
        << error_.message;
    memory_.push_back(memory);
    return static_cast<T*>(memory) + off;
  }
  template <class T>
  T* give(const std::vector<T>& from, int64_t off = 0) {
    T* to = make<T>(static_cast<int64_t>(from.size()), off);
    run(table().from_host, to, from.data(), from.size() * sizeof(T));
    return to;
  }
  template <class T>
  std::vector<T> take(const T* from, int64_t n) {
    std::vector<T> to(static_cast<size_t>(n));
    run(table().to_host, to.data(), from, to.size() * sizeof(T));
    return to;
  }
  Floats take(const float* from, size_t n) { return take<float>(from, static_cast<int64_t>(n)); }

  DeviceDense layer_of(DeviceType type, int64_t inputs, int64_t outputs, const Floats& weight, const float* bias,
                       int64_t off = 0) {
    const bool has_16 = type == DeviceType::bf16 || type == DeviceType::f16;
    void* packed = has_16 ? static_cast<void*>(make<uint16_t>(inputs * outputs, off))
                          : static_cast<void*>(make<float>(inputs * outputs, off));
    run(table().pack, type, weight.data(), inputs * outputs, packed);
    return {packed, bias, inputs, outputs, type};
  }
  void* scratch_of(const DeviceDense& layer, int64_t rows) {
    const uint64_t bytes = table().dense_scratch(&layer, rows);
    return bytes ? make<char>(static_cast<int64_t>(bytes)) : nullptr;
  }

  // Memory for n numbers in f32 or 16 bits.
  void* make_in(DeviceType type, int64_t n, int64_t off = 0) {
    return type == kF32 ? static_cast<void*>(make<float>(n, off)) : static_cast<void*>(make<uint16_t>(n, off));
  }
  void* give_in(DeviceType type, const Floats& x, int64_t off = 0) {
    if (type == kF32) return give(x, off);
    void* to = make_in(type, static_cast<int64_t>(x.size()), off);
    run(table().round_to_16_bits, type, give(x), static_cast<int64_t>(x.size()), to);
    return to;
  }
  Floats take_in(DeviceType type, const void* from, size_t n) {
    if (type == kF32) return take(static_cast<const float*>(from), n);
    Floats all;
    for (const uint16_t bits : take<uint16_t>(static_cast<const uint16_t*>(from), static_cast<int64_t>(n)))
      all.push_back(static_cast<float>(number_of(bits, type)));
    return all;
  }

  // A dense layer of random numbers, off: how far from aligned all its memory is.
  void test_dense(DeviceType type, int64_t inputs, int64_t outputs, int64_t rows, DeviceActivation f, bool has_bias,
                  bool add, int64_t off = 0) {
    const std::string what = "type " + std::to_string(static_cast<int>(type)) + ", " + std::to_string(inputs) + " to " +
                             std::to_string(outputs) + ", rows " + std::to_string(rows) + ", f " +
                             std::to_string(static_cast<int>(f)) + (has_bias ? ", bias" : "") + (add ? ", add" : "");
    const auto weight = random_floats(inputs * outputs, 1, 1 / std::sqrt(static_cast<double>(inputs))),
               bias = random_floats(outputs, 2), x = random_floats(rows * inputs, 3),
               before = random_floats(rows * outputs, 4);
    const DeviceDense layer = layer_of(type, inputs, outputs, weight, has_bias ? give(bias, off) : nullptr, off);
    const float* in = give(x, off);
    float* y = add ? give(before, off) : make<float>(rows * outputs, off);
    run(table().dense, &layer, in, kF32, y, kF32, rows, f, add, scratch_of(layer, rows));
    Doubles expected, terms;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < outputs; ++o) {
        double sum = has_bias ? bias[o] : 0, sizes = std::abs(sum);
        for (int64_t i = 0; i < inputs; ++i) {
          const double term = rounded(weight[o * inputs + i], type) * rounded(x[r * inputs + i], type);
          sum += term;
          sizes += std::abs(term);
        }
        expected.push_back(activated(sum, f) + (add ? before[r * outputs + o] : 0));
        terms.push_back(sizes);
      }
    if (type == DeviceType::tf32)
      expect_close(take(y, expected.size()), expected, what, kTf32Bound, terms);
    else
      expect_close(take(y, expected.size()), expected, what);
    while (!memory_.empty()) {
      table().release(device_, memory_.back());
      memory_.pop_back();
    }
  }

  void test_norm(int64_t width, int64_t rows, bool rms, bool has_bias, bool in_place, const Floats& x, double epsilon,
                 int64_t off = 0) {
    const auto weight = random_floats(width, 5, 0.2, 1), bias = random_floats(width, 6, 0.2);
    const DeviceNorm layer{give(weight, off), has_bias ? give(bias, off) : nullptr, width, epsilon, rms};
    float* in = give(x, off);
    float* y = in_place ? in : make<float>(rows * width, off);
    run(table().norm, &layer, in, y, kF32, rows);
    Doubles expected;
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, squares = 0;
      for (int64_t i = 0; i < width && !rms; ++i) mean += x[r * width + i] / static_cast<double>(width);
      for (int64_t i = 0; i < width; ++i) squares += (x[r * width + i] - mean) * (x[r * width + i] - mean);
      for (int64_t i = 0; i < width; ++i)
        expected.push_back((x[r * width + i] - mean) / std::sqrt(squares / static_cast<double>(width) + epsilon) *
                               weight[i] +
                           (has_bias ? bias[i] : 0));
    }
    expect_close(
        take(y, expected.size()), expected,
        "width " + std::to_string(width) + ", rms " + std::to_string(rms) + ", bias " + std::to_string(has_bias));
  }

  // The words of the last error.
  std::string message() const { return error_.message; }

  DeviceHandle* device_ = nullptr;
  uintptr_t stream_ = 0;
  std::vector<void*> memory_;
  attn_error error_{};
};

// got is what rounding `of` to the type gives, if kernels for it may differ by a bit in f32.
void expect_rounded(const Floats& got, const Floats& of, DeviceType type, const std::string& what) {
  ASSERT_EQ(of.size(), got.size()) << what;
  size_t others = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(rounded(std::nextafter(of[i], -kInfinity), type), got[i]) << what << ", " << i;
    EXPECT_GE(rounded(std::nextafter(of[i], kInfinity), type), got[i]) << what << ", " << i;
    others += got[i] != of[i];
  }
  EXPECT_GT(others, of.size() / 3) << what << ": nothing was rounded";
}

constexpr DeviceType kHalves[] = {DeviceType::bf16, DeviceType::f16};
constexpr DeviceType kTypes[] = {DeviceType::f32, DeviceType::tf32, DeviceType::bf16, DeviceType::f16};
constexpr DeviceActivation kActivations[] = {DeviceActivation::none,       DeviceActivation::relu,
                                             DeviceActivation::gelu,       DeviceActivation::gelu_tanh,
                                             DeviceActivation::quick_gelu, DeviceActivation::silu};

TEST_F(DeviceLibrary, HasATable) {
  EXPECT_EQ(sizeof(DeviceTable), table().struct_size);
  EXPECT_EQ(2, table().device_type);
  EXPECT_STREQ(ATTNKIT_VERSION, table().version);
  const auto* functions = reinterpret_cast<void* const*>(&table().open);
  for (size_t i = 0; functions + i < reinterpret_cast<void* const*>(&table() + 1); ++i)
    EXPECT_NE(nullptr, functions[i]) << i;
}

TEST_F(DeviceLibrary, MultipliesInEveryType) {
  for (const DeviceType type : kTypes)
    for (const auto& [inputs, outputs, rows] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                                                {3, 17, 2},
                                                {17, 3, 5},
                                                {65, 65, 3},
                                                {64, 128, 1},
                                                {128, 64, 17},
                                                {65, 4, 0}})
      for (const bool has_bias : {false, true})
        for (const bool add : {false, true})
          test_dense(type, inputs, outputs, rows, DeviceActivation::none, has_bias, add);
}

TEST_F(DeviceLibrary, RoundsToNearest) {
  for (const DeviceType type : kHalves)
    for (const int64_t off : {0, 1}) {
      const auto x = random_floats(1003, 21, 3);
      const Floats got = take_in(type, give_in(type, x, off), x.size());
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(rounded(x[i], type), got[i]) << i;
    }
}

// Inputs that are rounded already give the bits of those that it rounds; results and biases of 16 bits are rounded
// once.
TEST_F(DeviceLibrary, TakesAndGives16Bits) {
  const int64_t inputs = 40;
  for (const DeviceType type : kHalves)
    for (const auto& [outputs, rows, off, has_bias] : {std::tuple<int64_t, int64_t, int64_t, bool>{24, 3, 0, true},
                                                       {24, 3, 0, false},
                                                       {24, 17, 1, true},
                                                       {17, 2, 0, true}}) {
      const std::string what = std::to_string(static_cast<int>(type)) + ", " + std::to_string(outputs);
      const auto n = static_cast<size_t>(rows * outputs);
      const auto weight = random_floats(inputs * outputs, 1, 0.2), bias = random_floats(outputs, 2),
                 x = random_floats(rows * inputs, 3);
      DeviceDense layer = layer_of(type, inputs, outputs, weight, has_bias ? give(bias, off) : nullptr, off);
      if (has_bias) layer.rounded_bias = give_in(type, bias, off);
      const void *f32 = give(x), *given = give_in(type, x);
      float *once = make<float>(rows * outputs), *again = make<float>(rows * outputs);
      void* y = make_in(type, rows * outputs, off);
      run(table().dense, &layer, f32, kF32, once, kF32, rows, DeviceActivation::none, false, scratch_of(layer, rows));
      run(table().dense, &layer, given, type, again, kF32, rows, DeviceActivation::none, false, nullptr);
      run(table().dense, &layer, given, type, y, type, rows, DeviceActivation::none, false, nullptr);
      const Floats in_f32 = take(once, n), got = take_in(type, y, n);
      EXPECT_EQ(in_f32, take(again, n)) << what;
      const double unit = type == DeviceType::bf16 ? 0x1p-8 : 0x1p-11;
      for (size_t i = 0; i < n; ++i) {
        const double of_bias = has_bias ? std::fabs(bias[i % static_cast<size_t>(outputs)]) : 0;
        // Where the product cannot add the bias, its sums are rounded as well.
        const double sizes = std::fabs(in_f32[i]) + of_bias + (off ? std::fabs(in_f32[i]) + of_bias : 0);
        EXPECT_NEAR(in_f32[i], got[i], unit * 1.01 * sizes + 1e-6) << what << ", " << i;
      }
    }
}

TEST_F(DeviceLibrary, RoundsWhatKernelsGive) {
  const int64_t rows = 6, heads = 4, kv_heads = 2, width = 24, n = rows * heads * width;
  const auto x = random_floats(n, 22), weight = random_floats(width, 23, 0.2, 1);
  const auto count = static_cast<size_t>(n);
  Floats turns;
  for (int64_t i = 0; i < 8 * 10; ++i) {
    turns.push_back(static_cast<float>(std::cos(0.1 * static_cast<double>(i))));
    turns.push_back(static_cast<float>(std::sin(0.1 * static_cast<double>(i))));
  }
  const DeviceNorm norm{give(weight), nullptr, width, 1e-5, true};
  const DeviceRotary rotary{give(turns), 8, 10, 1, 10};  // the last four channels do not turn
  const float* const given = give(x);
  for (const DeviceType type : kHalves) {
    const auto same = [&](const std::string& what, auto&& f) {
      float* const plain = make<float>(n);
      void* const y = make_in(type, n);
      f(static_cast<void*>(plain), kF32);
      f(y, type);
      expect_rounded(take_in(type, y, count), take(plain, count), type, what);
    };
    same("norm", [&](void* y, DeviceType of_y) { run(table().norm, &norm, given, y, of_y, rows * heads); });
    same("turn", [&](void* y, DeviceType of_y) {
      run(table().turn, &rotary, given, y, of_y, nullptr, 2, rows / 2, heads, width);
    });
    same("repeat_heads",
         [&](void* y, DeviceType of_y) { run(table().repeat_heads, given, y, of_y, rows, kv_heads, heads, width); });

    void* const o = give_in(type, x);
    const Floats widened = take_in(type, o, count);
    float *const plain = give(widened), *const to = give(weight), *const also = give(weight);
    run(table().add, to, o, type, width);
    run(table().add, also, plain, kF32, width);
    EXPECT_EQ(take(also, weight.size()), take(to, weight.size()));
    run(table().normalise_heads, o, type, rows, heads, width);
    run(table().normalise_heads, plain, kF32, rows, heads, width);
    expect_rounded(take_in(type, o, count), take(plain, count), type, "normalise_heads");
  }
}

TEST_F(DeviceLibrary, TurnsIntoAnotherTensor) {
  const int64_t width = 12, n = 2 * 3 * width;
  const Floats turns = {1, 0, 1, 0, 0, 1, 0.6f, 0.8f, -1, 0, 0.8f, 0.6f}, x = random_floats(n, 24);
  const DeviceRotary layer{give(turns), 3, 2, 2, 1};
  float *in_place = give(x), *to = make<float>(n);
  run(table().turn, &layer, in_place, to, kF32, nullptr, 1, 3, 2, width);
  run(table().turn, &layer, in_place, in_place, kF32, nullptr, 1, 3, 2, width);
  EXPECT_EQ(take(in_place, x.size()), take(to, x.size()));
}

TEST_F(DeviceLibrary, ActivatesWhatItMultiplied) {
  for (const DeviceType type : {DeviceType::f32, DeviceType::f16})
    for (const DeviceActivation f : kActivations)
      for (const bool has_bias : {false, true})
        for (const int64_t outputs : {64, 65, 1100}) test_dense(type, 33, outputs, 3, f, has_bias, false);
}

TEST_F(DeviceLibrary, TakesMemoryThatIsNotAligned) {
  for (const DeviceType type : kTypes)
    for (const int64_t off : {1, 2, 3, 4}) {
      test_dense(type, 64, 64, 3, DeviceActivation::none, true, true, off);
      test_dense(type, 64, 64, 3, DeviceActivation::silu, true, false, off);
    }
}

TEST_F(DeviceLibrary, ActivatesNumbersAtTheEnds) {
  const Floats x = {-kInfinity, kInfinity, kNan, -1e30f, 1e30f, -100, 100, -14.5f, -14, -5, -1e-20f, -0.0f, 0, 1e-20f};
  const auto n = static_cast<int64_t>(x.size());
  const DeviceDense layer = layer_of(DeviceType::f32, 1, 1, {1}, nullptr);
  for (const DeviceActivation f : kActivations) {
    float* y = make<float>(n);
    run(table().dense, &layer, give(x), kF32, y, kF32, n, f, false, nullptr);
    const Floats got = take(y, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = activated(x[i], f);
      const std::string what = "f " + std::to_string(static_cast<int>(f)) + " of " + std::to_string(x[i]);
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(got[i])) << what;
      } else if (std::isfinite(x[i]) && std::isfinite(expected)) {
        EXPECT_NEAR(expected, got[i], 3e-6 * std::fabs(expected) + 1e-37) << what;
      } else if (x[i] > 0) {
        EXPECT_EQ(kInfinity, got[i]) << what;
      }
    }
  }
  float* y = make<float>(1);
  run(table().dense, &layer, give(Floats{-kInfinity}), kF32, y, kF32, 1, DeviceActivation::gelu, false, nullptr);
  EXPECT_NEAR(0, take(y, size_t{1})[0], 1e-37);
}

TEST_F(DeviceLibrary, PacksMoreThanFitsIntoItsWorkspace) {
  const int64_t n = (int64_t{32} << 20) / 4 + 5;
  Floats from(static_cast<size_t>(n), 1.0f);
  from.front() = 1 + 1.0f / 1024;
  from[n - 2] = 3;
  uint16_t* to = make<uint16_t>(n);
  run(table().pack, DeviceType::f16, from.data(), n, to);
  const auto got = take<uint16_t>(to, n);
  EXPECT_EQ(0x3C01, got.front());
  EXPECT_EQ(0x4200, got[n - 2]);
  EXPECT_EQ(0x3C00, got[n - 1]);
}

TEST_F(DeviceLibrary, Normalises) {
  for (const int64_t width : {1, 3, 17, 64, 65, 512, 1024, 1030, 4096})
    for (const bool rms : {false, true})
      for (const bool has_bias : {false, true}) {
        const int64_t rows = width > 1000 ? 2 : 7;
        const auto x = random_floats(rows * width, 7, 2, 0.5);
        test_norm(width, rows, rms, has_bias, has_bias, x, width == 1 ? 0.1 : 1e-5);
      }
  test_norm(64, 3, false, true, false, random_floats(192, 8), 1e-5, 1);
  const DeviceNorm layer{give(Floats(8)), nullptr, 8, 1e-5, false};
  run(table().norm, &layer, nullptr, nullptr, kF32, 0);
}

TEST_F(DeviceLibrary, NormalisesLargeNumbersThatDifferLittle) {
  for (const double centre : {1e3, 1e6})  // at the latter the mean of a row is off by as much as they differ
    for (const int64_t width : {65, 512, 2048})
      test_norm(width, 3, false, false, false, random_floats(3 * width, 9, 0.5, centre), 1e-12);
}

TEST_F(DeviceLibrary, ANormKeepsNanInItsRow) {
  for (const int64_t width : {64, 1500}) {
    auto x = random_floats(3 * width, 7);
    x[static_cast<size_t>(width) + 3] = kNan;
    const DeviceNorm layer{give(Floats(static_cast<size_t>(width), 1.0f)), nullptr, width, 1e-5, false};
    float* y = make<float>(3 * width);
    run(table().norm, &layer, give(x), y, kF32, 3);
    const Floats got = take(y, x.size());
    for (int64_t i = 0; i < 3 * width; ++i) ASSERT_EQ(i / width == 1, std::isnan(got[i])) << i;
  }
}

TEST_F(DeviceLibrary, NormalisesHeads) {
  for (const int64_t width : {1, 17, 64, 1100}) {
    const int64_t rows = 3, heads = 2;
    const auto x = random_floats(rows * heads * width, 10);
    float* o = give(x);
    run(table().normalise_heads, o, kF32, rows, heads, width);
    Doubles expected;
    for (int64_t h = 0; h < rows * heads; ++h) {
      double squares = 0;
      for (int64_t i = 0; i < width; ++i) squares += double{x[h * width + i]} * x[h * width + i];
      for (int64_t i = 0; i < width; ++i)
        expected.push_back(x[h * width + i] / std::sqrt(squares / static_cast<double>(width) + 1e-5));
    }
    expect_close(take(o, x.size()), expected, std::to_string(width));
  }
}

TEST_F(DeviceLibrary, Embeds) {
  const int64_t batch = 3, length = 5, vocabulary = 11;
  const Ids ids = {0, 1, 2, 3, 4, 10, 9, -1, -1, -1, 7, 7, 7, 7, -1}, lengths = {5, 2, 0}, first = {0, 3, 2};
  for (const int64_t width : {1, 17, 64, 516}) {
    const auto all = random_floats(vocabulary * width, 11), positions = random_floats(8 * width, 12);
    for (const bool has_positions : {false, true})
      for (const bool has_first : {false, true})
        for (const bool zero_begin : {false, true}) {
          const DeviceEmbedding layer{give(all), has_positions ? give(positions) : nullptr, width, 3, zero_begin};
          float* x = make<float>(batch * length * width);
          run(table().embed, &layer, give(ids), give(lengths), has_first ? give(first) : nullptr, batch, length, x);
          Doubles expected;
          for (int64_t b = 0; b < batch; ++b)
            for (int64_t i = 0; i < length; ++i)
              for (int64_t c = 0; c < width; ++c) {
                double value = 0;
                const int64_t position = i + (has_first ? first[b] : 0);
                if (i < lengths[b]) {
                  if (!zero_begin || position > 0) value = 3.0 * all[ids[b * length + i] * width + c];
                  if (has_positions) value += positions[position * width + c];
                }
                expected.push_back(value);
              }
          expect_close(take(x, expected.size()), expected, std::to_string(width));
        }
  }
  const DeviceEmbedding layer{nullptr, nullptr, 4, 1, false};
  run(table().embed, &layer, nullptr, nullptr, nullptr, 0, 5, nullptr);
}

TEST_F(DeviceLibrary, ClearsPadding) {
  for (const int64_t width : {1, 17, 64, 260}) {
    const auto x = random_floats(3 * 4 * width, 13);
    float* to = give(x);
    run(table().clear_padding, to, give(Ids{4, 1, 0}), 3, 4, width);
    const Floats got = take(to, x.size());
    for (int64_t i = 0; i < 12 * width; ++i) {
      const bool kept = i / width < 5;
      ASSERT_EQ(kept ? x[i] : 0, got[i]) << i;
    }
  }
}

TEST_F(DeviceLibrary, AddsAndScales) {
  for (const int64_t width : {1, 3, 64, 65, 1028})
    for (const int64_t off : {0, 1}) {
      const int64_t n = 3 * width;
      const auto x = random_floats(n, 14), y = random_floats(n, 15), bias = random_floats(width, 16);
      float *sum = give(x, off), *scaled = give(x, off), *moved = give(x);
      run(table().add, sum, give(y), kF32, n);
      run(table().scale, scaled, 0.5f, nullptr, 3, width);
      run(table().scale, moved, 0.25f, give(bias, off), 3, width);
      Doubles sums, halves, quarters;
      for (int64_t i = 0; i < n; ++i) {
        sums.push_back(double{x[i]} + y[i]);
        halves.push_back(double{x[i]} / 2);
        quarters.push_back(double{x[i]} / 4 + bias[i % width]);
      }
      expect_close(take(sum, sums.size()), sums, "add");
      expect_close(take(scaled, sums.size()), halves, "scale");
      expect_close(take(moved, sums.size()), quarters, "scale and move");
    }
  run(table().add, nullptr, nullptr, kF32, 0);
}

TEST_F(DeviceLibrary, Gates) {
  for (const DeviceActivation f : kActivations)
    for (const int64_t n : {1, 65, 1028})
      for (const int64_t off : {0, 1}) {
        const std::string what = "f " + std::to_string(static_cast<int>(f)) + ", " + std::to_string(n);
        const auto x = random_floats(n, 17), y = random_floats(n, 18);
        float *gated = give(x, off), *const by = give(y);
        run(table().gate, gated, by, n, f, gated, kF32, 1, n);
        float* const alone = make<float>(n);
        run(table().gate, give(x, off), nullptr, n, f, alone, kF32, 1, n);
        Doubles products, activations;
        for (size_t i = 0; i < x.size(); ++i) {
          activations.push_back(activated(x[i], f));
          products.push_back(activations.back() * y[i]);
        }
        const Floats in_f32 = take(gated, x.size());
        expect_close(in_f32, products, what);
        expect_close(take(alone, x.size()), activations, what + ", alone");
        for (const DeviceType type : kHalves) {
          void* const to = make_in(type, n, off);
          run(table().gate, give(x, off), by, n, f, to, type, 1, n);
          expect_rounded(take_in(type, to, x.size()), in_f32, type, what);
        }
      }
}

TEST_F(DeviceLibrary, TurnsInBothLayouts) {
  const int64_t batch = 2, length = 3, heads = 3, max_length = 6;
  const Ids first = {1, 4};  // the second row goes past the table
  for (const auto& [pairs, width] : {std::pair<int64_t, int64_t>{1, 2}, {4, 8}, {9, 20}, {32, 64}})
    for (const bool halves : {false, true})
      for (const bool has_first : {false, true}) {
        Floats turns;
        for (int64_t p = 0; p < max_length; ++p)
          for (int64_t i = 0; i < pairs; ++i) {
            const double angle =
                static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(pairs));
            turns.push_back(static_cast<float>(std::cos(angle)));
            turns.push_back(static_cast<float>(std::sin(angle)));
          }
        const DeviceRotary layer{give(turns), max_length, pairs, halves ? 1 : 2, halves ? pairs : 1};
        const auto x = random_floats(batch * length * heads * width, 17);
        float* to = give(x);
        run(table().turn, &layer, to, to, kF32, has_first ? give(first) : nullptr, batch, length, heads, width);
        Doubles expected(x.begin(), x.end());
        for (int64_t r = 0; r < batch * length; ++r) {
          const int64_t position = std::min(r % length + (has_first ? first[r / length] : 0), max_length - 1);
          for (int64_t h = 0; h < heads; ++h)
            for (int64_t i = 0; i < pairs; ++i) {
              const int64_t a = (r * heads + h) * width + i * layer.first, b = a + layer.second;
              const double cosine = turns[(position * pairs + i) * 2], sine = turns[(position * pairs + i) * 2 + 1];
              expected[a] = x[a] * cosine - x[b] * sine;
              expected[b] = x[b] * cosine + x[a] * sine;
            }
        }
        expect_close(take(to, x.size()), expected, std::to_string(pairs));
      }
}

TEST_F(DeviceLibrary, RepeatsHeads) {
  for (const int64_t width : {1, 17, 64}) {
    const int64_t rows = 3, kv_heads = 2, heads = 6;
    const auto from = random_floats(rows * kv_heads * width, 18);
    float* to = make<float>(rows * heads * width);
    run(table().repeat_heads, give(from), to, kF32, rows, kv_heads, heads, width);
    const Floats got = take(to, static_cast<size_t>(rows * heads * width));
    for (int64_t i = 0; i < rows * heads * width; ++i)
      ASSERT_EQ(from[((i / width / heads) * kv_heads + i / width % heads / 3) * width + i % width], got[i]) << i;
  }
  EXPECT_EQ(ATTN_INVALID, code_of(table().repeat_heads, nullptr, nullptr, kF32, 1, 2, 5, 4));
  EXPECT_EQ("5 heads cannot share 2 heads of keys: they must be a multiple", message());
}

// Heads of q, k and v from rows that have all of them: as turn and repeat_heads make them.
TEST_F(DeviceLibrary, SpreadsHeads) {
  const int64_t batch = 2, length = 3, rows = batch * length, max_length = 7, width = 12, wide = 20;
  const Ids first{5, 1};
  struct Part {
    int64_t made, heads, width;
    bool turns;
  };
  const std::vector<Part> parts{{4, 4, width, true}, {2, 4, width, true}, {2, 4, wide, false}};
  const int64_t made = 6 * width + 2 * wide;
  const auto x = random_floats(rows * made, 25);
  for (const bool halves : {true, false})
    for (const int64_t pairs : {6, 5})
      for (const DeviceType type : {kF32, DeviceType::bf16, DeviceType::f16}) {
        Floats turns;
        for (int64_t i = 0; i < max_length * pairs; ++i) {
          turns.push_back(static_cast<float>(std::cos(0.3 * static_cast<double>(i))));
          turns.push_back(static_cast<float>(std::sin(0.3 * static_cast<double>(i))));
        }
        const DeviceRotary layer{give(turns), max_length, pairs, halves ? 1 : 2, halves ? pairs : 1};
        std::vector<DeviceHeads> to;
        for (const Part& p : parts)
          to.push_back({make_in(type, rows * p.heads * p.width), p.made, p.heads, p.width, p.turns});
        const int32_t* const at = give(first);
        run(table().spread, to.data(), int64_t{3}, &layer, give(x), type, at, batch, length);
        int64_t from = 0;
        for (size_t k = 0; k < parts.size(); ++k) {
          const Part& p = parts[k];
          const int64_t numbers = p.made * p.width, n = rows * p.heads * p.width;
          Floats alone;
          for (int64_t r = 0; r < rows; ++r)
            alone.insert(alone.end(), x.begin() + r * made + from, x.begin() + r * made + from + numbers);
          float *const plain = give(alone), *const repeated = make<float>(n);
          if (p.turns) run(table().turn, &layer, plain, plain, kF32, at, batch, length, p.made, p.width);
          run(table().repeat_heads, plain, repeated, kF32, rows, p.made, p.heads, p.width);
          const auto count = static_cast<size_t>(n);
          const std::string what = std::to_string(static_cast<int>(type)) + ", part " + std::to_string(k);
          const Floats got = take_in(type, to[k].to, count), want = take(repeated, count);
          if (type == kF32)
            expect_close(got, Doubles(want.begin(), want.end()), what, 1e-7);
          else
            expect_rounded(got, want, type, what);
          from += numbers;
        }
      }
  const DeviceHeads uneven{nullptr, 2, 5, 4, false};
  EXPECT_EQ(ATTN_INVALID, code_of(table().spread, &uneven, int64_t{1}, nullptr, nullptr, kF32, nullptr, 1, 1));
  EXPECT_EQ("5 heads cannot share 2 heads of keys: they must be a multiple", message());
  EXPECT_EQ(ATTN_INVALID, code_of(table().spread, &uneven, int64_t{5}, nullptr, nullptr, kF32, nullptr, 1, 1));
  EXPECT_EQ("5 parts of a row: at most 4 are possible", message());
}

// Rows of scores with ties, infinities and NaN.
std::vector<Floats> rows_of_scores(int64_t outputs) {
  std::vector<Floats> rows = {random_floats(outputs, 19, 3),
                              random_floats(outputs, 20, 3),
                              Floats(static_cast<size_t>(outputs), -kInfinity),
                              Floats(static_cast<size_t>(outputs), 2.5f),
                              random_floats(outputs, 21),
                              random_floats(outputs, 22),
                              random_floats(outputs, 23, 1e30),
                              Floats(static_cast<size_t>(outputs), -0.0f)};
  for (float& x : rows[1]) x = std::round(x);  // many ties
  rows[4][static_cast<size_t>(outputs) / 2] = kNan;
  rows[5][static_cast<size_t>(outputs) - 1] = kInfinity;
  if (outputs > 2) rows[7][2] = 0.0f;  // no more than -0
  return rows;
}

Floats flat(const std::vector<Floats>& rows) {
  Floats all;
  for (const Floats& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

bool has_nan(const Floats& row) {
  return std::any_of(row.begin(), row.end(), [](float x) { return std::isnan(x); });
}

TEST_F(DeviceLibrary, FindsTheBestScores) {
  for (const int64_t outputs : {1, 3, 17, 65, 257, 1000, 9000}) {
    const auto rows = rows_of_scores(outputs);
    const auto n = static_cast<int64_t>(rows.size());
    int32_t* best = make<int32_t>(n);
    run(table().best, give(flat(rows)), n, outputs, best);
    const Ids got = take<int32_t>(best, n);
    for (size_t r = 0; r < rows.size(); ++r) {
      const auto most = std::max_element(rows[r].begin(), rows[r].end()) - rows[r].begin();
      EXPECT_EQ(has_nan(rows[r]) ? -1 : most, got[r]) << outputs << ", row " << r;
    }
  }
  run(table().best, nullptr, 0, 10, nullptr);
}

TEST_F(DeviceLibrary, FindsTheHighestScores) {
  for (const int64_t outputs : {1, 3, 17, 65, 257, 1000, 9000}) {
    const auto rows = rows_of_scores(outputs);
    const auto n = static_cast<int64_t>(rows.size());
    const float* scores = give(flat(rows));
    for (const int64_t count : {0, 1, 2, 5, 64, 256}) {
      if (count > outputs) continue;
      int32_t* ids = make<int32_t>(n * count);
      float *top = make<float>(n * count), *norms = make<float>(n);
      run(table().top, scores, n, outputs, count, ids, top, norms);
      const Ids got = take<int32_t>(ids, n * count);
      const Floats got_scores = take<float>(top, n * count), got_norms = take<float>(norms, n);
      for (size_t r = 0; r < rows.size(); ++r) {
        const std::string what =
            std::to_string(count) + " of " + std::to_string(outputs) + ", row " + std::to_string(r);
        if (has_nan(rows[r])) {
          EXPECT_TRUE(std::isnan(got_norms[r])) << what;
          continue;
        }
        const double most = *std::max_element(rows[r].begin(), rows[r].end());
        double sum = 0;
        for (const float x : rows[r]) sum += std::exp(x - most);
        if (std::isinf(most)) {
          EXPECT_EQ(static_cast<float>(most), got_norms[r]) << what;
        } else {
          EXPECT_NEAR(most + std::log(sum), got_norms[r], 1e-6 * std::max(1.0, std::fabs(most))) << what;
        }
        Ids order(static_cast<size_t>(outputs));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rows[r][a] > rows[r][b]; });
        for (int64_t i = 0; i < count; ++i) {
          const size_t at = r * static_cast<size_t>(count) + static_cast<size_t>(i);
          ASSERT_EQ(order[i], got[at]) << what << ", place " << i;
          ASSERT_EQ(rows[r][order[i]], got_scores[at]) << what;
        }
      }
    }
  }
  run(table().top, nullptr, 0, 10, 5, nullptr, nullptr, nullptr);
  for (const auto& [outputs, count] : {std::pair<int64_t, int64_t>{10, 11}, {1000, 257}, {10, -1}})
    EXPECT_EQ(ATTN_INVALID, code_of(table().top, nullptr, 1, outputs, count, nullptr, nullptr, nullptr));
  EXPECT_EQ("the -1 highest of 10 scores: from 0 to 10 are possible", message());
}

TEST_F(DeviceLibrary, CapturesAndReplaysWithOtherInputs) {
  const int64_t n = 40, rows = 3;
  const auto weight = random_floats(n * n, 1, 0.2), bias = random_floats(n, 2), gain = random_floats(n, 3, 0.2, 1);
  const DeviceDense dense = layer_of(DeviceType::bf16, n, n, weight, give(bias));
  const DeviceNorm norm{give(gain), nullptr, n, 1e-5, true};
  float *x = make<float>(rows * n), *y = make<float>(rows * n);
  void* scratch = scratch_of(dense, rows);
  void* pinned = nullptr;
  const uint64_t bytes = rows * n * sizeof(float);
  ASSERT_EQ(ATTN_OK, table().allocate_host(device_, bytes, &pinned, &error_)) << error_.message;
  const auto step = [&] {
    run(table().from_host, x, pinned, bytes);
    run(table().norm, &norm, x, x, kF32, rows);
    run(table().dense, &dense, x, kF32, y, kF32, rows, DeviceActivation::gelu, false, scratch);
    run(table().dense, &dense, x, kF32, y, kF32, rows, DeviceActivation::none, true, scratch);
  };
  const auto set = [&](const Floats& inputs) { std::copy(inputs.begin(), inputs.end(), static_cast<float*>(pinned)); };
  set(random_floats(rows * n, 4));
  step();
  const Floats plain = take(y, size_t{rows * n});

  run(table().begin_capture);
  step();
  DeviceGraph* graph = nullptr;
  run(table().end_capture, &graph);
  run(table().zero, y, bytes);
  EXPECT_EQ(Floats(rows * n), take(y, size_t{rows * n}));
  run(table().launch, graph);
  EXPECT_EQ(plain, take(y, size_t{rows * n}));
  for (const uint64_t seed : {5u, 6u}) {
    set(random_floats(rows * n, seed));
    run(table().launch, graph);
    const Floats replayed = take(y, size_t{rows * n});
    EXPECT_NE(plain, replayed);
    step();
    EXPECT_EQ(take(y, size_t{rows * n}), replayed);
  }
  table().free_graph(graph);
  table().free_graph(nullptr);
  table().release_host(device_, pinned);
}

TEST_F(DeviceLibrary, HasTakenTheBytesWhenItReturns) {
  const auto x = random_floats(100, 1);
  Floats from = x;
  float* to = make<float>(100);
  run(table().from_host, to, from.data(), 400);
  std::fill(from.begin(), from.end(), 0.0f);
  EXPECT_EQ(x, take(to, size_t{100}));
  float* other = make<float>(100);
  run(table().copy, other, to, 400);
  run(table().zero, to, 40);
  EXPECT_EQ(x, take(other, size_t{100}));
  EXPECT_EQ(Floats(10), take(to, size_t{10}));
  run(table().from_host, to, nullptr, 0);
  run(table().copy, to, nullptr, 0);
  run(table().zero, nullptr, 0);
  run(table().to_host, nullptr, nullptr, 0);
  run(table().wait);
  EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(make<char>(3)) % 256);
  EXPECT_NE(nullptr, make<char>(0));
}

TEST_F(DeviceLibrary, RefusesWhatItCannotDo) {
  const DeviceDense layer = layer_of(DeviceType::bf16, 8, 8, Floats(64), nullptr);
  const float* x = give(Floats(8));
  float* y = make<float>(8);
  EXPECT_EQ(ATTN_INVALID, code_of(table().dense, &layer, x, kF32, y, kF32, 1, DeviceActivation::relu, true, y));
  EXPECT_EQ("a dense layer cannot add f(W x + b): let it add without an activation, or add its result", message());
  EXPECT_EQ(ATTN_INVALID, code_of(table().dense, &layer, x, kF32, y, kF32, 1, DeviceActivation::relu, false, nullptr));
  EXPECT_EQ("a dense layer in 16 bits needs scratch: ask dense_scratch how much", message());
  EXPECT_EQ(ATTN_INVALID,
            code_of(table().dense, &layer, x, kF32, y, layer.type, 1, DeviceActivation::none, true, nullptr));
  EXPECT_EQ("a dense layer gives 16 bits of W x + b alone: let it give f32", message());
  const DeviceType other = layer.type == DeviceType::f16 ? DeviceType::bf16 : DeviceType::f16;
  EXPECT_EQ(ATTN_INVALID, code_of(table().dense, &layer, x, other, y, kF32, 1, DeviceActivation::none, true, nullptr));
  EXPECT_EQ("a dense layer takes and gives f32 or the type of its weights", message());
  EXPECT_EQ(ATTN_INVALID, code_of(table().clear_padding, y, nullptr, int64_t{1} << 20, int64_t{1} << 20, 4));
  EXPECT_EQ("padding of 1048576 times 1048576 rows: at most 2147483647 are possible", message());
  EXPECT_EQ(ATTN_INVALID, code_of(table().best, x, int64_t{1} << 31, 4, nullptr));
  EXPECT_EQ(
      "the kernel of the best scores would have 2147483648 blocks, and at most 2147483647 are possible: give it "
      "fewer rows",
      message());
}

TEST_F(DeviceLibrary, ServesThreadsWithStreamsOfTheirOwn) {
  const int64_t n = 48;
  const auto weight = random_floats(n * n, 1), x = random_floats(n, 2);
  const DeviceDense layer = layer_of(DeviceType::f32, n, n, weight, nullptr);
  const float* in = give(x);
  float* alone = make<float>(n);
  run(table().dense, &layer, in, kF32, alone, kF32, 1, DeviceActivation::gelu, false, nullptr);
  const Floats expected = take(alone, size_t{n});
  std::vector<Floats> got(4, Floats(static_cast<size_t>(n)));
  std::vector<float*> out;
  for (size_t t = 0; t < got.size(); ++t) out.push_back(make<float>(n));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < got.size(); ++t)
    threads.emplace_back([&, t] {
      attn_error error{};
      error.struct_size = sizeof error;
      uintptr_t stream = 0;
      int32_t code = table().make_stream(device_, &stream, &error);
      for (int i = 0; i < 5 && code == ATTN_OK; ++i) {
        code = table().dense(device_, stream, &layer, in, kF32, out[t], kF32, 1, DeviceActivation::gelu, false, nullptr,
                             &error);
        if (code == ATTN_OK) code = table().to_host(device_, stream, got[t].data(), out[t], n * sizeof(float), &error);
      }
      EXPECT_EQ(ATTN_OK, code) << error.message;
      table().free_stream(device_, stream);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Floats& each : got) EXPECT_EQ(expected, each);
}

#ifndef ATTNKIT_ON_A_GPU  // what the emulator and the stand-in for cuBLASLt are told, and what they promise
TEST_F(DeviceLibrary, DescribesItsDevice) {
  DeviceInfo before{}, after{};
  ASSERT_EQ(ATTN_OK, table().describe(device_, &before, &error_));
  make<char>(1 << 20);
  ASSERT_EQ(ATTN_OK, table().describe(device_, &after, &error_));
  EXPECT_STREQ("an emulated device", before.name);
  EXPECT_EQ(9, before.major);
  EXPECT_EQ(before.free, after.free + (1 << 20));
  EXPECT_LE(before.free, before.memory);
}

TEST_F(DeviceLibrary, RowsOfADenseLayerAreIndependent) {
  const int64_t inputs = 65, outputs = 66, rows = 19;
  const auto weight = random_floats(inputs * outputs, 1), bias = random_floats(outputs, 2);
  auto x = random_floats(rows * inputs, 3);
  for (const DeviceType type : kTypes) {
    const DeviceDense layer = layer_of(type, inputs, outputs, weight, give(bias));
    float* all = make<float>(rows * outputs);
    run(table().dense, &layer, give(x), kF32, all, kF32, rows, DeviceActivation::gelu, false, scratch_of(layer, rows));
    const Floats together = take(all, static_cast<size_t>(rows * outputs));
    for (const int64_t r : {int64_t{0}, int64_t{7}, rows - 1}) {
      float* one = make<float>(outputs);
      run(table().dense, &layer, give(Floats(x.begin() + r * inputs, x.begin() + (r + 1) * inputs)), kF32, one, kF32, 1,
          DeviceActivation::gelu, false, scratch_of(layer, 1));
      EXPECT_EQ(Floats(together.begin() + r * outputs, together.begin() + (r + 1) * outputs),
                take(one, static_cast<size_t>(outputs)));
    }
    x[0] = kNan;
    run(table().dense, &layer, give(x), kF32, all, kF32, rows, DeviceActivation::gelu, false, scratch_of(layer, rows));
    const Floats spoilt = take(all, static_cast<size_t>(rows * outputs));
    EXPECT_TRUE(std::isnan(spoilt[0]));
    EXPECT_EQ(Floats(together.begin() + outputs, together.end()), Floats(spoilt.begin() + outputs, spoilt.end()));
    x[0] = 0.5f;
  }
}

TEST_F(DeviceLibrary, KeepsWhatAProductNeeds) {
  const int64_t n = 64;
  const auto weight = random_floats(n * n, 1), bias = random_floats(n, 2);
  const DeviceDense one = layer_of(DeviceType::bf16, n, n, weight, give(bias)),
                    other = layer_of(DeviceType::bf16, n, n, weight, give(bias));
  const float* x = give(random_floats(20 * n, 3));
  float* y = make<float>(20 * n);
  void* scratch = scratch_of(one, 20);
  const auto multiply = [&](const DeviceDense& layer, int64_t rows) {
    run(table().dense, &layer, x, kF32, y, kF32, rows, DeviceActivation::none, false, scratch);
  };
  auto& asked = emulator::cublaslt();
  multiply(one, 3);
  const auto first = asked;
  EXPECT_EQ(1u, first.chosen);
  multiply(one, 3);
  EXPECT_EQ(first.made, asked.made);
  multiply(other, 3);  // another bias is another product, by the algorithm that is known
  multiply(one, 16);
  EXPECT_LT(first.made, asked.made);
  EXPECT_EQ(1u, asked.chosen);
  multiply(one, 17);
  EXPECT_EQ(2u, asked.chosen);
  multiply(layer_of(DeviceType::bf16, n, n, weight, give(bias, 4)), 3);  // a bias that is less aligned
  EXPECT_EQ(3u, asked.chosen);
}

TEST_F(DeviceLibrary, AddsABiasItselfWhereCublasltDoesNot) {
  emulator::cublaslt().takes_bias = false;
  test_dense(DeviceType::bf16, 40, 24, 3, DeviceActivation::none, true, true);
}

TEST_F(DeviceLibrary, AsksForTheRowsThatAreWhereMoreAreRefused) {
  emulator::cublaslt().most_rows = 3;
  test_dense(DeviceType::f32, 40, 24, 3, DeviceActivation::none, true, false);
  const DeviceDense layer = layer_of(DeviceType::f16, 40, 24, random_floats(40 * 24, 1), nullptr);
  EXPECT_EQ(ATTN_DEVICE, code_of(table().dense, &layer, give(random_floats(4 * 40, 2)), kF32, make<float>(4 * 24), kF32,
                                 4, DeviceActivation::none, false, scratch_of(layer, 4)));
  EXPECT_EQ(
      "cuBLASLt 13.1.0 has no algorithm for a dense layer of 40 inputs and 24 outputs, 4 rows, in f16: set another "
      "type: the requested functionality is not supported",
      message());
}

TEST_F(DeviceLibrary, RefusesToWaitWhileItCaptures) {
  float* x = give(Floats(8));
  run(table().begin_capture);
  EXPECT_EQ(ATTN_DEVICE, code_of(table().begin_capture));
  EXPECT_EQ(ATTN_DEVICE, code_of(table().wait));
  EXPECT_EQ("CUDA cannot finish what a stream was given: operation not permitted when stream is capturing", message());
  DeviceGraph* graph = nullptr;
  EXPECT_EQ(ATTN_DEVICE, code_of(table().end_capture, &graph));
  EXPECT_EQ("CUDA cannot end the capture of a stream: operation failed due to a previous error during capture",
            message());
  EXPECT_EQ(nullptr, graph);
  run(table().add, x, x, kF32, 8);
  EXPECT_EQ(Floats(8), take(x, size_t{8}));
}

TEST_F(DeviceLibrary, SaysHowMuchMemoryIsMissing) {
  DeviceInfo info{};
  ASSERT_EQ(ATTN_OK, table().describe(device_, &info, &error_));
  void* memory = nullptr;
  for (const uint64_t bytes : {info.free + 1, info.memory * 2, ~uint64_t{0}}) {
    ASSERT_EQ(ATTN_NO_MEMORY, table().allocate(device_, bytes, &memory, &error_));
    EXPECT_EQ("device 0, an emulated device, has no room for " + std::to_string(bytes) +
                  " bytes: " + std::to_string(info.free) + " of " + std::to_string(info.memory) + " are free",
              message());
  }
  emulator::machine().memory = info.memory - info.free + (1 << 20);
  uintptr_t stream = 0;
  EXPECT_EQ(ATTN_NO_MEMORY, table().make_stream(device_, &stream, &error_)) << "without room for its workspace";
  emulator::machine().memory = info.memory;
  EXPECT_EQ(ATTN_NO_MEMORY, table().allocate_host(device_, uint64_t{1} << 60, &memory, &error_));
  EXPECT_EQ("the machine has no room for 1152921504606846976 bytes that a device reads directly", message());
  test_dense(DeviceType::f32, 8, 8, 2, DeviceActivation::none, true, false);
}

TEST_F(DeviceLibrary, SaysWhatAKernelDid) {
  run(table().best, give(Floats(64)), 1, 65, make<int32_t>(1));  // a score that is not there
  EXPECT_EQ(ATTN_DEVICE, code_of(table().wait));
  EXPECT_NE(std::string::npos, message().find("CUDA cannot finish what a stream was given: ")) << message();
  EXPECT_NE(std::string::npos, message().find("scores.cu")) << message();
  EXPECT_EQ(ATTN_DEVICE, code_of(table().to_host, nullptr, nullptr, 0));
  EXPECT_NE("", emulator::take_report());
}

// Opens a device of a machine that lacks something; returns what it says.
std::string words_of(int32_t id) {
  attn_error error{};
  error.struct_size = sizeof error;
  DeviceHandle* device = nullptr;
  EXPECT_EQ(ATTN_DEVICE, table().open(id, &device, &error));
  EXPECT_EQ(nullptr, device);
  return error.message;
}

TEST(DeviceLibraryWithout, AMachineThatFits) {
  const auto whole = emulator::machine();
  EXPECT_EQ("there is no CUDA device 1: this machine has 1, from 0", words_of(1));
  EXPECT_EQ("there is no CUDA device -1: this machine has 1, from 0", words_of(-1));
  emulator::machine().driver = 12040;
  EXPECT_EQ("the driver is too old: it is for CUDA 12.4, and libattnkit_cuda.so needs 13.0: update the driver",
            words_of(0));
  emulator::machine().driver = 0;
  EXPECT_EQ("there is no driver for CUDA here: install NVIDIA's, for CUDA 13.0 or newer, or set device = \"cpu\"",
            words_of(0));
  emulator::machine() = whole;
  emulator::machine().devices = 0;
  EXPECT_EQ("there is a driver for CUDA, but no device: is one visible to this process?", words_of(0));
  emulator::machine() = whole;
  emulator::machine().has_kernels = false;
  EXPECT_EQ(
      "device 0, an emulated device, is an sm_90, and libattnkit_cuda.so has kernels for sm_90 alone: build it with "
      "-DCMAKE_CUDA_ARCHITECTURES=90",
      words_of(0));
  emulator::machine() = whole;
  emulator::cublaslt().starts = false;
  EXPECT_EQ("cuBLASLt 13.1.0 cannot start: the library was not initialized", words_of(0));
  emulator::cublaslt() = {};
}

// Two devices, each with a stream.
class DeviceLibraryOfTwo : public testing::Test {
 protected:
  void SetUp() override {
    emulator::machine().devices = 2;
    error.struct_size = sizeof error;
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(ATTN_OK, table().open(i, &devices[i], &error)) << error.message;
      ASSERT_EQ(ATTN_OK, table().make_stream(devices[i], &streams[i], &error)) << error.message;
    }
  }
  void TearDown() override {
    for (DeviceHandle* device : devices) table().close(device);  // with its stream
    emulator::machine().devices = 1;
  }

  // Called with zeros on a stream that is not the first device's, f says so.
  template <class... Parameter>
  void expect_refusal(uintptr_t stream, int32_t (*f)(DeviceHandle*, uintptr_t, Parameter...)) {
    std::tuple<Parameter...> zeros{};
    std::get<attn_error*>(zeros) = &error;
    error.message[0] = 0;
    EXPECT_EQ(ATTN_INVALID, std::apply(f, std::tuple_cat(std::tuple(devices[0], stream), zeros)));
    EXPECT_STREQ("the stream is none of device 0: take one of make_stream of this device", error.message);
  }
  template <class... F>
  void expect_refusals(uintptr_t stream, F... f) {
    (expect_refusal(stream, f), ...);
  }

  attn_error error{};
  DeviceHandle* devices[2] = {};
  uintptr_t streams[2] = {};
};

TEST_F(DeviceLibraryOfTwo, RunsOnItsOwnStreamsAlone) {
  const DeviceTable& t = table();
  for (const uintptr_t stream : {streams[1], uintptr_t{0}})
    expect_refusals(stream, t.wait, t.from_host, t.to_host, t.copy, t.zero, t.begin_capture, t.end_capture, t.launch,
                    t.pack, t.dense, t.round_to_16_bits, t.norm, t.embed, t.clear_padding, t.add, t.gate, t.scale,
                    t.normalise_heads, t.turn, t.repeat_heads, t.spread, t.best, t.top);
  table().free_stream(devices[0], streams[1]);
  EXPECT_EQ(ATTN_OK, table().wait(devices[1], streams[1], &error)) << error.message;
}

TEST_F(DeviceLibraryOfTwo, LeavesTheThreadItsDevice) {
  const auto current = [] {
    int device = -1;
    cudaGetDevice(&device);
    return device;
  };
  EXPECT_EQ(0, current());
  cudaSetDevice(1);
  const DeviceTable& t = table();
  DeviceInfo info{};
  DeviceHandle* device = nullptr;
  uintptr_t stream = 0;
  void *memory = nullptr, *pinned = nullptr;
  const auto expect_taken = [&](int32_t code) {
    EXPECT_EQ(ATTN_OK, code) << error.message;
    EXPECT_EQ(1, current());
  };
  expect_taken(t.open(0, &device, &error));
  expect_taken(t.describe(device, &info, &error));
  expect_taken(t.make_stream(device, &stream, &error));
  expect_taken(t.allocate(device, 4, &memory, &error));
  expect_taken(t.allocate_host(device, 4, &pinned, &error));
  expect_taken(t.zero(device, stream, memory, 4, &error));
  expect_taken(
      t.round_to_16_bits(device, stream, DeviceType::bf16, static_cast<const float*>(memory), 1, memory, &error));
  expect_taken(t.wait(device, stream, &error));
  t.release(device, memory);
  t.release_host(device, pinned);
  t.free_stream(device, stream);
  t.close(device);
  EXPECT_EQ(1, current());
  int32_t former = -1;
  ASSERT_EQ(ATTN_OK, t.make_current(devices[0], &former, &error)) << error.message;
  EXPECT_EQ(std::pair(0, 1), std::pair(current(), former));
  t.make_former_current(former);
  EXPECT_EQ(1, current());
  cudaSetDevice(0);
}

TEST_F(DeviceLibraryOfTwo, LaunchesItsOwnGraphsAlone) {
  DeviceGraph* graph = nullptr;
  ASSERT_EQ(ATTN_OK, table().begin_capture(devices[0], streams[0], &error));
  ASSERT_EQ(ATTN_OK, table().end_capture(devices[0], streams[0], &graph, &error)) << error.message;
  EXPECT_EQ(ATTN_INVALID, table().launch(devices[1], streams[1], graph, &error));
  EXPECT_STREQ("the graph was captured on device 0, not 1: capture it here too", error.message);
  table().free_graph(graph);
}

#endif

}  // namespace
}  // namespace attnkit::core
