// Keys and values that a state keeps in fewer bytes: as bf16, or as int8 with a scale for each row of a head.
//
// Attention sees the kept numbers: a run rounds its own keys and values too, so nothing depends on how a stream is
// cut, or on whether there is a state.
#ifndef ATTNKIT_KERNELS_CACHE_HPP
#define ATTNKIT_KERNELS_CACHE_HPP
#include <algorithm>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <limits>

// As in simd.hpp, which nvcc does not take.
#define ATTNKIT_INLINE inline __attribute__((always_inline))

namespace attnkit {

class Cache {
 public:
  static Option option() {
    return Option::text("cache", "f32", {"f32", "bf16", "int8"},
                        "rounds keys and values, which take a half (bf16) or about a quarter (int8) of the state then");
  }
  explicit Cache(const Values& values)
      : type_(values.text("cache") == "f32"    ? Type::f32
              : values.text("cache") == "bf16" ? Type::bf16
                                               : Type::int8) {}

  bool rounds() const { return type_ != Type::f32; }
  // Throws for what only exact keys and values can do.
  void check(const Request& r) const {
    if (rounds() && (r.is_f64() || r.trains()))
      throw unsupported("cache = \"", type_ == Type::bf16 ? "bf16" : "int8",
                        "\" rounds keys and values: ", r.trains() ? "train" : "compute in f64",
                        " with cache = \"f32\"");
  }

  // The floats that a row of n numbers takes in a state.
  int64_t floats(int64_t n) const {
    return type_ == Type::f32 ? n : type_ == Type::bf16 ? (n + 1) / 2 : 1 + (n + 3) / 4;
  }

  // Puts a row of n numbers into a state.
  ATTNKIT_INLINE void keep(const float* __restrict from, int64_t n, float* __restrict to) const {
    if (type_ == Type::f32)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    else if (type_ == Type::bf16)
      for (int64_t i = 0; i < n; ++i) reinterpret_cast<Half*>(to)[i] = rounded(from[i]);
    else
      keep_bytes(from, n, to);
  }

  // A rounded row as attention sees it.
  ATTNKIT_INLINE void see(const float* __restrict kept, int64_t n, float* __restrict to) const {
    if (type_ == Type::bf16) {
      const auto* halves = reinterpret_cast<const Half*>(kept);
      auto* bits = reinterpret_cast<Bits*>(to);
      for (int64_t i = 0; i < n; ++i) bits[i] = static_cast<uint32_t>(halves[i]) << 16;
    } else {
      const auto* bytes = reinterpret_cast<const Byte*>(kept + 1);
      for (int64_t i = 0; i < n; ++i) to[i] = kept[0] * static_cast<float>(bytes[i]);
    }
  }

  // A row that no state has kept, as attention would see it if one had.
  ATTNKIT_INLINE void round(const float* __restrict from, int64_t n, float* __restrict to) const {
    if (type_ == Type::bf16) {
      for (int64_t i = 0; i < n; ++i) to[i] = widened(rounded(from[i]));
    } else {
      const float scale = scale_of(from, n), by = inverse(scale);
      for (int64_t i = 0; i < n; ++i) to[i] = scale * whole(from[i] * by);
    }
  }

 private:
  enum class Type { f32, bf16, int8 };
  // They lie among floats.
  using Bits __attribute__((may_alias)) = uint32_t;
  using Half __attribute__((may_alias)) = uint16_t;
  using Byte __attribute__((may_alias)) = int8_t;

  // To the nearest, ties to even; a NaN stays one.
  static ATTNKIT_INLINE uint16_t rounded(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return static_cast<uint16_t>(x == x ? nearest : bits >> 16 | 0x40);
  }
  static ATTNKIT_INLINE float widened(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  // The nearest whole number, ties to even, of at most 2^22.
  static ATTNKIT_INLINE float whole(float x) { return x + 12582912.0f - 12582912.0f; }
  // The largest becomes 127; NaN for a row with a number that is not finite, 0 for one of (nearly) zeros.
  static ATTNKIT_INLINE float scale_of(const float* row, int64_t n) {
    float largest = 0, probe = 0;
    for (int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::fabs(row[i]));
      probe += row[i] * 0;
    }
    const float scale = largest / 127;
    if (probe != 0) return std::numeric_limits<float>::quiet_NaN();
    return scale < std::numeric_limits<float>::min() ? 0 : scale;
  }
  // 0 where all of a row is one number, 0 or NaN.
  static ATTNKIT_INLINE float inverse(float scale) { return scale > 0 ? 1 / scale : 0; }
  static ATTNKIT_INLINE void keep_bytes(const float* from, int64_t n, float* to) {
    const float scale = scale_of(from, n), by = inverse(scale);
    to[0] = scale;
    auto* bytes = reinterpret_cast<Byte*>(to + 1);
    for (int64_t i = 0; i < n; ++i) bytes[i] = static_cast<int8_t>(by > 0 ? whole(from[i] * by) : 0);
  }

  Type type_;
};

}  // namespace attnkit
#endif
