// Vectors of 64 bytes and one body compiled for AVX-512, AVX2 and the baseline, or for NEON and the baseline, chosen
// once at load time.
//
// A body is a functor with a template operator()<Isa>() marked ATTNKIT_INLINE; all it calls must be marked so too.
// Sixteen lanes of floats everywhere, so a sum is grouped the same way on every machine and whatever the blocking
// around it.  A vector is as many registers as the machine needs for it: one that is wider than a register, which the
// compiler would have to cut, gcc keeps in memory (docs/decisions/vectors.md).
#ifndef ATTNKIT_KERNELS_SIMD_HPP
#define ATTNKIT_KERNELS_SIMD_HPP
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#define ATTNKIT_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define ATTNKIT_CONTRACT _Pragma("clang fp contract(fast)")  // a product and a sum of two calls become one instruction
#else
#define ATTNKIT_CONTRACT
#endif

namespace attnkit::simd {

constexpr int64_t kLanes = 16;  // floats of a vector

// A set of instructions: the bytes of a register, and the tile of rows x columns vectors that a kernel keeps in
// registers.
struct Avx512 {
  static constexpr int rows = 8, columns = 2, bytes = 64;
};
struct Avx2 {
  static constexpr int rows = 4, columns = 1, bytes = 32;
};
struct Neon {
  static constexpr int rows = 4, columns = 1, bytes = 16;
};
struct Baseline {
  static constexpr int rows = 2, columns = 1, bytes = 16;
};

// Two halves of a vector, each in registers of its own.
template <class Half>
struct Pair {
  Half low, high;
  ATTNKIT_INLINE auto operator[](int64_t lane) const {
    constexpr auto half = static_cast<int64_t>(sizeof(Half) / sizeof(low[0]));
    return lane < half ? low[lane] : high[lane - half];
  }
};

template <class T, int bytes>
struct RegisterOf {
  using Type __attribute__((vector_size(bytes))) = T;
};
template <class T, int64_t lanes, int bytes, bool fits>
struct VectorOf {
  using Half = VectorOf<T, lanes / 2, bytes, lanes / 2 * int64_t{sizeof(T)} <= bytes>;
  using Type = Pair<typename Half::Type>;
};
template <class T, int64_t lanes, int bytes>
struct VectorOf<T, lanes, bytes, true> : RegisterOf<T, lanes * sizeof(T)> {};

// The vector of a type of number: 64 bytes, in registers of Isa.
template <class T, class Isa>
using Vector = typename VectorOf<T, 64 / sizeof(T), Isa::bytes, (Isa::bytes >= 64)>::Type;
template <class Isa>
using Vec = Vector<float, Isa>;

template <class T>
struct Lanes {
  static constexpr auto count = static_cast<int64_t>(64 / sizeof(T));
};

template <class V>
constexpr bool is_pair = false;
template <class Half>
constexpr bool is_pair<Pair<Half>> = true;

template <class V>
using Lane = std::remove_cvref_t<decltype(std::declval<const V&>()[0])>;
template <class V>
constexpr auto lanes_of = static_cast<int64_t>(sizeof(V) / sizeof(Lane<V>));

#define ATTNKIT_OPERATOR(op)                                                                  \
  template <class Half>                                                                       \
  ATTNKIT_INLINE auto operator op(const Pair<Half>& a, const Pair<Half>& b) {                 \
    ATTNKIT_CONTRACT return Pair<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high}; \
  }                                                                                           \
  template <class Half, class S, std::enable_if_t<std::is_arithmetic_v<S>, int> = 0>          \
  ATTNKIT_INLINE auto operator op(const Pair<Half>& a, S b) {                                 \
    ATTNKIT_CONTRACT return Pair<decltype(a.low op b)>{a.low op b, a.high op b};              \
  }                                                                                           \
  template <class Half, class S, std::enable_if_t<std::is_arithmetic_v<S>, int> = 0>          \
  ATTNKIT_INLINE auto operator op(S a, const Pair<Half>& b) {                                 \
    ATTNKIT_CONTRACT return Pair<decltype(a op b.low)>{a op b.low, a op b.high};              \
  }
ATTNKIT_OPERATOR(+)
ATTNKIT_OPERATOR(-)
ATTNKIT_OPERATOR(*)
ATTNKIT_OPERATOR(/)
ATTNKIT_OPERATOR(&)
ATTNKIT_OPERATOR(|)
ATTNKIT_OPERATOR(<<)
ATTNKIT_OPERATOR(>>)
ATTNKIT_OPERATOR(<)
ATTNKIT_OPERATOR(>)
ATTNKIT_OPERATOR(<=)
ATTNKIT_OPERATOR(>=)
ATTNKIT_OPERATOR(==)
#undef ATTNKIT_OPERATOR

