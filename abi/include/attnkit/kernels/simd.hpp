// Vectors of 16 floats and one body compiled for AVX-512, AVX2 and the baseline, chosen once at load time.
//
// A body is a functor with a template operator()<Isa>() marked ATTNKIT_INLINE; all it calls must be marked so too.
// Sixteen lanes everywhere, so a sum is grouped the same way on every machine and whatever the blocking around it.
#ifndef ATTNKIT_KERNELS_SIMD_HPP
#define ATTNKIT_KERNELS_SIMD_HPP
#include <cstdint>
#include <cstring>

#define ATTNKIT_INLINE inline __attribute__((always_inline))

namespace attnkit::simd {

constexpr int64_t kLanes = 16;
using Vec = float __attribute__((vector_size(64)));
// A Vec at any address of floats: at(p).v.  Vectors are passed by reference only: by value they would change the ABI.
struct __attribute__((packed, may_alias)) Loose {
  Vec v;
};
using Bits = uint32_t __attribute__((vector_size(64)));
// The same of doubles, 8 of them.
using Doubles = double __attribute__((vector_size(64)));
struct __attribute__((packed, may_alias)) LooseDoubles {
  Doubles v;
};

ATTNKIT_INLINE const Loose& at(const float* p) { return *reinterpret_cast<const Loose*>(p); }
ATTNKIT_INLINE Loose& at(float* p) { return *reinterpret_cast<Loose*>(p); }
ATTNKIT_INLINE const LooseDoubles& at(const double* p) { return *reinterpret_cast<const LooseDoubles*>(p); }
ATTNKIT_INLINE LooseDoubles& at(double* p) { return *reinterpret_cast<LooseDoubles*>(p); }

// The vector of a real type.
template <class Real>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int64_t count = kLanes;
  using Type = Vec;
};
template <>
struct Lanes<double> {
  static constexpr int64_t count = kLanes / 2;
  using Type = Doubles;
};

// The first n floats at p, at most 16; zeros in the other lanes.
ATTNKIT_INLINE void load(const float* p, int64_t n, Vec& x) {
  if (n >= kLanes) {
    x = at(p).v;
  } else {
    x = Vec{};
    std::memcpy(&x, p, static_cast<size_t>(n) * sizeof(float));
  }
}

// The first n lanes, at most 16, to p.
ATTNKIT_INLINE void store(const Vec& x, int64_t n, float* p) {
  if (n >= kLanes)
    at(p).v = x;
  else
    std::memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
}

// The register tile of a kernel that keeps rows x columns Vecs in registers.
struct Avx512 {
  static constexpr int rows = 8, columns = 2;
};
struct Avx2 {
  static constexpr int rows = 4, columns = 1;
};
struct Baseline {
  static constexpr int rows = 2, columns = 1;
};

template <class Body>
void run_baseline(const Body& body) {
  body.template operator()<Baseline>();
}

#if defined(__x86_64__)
#if defined(__clang__)
#define ATTNKIT_AVX512 "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"
#else
#define ATTNKIT_AVX512 "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target(ATTNKIT_AVX512))) void run_avx512(const Body& body) {
  body.template operator()<Avx512>();
}
template <class Body>
__attribute__((target("avx2,fma"))) void run_avx2(const Body& body) {
  body.template operator()<Avx2>();
}
inline int detect() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw"))
    return 2;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}
inline const int level = detect();
template <class Body>
void dispatch(const Body& body) {
  if (level == 2)
    run_avx512(body);
  else if (level == 1)
    run_avx2(body);
  else
    run_baseline(body);
}
#else
template <class Body>
void dispatch(const Body& body) {
  run_baseline(body);
}
#endif
// Of doubles, which check gradients, the baseline is enough.
template <class Real, class Body>
void dispatch_real(const Body& body) {
  if constexpr (sizeof(Real) == sizeof(float))
    dispatch(body);
  else
    run_baseline(body);
}

// Sum of the lanes, always in the same order.
ATTNKIT_INLINE float sum(const Vec& v) {
  Vec s = v + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  s += __builtin_shufflevector(s, s, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return s[0] + s[1];
}

ATTNKIT_INLINE double sum(const Doubles& v) {
  Doubles s = v + __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5);
  return s[0] + s[1];
}

// The largest lane; no lane is NaN.
ATTNKIT_INLINE float largest(const Vec& v) {
  Vec most = v, other = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  most = other > most ? other : most;
  other = __builtin_shufflevector(most, most, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  most = other > most ? other : most;
  other = __builtin_shufflevector(most, most, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  most = other > most ? other : most;
  return most[0] > most[1] ? most[0] : most[1];
}

template <class Real>
ATTNKIT_INLINE Real dot(const Real* a, const Real* b, int64_t n) {
  constexpr int64_t lanes = Lanes<Real>::count;
  typename Lanes<Real>::Type even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even += at(a + i).v * at(b + i).v;
    odd += at(a + i + lanes).v * at(b + i + lanes).v;
  }
  if (i + lanes <= n) {
    even += at(a + i).v * at(b + i).v;
    i += lanes;
  }
  Real tail = 0;
  for (; i < n; ++i) tail += a[i] * b[i];
  even += odd;
  return sum(even) + tail;
}

// x = e^x in each lane, to 2 ulp; 0 below -87, infinity above 88.72, NaN stays NaN.
ATTNKIT_INLINE void exp(Vec& x) {
  const Vec shift = 12582912.0f - Vec{};  // 1.5 * 2^23: adding it rounds to an integer, held in the low bits
  const Vec raw = x;
  Vec y = x > 88.72f ? 88.72f - Vec{} : x;
  y = y > -87.0f ? y : -87.0f - Vec{};
  const Vec shifted = y * 1.44269504f + shift;
  const Vec n = shifted - shift;
  Vec r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Vec p = 1.9875691500e-4f - Vec{};
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // p 2^n by adding to the exponent: 2^128 is no float, but n is 128 only where p is below 1.
  Bits bits, power;
  std::memcpy(&bits, &p, sizeof bits);
  std::memcpy(&power, &shifted, sizeof power);
  bits += power << 23;
  std::memcpy(&x, &bits, sizeof x);
  const Vec low = raw < 0.0f ? Vec{} : raw;
  x = raw >= -87.0f ? x : low;
  x = raw > 88.72f ? __builtin_inff() - Vec{} : x;
}

}  // namespace attnkit::simd
#endif
