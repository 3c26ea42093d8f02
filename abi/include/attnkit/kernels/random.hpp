// Random numbers for stored tensors: the same bytes for the same seed on every machine and compiler.
//
// Only additions, multiplications, divisions and square roots are used, none of them contracted, so IEEE arithmetic
// decides every bit; the C library's log and cos differ from one version to the next.
#ifndef ATTNKIT_KERNELS_RANDOM_HPP
#define ATTNKIT_KERNELS_RANDOM_HPP
#include <cmath>
#include <cstdint>

#if defined(__clang__)
#define ATTNKIT_EXACT
#define ATTNKIT_NO_CONTRACTION _Pragma("clang fp contract(off)")
#else
#define ATTNKIT_EXACT __attribute__((optimize("fp-contract=off")))
#define ATTNKIT_NO_CONTRACTION
#endif

namespace attnkit {

// Natural logarithm of a normal x > 0, by the series of atanh.
ATTNKIT_EXACT inline double exact_log(double x) {
  ATTNKIT_NO_CONTRACTION
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int n = 23; n >= 1; n -= 2) sum = sum * square + 1.0 / n;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

// One stream of numbers; (seed, stream) pairs that differ give unrelated streams.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0) : state_(mix(seed) ^ mix(~stream)) {}
  // The bare splitmix64 of a seed.
  static Random plain(uint64_t seed) {
    Random random(0);
    random.state_ = seed;
    return random;
  }

  // splitmix64 (Steele, Lea and Flood, OOPSLA 2014), its last step and the whole.
  static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t bits() { return mix(state_ += 0x9E3779B97F4A7C15u); }

  // In (0, 1), a multiple of 2^-53 and a half.
  double uniform() { return (static_cast<double>(bits() >> 11) + 0.5) * 0x1p-53; }

  // Numbers in (-bound, bound).
  ATTNKIT_EXACT void fill_uniform(double bound, float* data, int64_t count) {
    ATTNKIT_NO_CONTRACTION
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(bound * (2 * uniform() - 1));
  }

  // In [0, n), n > 0; uniform within n / 2^64.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<unsigned __int128>(bits()) * n) >> 64); }

  // Standard normal, by Marsaglia's polar method.
  ATTNKIT_EXACT double normal() {
    ATTNKIT_NO_CONTRACTION
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double x, y, r;
    do {
      x = 2 * uniform() - 1;
      y = 2 * uniform() - 1;
      r = x * x + y * y;
    } while (r >= 1 || r == 0);
    const double factor = std::sqrt(-2 * exact_log(r) / r);
    spare_ = y * factor;
    has_spare_ = true;
    return x * factor;
  }

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace attnkit
#endif