template <class Half>
ATTNKIT_INLINE Pair<Half> operator-(const Pair<Half>& a) {
  return {-a.low, -a.high};
}
template <class Half, class Other>
ATTNKIT_INLINE Pair<Half>& operator+=(Pair<Half>& a, const Other& b) {
  return a = a + b;
}
template <class Half, class Other>
ATTNKIT_INLINE Pair<Half>& operator-=(Pair<Half>& a, const Other& b) {
  return a = a - b;
}
template <class Half, class Other>
ATTNKIT_INLINE Pair<Half>& operator*=(Pair<Half>& a, const Other& b) {
  return a = a * b;
}

// In each lane a where the comparison `which` holds, else b.
template <class Mask, class V>
ATTNKIT_INLINE V select(const Mask& which, const V& a, const V& b) {
  if constexpr (is_pair<V>)
    return {select(which.low, a.low, b.low), select(which.high, a.high, b.high)};
  else
    return which ? a : b;
}

// A register of numbers at any address.
template <class Register>
struct __attribute__((packed, may_alias)) Loose {
  Register v;
};

// The numbers at p as V, converted lane by lane if they are of another type.
template <class V, class T>
ATTNKIT_INLINE V load_as(const T* p) {
  constexpr int64_t lanes = lanes_of<V>;
  if constexpr (is_pair<V>) {
    using Half = decltype(V::low);
    return {load_as<Half>(p), load_as<Half>(p + lanes / 2)};
  } else if constexpr (std::is_same_v<T, Lane<V>>) {
    return reinterpret_cast<const Loose<V>*>(p)->v;
  } else {
    using From = typename RegisterOf<T, lanes * int64_t{sizeof(T)}>::Type;
    return __builtin_convertvector(reinterpret_cast<const Loose<From>*>(p)->v, V);
  }
}

// The vector at p.
template <class Isa, class T>
ATTNKIT_INLINE Vector<T, Isa> at(const T* p) {
  return load_as<Vector<T, Isa>>(p);
}

template <class V>
ATTNKIT_INLINE void store(const V& x, Lane<V>* p) {
  if constexpr (is_pair<V>) {
    store(x.low, p);
    store(x.high, p + lanes_of<V> / 2);
  } else {
    reinterpret_cast<Loose<V>*>(p)->v = x;
  }
}

// Its lanes to p, converted to another type of number.
template <class V, class T>
ATTNKIT_INLINE void store_as(const V& x, T* p) {
  if constexpr (is_pair<V>) {
    store_as(x.low, p);
    store_as(x.high, p + lanes_of<V> / 2);
  } else {
    using To = typename RegisterOf<T, lanes_of<V> * int64_t{sizeof(T)}>::Type;
    To to;
    if constexpr (sizeof(T) == 1 && sizeof(V) == 32) {
      // gcc would convert byte by byte for AVX2.
      const auto bytes = (typename RegisterOf<T, sizeof(V)>::Type)x;
      to = __builtin_shufflevector(bytes, bytes, 0, 4, 8, 12, 16, 20, 24, 28);
    } else {
      to = __builtin_convertvector(x, To);
    }
    reinterpret_cast<Loose<To>*>(p)->v = to;
  }
}

// The same bits as lanes of another type of the same size.
template <class T, class V>
ATTNKIT_INLINE auto bits_as(const V& x) {
  if constexpr (is_pair<V>) {
    using Half = decltype(bits_as<T>(x.low));
    return Pair<Half>{bits_as<T>(x.low), bits_as<T>(x.high)};
  } else {
    return (typename RegisterOf<T, sizeof(V)>::Type)x;
  }
}

// The first n floats at p, at most 16; zeros in the other lanes.
template <class V>
ATTNKIT_INLINE void load(const float* p, int64_t n, V& x) {
  if (n >= kLanes) {
    x = load_as<V>(p);
  } else {
    alignas(64) float part[kLanes] = {};
    std::memcpy(part, p, static_cast<size_t>(n) * sizeof(float));
    x = load_as<V>(part);
  }
}

// The first n lanes, at most 16, to p.
template <class V>
ATTNKIT_INLINE void store(const V& x, int64_t n, float* p) {
  if (n >= kLanes) {
    store(x, p);
  } else {
    alignas(64) float part[kLanes];
    store(x, part);
    std::memcpy(p, part, static_cast<size_t>(n) * sizeof(float));
  }
}

// Asks memory for a row that is needed later: with rows of other heads between those of one the machine does not
// foresee it.  Into the second cache: in the first one such rows take each other's places before they are read.
template <bool to_write = false, class T>
ATTNKIT_INLINE void prefetch(const T* row, int64_t width) {
  constexpr int second_cache = 2;
  for (int64_t c = 0; c < width; c += 64 / static_cast<int64_t>(sizeof(T)))
    __builtin_prefetch(row + c, to_write, second_cache);
}

