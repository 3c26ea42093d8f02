// A (B, H, rows, width) array of floats whose gaps are poisoned, as tests hand it to plugins.
#pragma once
#include <attnkit/plugin.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace attnkit::test {

// How an array lies in memory: as a model's projections leave it (b, row, head, width) with a gap after each row, or
// plainly (b, head, row, width).
enum class Layout { kModel, kPlain };

class Array {
 public:
  Array() = default;
  // All elements and gaps are NaN.
  Array(int64_t batch, int64_t heads, int64_t rows, int64_t width, Layout layout = Layout::kModel);
  // A stored tensor of up to 4 dimensions, contiguous; at() sees a column of numbers, and of int32 the bits.
  static Array stored(const attn_port& port);

  float& at(int64_t b, int64_t h, int64_t i, int64_t c) { return data_[index(b, h, i, c)]; }
  float at(int64_t b, int64_t h, int64_t i, int64_t c) const { return data_[index(b, h, i, c)]; }
  // Sets every element: deterministic normal numbers, or what f says.
  void randomize(uint64_t seed);
  void set(const std::function<float(int64_t b, int64_t h, int64_t i, int64_t c)>& f);

  // Rows [from, from + count) of all heads.
  attn_tensor tensor(int64_t from, int64_t count);
  attn_tensor tensor() { return tensor(0, rows); }
  std::vector<float>& data() { return data_; }
  const std::vector<float>& data() const { return data_; }

  int64_t batch = 0, heads = 0, rows = 0, width = 0;

 private:
  int64_t index(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return stored_ ? i : b * stride_[0] + h * stride_[1] + i * stride_[2] + c;
  }
  bool stored_ = false;
  uint32_t ndim_ = 4;
  uint8_t dtype_code_ = 2;
  int64_t shape_[4] = {}, stride_[4] = {};
  std::vector<float> data_;
};

// Bit for bit, NaN included; gaps do not count.
bool same_bits(const Array& a, const Array& b);
// The same for one batch row and head, rows [0, count).
bool same_bits(const Array& a, int64_t b, int64_t h, const Array& other, int64_t other_b, int64_t other_h,
               int64_t count);
bool all_finite(const Array& a);

// RMS of a - b over RMS of b.
double rms_ratio(const Array& a, const Array& b);

// What a stored tensor was filled with: means of its numbers' powers, and the largest.
struct Moments {
  double mean = 0, square = 0, fourth = 0, largest = 0;
};
Moments moments(const Array& stored);

// Deterministic standard normal numbers, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits();
  double uniform();  // in (0, 1)
  float normal();

 private:
  uint64_t state_;
};

}  // namespace attnkit::test