template <class Body>
__attribute__((noinline)) void run_baseline(const Body& body) {
  body.template operator()<Baseline>();
}

#if defined(__x86_64__)
#if defined(__clang__)
#define ATTNKIT_AVX512 "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"
#else
#define ATTNKIT_AVX512 "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,prefer-vector-width=512"
#endif
template <class Body>
__attribute__((noinline, target(ATTNKIT_AVX512))) void run_avx512(const Body& body) {
  body.template operator()<Avx512>();
}
template <class Body>
__attribute__((noinline, target("avx2,fma"))) void run_avx2(const Body& body) {
  body.template operator()<Avx2>();
}
// ATTNKIT_INSTRUCTIONS=avx2 or =baseline in the environment keeps to fewer than the machine has, for tests; other
// values are not read.
inline int detect() {
  __builtin_cpu_init();
  const char* wanted = std::getenv("ATTNKIT_INSTRUCTIONS");
  const int most = !wanted ? 2 : std::strcmp(wanted, "baseline") == 0 ? 0 : std::strcmp(wanted, "avx2") == 0 ? 1 : 2;
  if (most == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
    return 2;
  return most >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
}
inline const int level = detect();
// Zen 4 takes an instruction on 64 bytes in two halves: half as many chains of sums as elsewhere keep it busy.
inline const bool halves_64_bytes = level == 2 && __builtin_cpu_is("amdfam19h");
template <class Body>
void dispatch(const Body& body) {
  if (level == 2)
    run_avx512(body);
  else if (level == 1)
    run_avx2(body);
  else
    run_baseline(body);
}
#elif defined(__aarch64__)
// Products and sums become one instruction in bodies alone, as on x86, where what surrounds them is compiled for
// machines that have no such instruction (attnkit_add_plugin says -ffp-contract=off): results are those of AVX2.
#if defined(__clang__)
#define ATTNKIT_FUSED
#else
#define ATTNKIT_FUSED __attribute__((optimize("fp-contract=fast")))
#endif
template <class Body>
__attribute__((noinline)) ATTNKIT_FUSED void run_neon(const Body& body) {
  body.template operator()<Neon>();
}
// Every machine has NEON; ATTNKIT_INSTRUCTIONS=baseline in the environment does without fused operations, for tests.
inline int detect() {
  const char* wanted = std::getenv("ATTNKIT_INSTRUCTIONS");
  return wanted && std::strcmp(wanted, "baseline") == 0 ? 0 : 1;
}
inline const int level = detect();
template <class Body>
void dispatch(const Body& body) {
  if (level == 1)
    run_neon(body);
  else
    run_baseline(body);
}
#else
template <class Body>
void dispatch(const Body& body) {
  run_baseline(body);
}
#endif
#if !defined(__x86_64__)
constexpr bool halves_64_bytes = false;
#endif
// Calls body for Isa from code that is compiled for it, as a function of its own.
template <class Isa, class Body>
void apart(const Body& body) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<Isa, Avx512>) return run_avx512(body);
  if constexpr (std::is_same_v<Isa, Avx2>) return run_avx2(body);
#elif defined(__aarch64__)
  if constexpr (std::is_same_v<Isa, Neon>) return run_neon(body);
#endif
  if constexpr (std::is_same_v<Isa, Baseline>) run_baseline(body);
}
// Of doubles, which check gradients, the baseline is enough.
template <class Real, class Body>
void dispatch_real(const Body& body) {
  if constexpr (sizeof(Real) == sizeof(float))
    dispatch(body);
  else
    run_baseline(body);
}

// Registers whose lanes come from those of a and b by their numbers, b's behind a's.
template <class V, class Number, int... lane>
ATTNKIT_INLINE V shuffled(const V& a, const V& b, Number, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, Number()(lane)...);
}
template <class V, class Number>
ATTNKIT_INLINE V shuffled(const V& a, const V& b, Number number) {
  return shuffled(a, b, number, std::make_integer_sequence<int, lanes_of<V>>());
}

// Of blocks of `size` lanes of a and b, those at even places: a's first, b's first, a's third ...
template <int size, class V>
ATTNKIT_INLINE V even_blocks(const V& a, const V& b) {
  constexpr int lanes = lanes_of<V>;
  if constexpr (!is_pair<V>)
    return shuffled(a, b, [](int i) { return i / size % 2 != 0 ? lanes + i - size : i; });
  else if constexpr (size == lanes / 2)
    return {a.low, b.low};
  else
    return {even_blocks<size>(a.low, b.low), even_blocks<size>(a.high, b.high)};
}
// Those at odd places: a's second, b's second, a's fourth ...
template <int size, class V>
ATTNKIT_INLINE V odd_blocks(const V& a, const V& b) {
  constexpr int lanes = lanes_of<V>;
  if constexpr (!is_pair<V>)
    return shuffled(a, b, [](int i) { return i / size % 2 != 0 ? lanes + i : i + size; });
  else if constexpr (size == lanes / 2)
    return {a.high, b.high};
  else
    return {odd_blocks<size>(a.low, b.low), odd_blocks<size>(a.high, b.high)};
}

// Lane i and lane i + n / 2 of n folded by f, again and again: the two lanes that are left, in lanes 0 and 1.
template <int apart, class V, class F>
ATTNKIT_INLINE V folded(const V& v, F f) {
  if constexpr (apart < 2)
    return v;
  else
    return folded<apart / 2>(f(v, shuffled(v, v, [](int i) { return i ^ apart; })), f);
}
template <class V, class F>
ATTNKIT_INLINE auto fold(const V& v, F f) {
  if constexpr (is_pair<V>)
    return fold(f(v.low, v.high), f);
  else
    return folded<lanes_of<V> / 2>(v, f);
}

// Sum of the lanes, always in the same order.
template <class V>
ATTNKIT_INLINE Lane<V> sum(const V& v) {
  const auto two = fold(
      v, [](const auto& a, const auto& b) __attribute__((always_inline)) { return a + b; });
  return two[0] + two[1];
}

// The largest lane; no lane is NaN.
template <class V>
ATTNKIT_INLINE Lane<V> largest(const V& v) {
  const auto two = fold(
      v, [](const auto& a, const auto& b) __attribute__((always_inline)) { return select(b > a, b, a); });
  return two[0] > two[1] ? two[0] : two[1];
}

// The lanes of 16 vectors folded by f in the order of `sum`, those of v[i] into lane i.
template <class V, class F>
ATTNKIT_INLINE V fold_each(V (&v)[kLanes], F f) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) v[i] = f(even_blocks<8>(v[i], v[i + 8]), odd_blocks<8>(v[i], v[i + 8]));
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) v[i] = f(even_blocks<4>(v[i], v[i + 4]), odd_blocks<4>(v[i], v[i + 4]));
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) v[i] = f(even_blocks<2>(v[i], v[i + 2]), odd_blocks<2>(v[i], v[i + 2]));
  return f(even_blocks<1>(v[0], v[1]), odd_blocks<1>(v[0], v[1]));
}

template <class Isa, class Real>
ATTNKIT_INLINE Real dot(const Real* a, const Real* b, int64_t n) {
  constexpr int64_t lanes = Lanes<Real>::count;
  Vector<Real, Isa> even{}, odd{};
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even += at<Isa>(a + i) * at<Isa>(b + i);
    odd += at<Isa>(a + i + lanes) * at<Isa>(b + i + lanes);
  }
  if (i + lanes <= n) {
    even += at<Isa>(a + i) * at<Isa>(b + i);
    i += lanes;
  }
  Real tail = 0;
  for (; i < n; ++i) tail += a[i] * b[i];
  even += odd;
  return sum(even) + tail;
}

// p and n of e^y = p 2^n, p from 0.7 to 1.42; n as `shifted` = shift + n, which holds it in its low bits if shift is
// 1.5 * 2^23 and a little more: adding that rounds to an integer.
template <class V>
ATTNKIT_INLINE V exp_parts(const V& y, float shift, V& shifted) {
  shifted = y * 1.44269504f + shift;
  const V n = shifted - shift;
  V r = y - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  V p = 1.9875691500e-4f - V{};
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * r * r + r + 1.0f;
}

// x = e^x in each lane, to 2 ulp; 0 below -87, infinity above 88.72, NaN stays NaN.
template <class V>
ATTNKIT_INLINE void exp(V& x) {
  const V raw = x;
  V y = select(x > 88.72f, 88.72f - V{}, x), shifted;
  y = select(y > -87.0f, y, -87.0f - V{});
  const V p = exp_parts(y, 12582912.0f, shifted);
  // p 2^n by adding to the exponent: 2^128 is no float, but n is 128 only where p is below 1.
  x = bits_as<float>(bits_as<uint32_t>(p) + (bits_as<uint32_t>(shifted) << 23));
  const V low = select(raw < 0.0f, V{}, raw);
  x = select(raw >= -87.0f, x, low);
  x = select(raw > 88.72f, __builtin_inff() - V{}, x);
}

// The same numbers in fewer instructions, infinity above 88.38: for weights, whose x is a score less the largest one.
template <class V>
ATTNKIT_INLINE void exp_to_88(V& x) {
  V shifted;
  const V p = exp_parts(select(x > 89.0f, 89.0f - V{}, x), 12582912.0f + 127, shifted);
  // Low bits of n + 127 are the exponent of 2^n, or anything below -87.
  const V power = bits_as<float>(bits_as<uint32_t>(shifted) << 23);
  x = select(x < -87.0f, V{}, p * power);
}

}  // namespace attnkit::simd
#endif
