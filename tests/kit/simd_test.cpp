// Vectors of each instruction set that this machine has, against plain loops over their lanes: the same bits.
#include <gtest/gtest.h>

#include <array>
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/pack.hpp>
#include <attnkit/kernels/simd.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace attnkit::simd {
namespace {

constexpr size_t kRows = 16;

// The output of every body.
struct Results {
  std::array<float, 16> exponential, chosen, fused, even1, odd2, even4, odd8, sums;
  std::array<std::array<float, 16>, kRows> turned;
  std::array<double, 8> wide;
  std::array<uint8_t, 16> bytes;
  float sum, largest, dot, lane;
  double wide_sum;
  bool operator==(const Results&) const = default;
};

struct Body {
  const std::vector<float>& x;  // kRows rows of 16
  Results& r;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const Vec<Isa> a = at<Isa>(x.data()), b = at<Isa>(x.data() + 16);
    Vec<Isa> e = a;
    exp(e);
    store(e, r.exponential.data());
    store(select(a > b, a, b), r.chosen.data());
    store(a + 0.5f * b - b / 4.0f, r.fused.data());
    store(even_blocks<1>(a, b), r.even1.data());
    store(odd_blocks<2>(a, b), r.odd2.data());
    store(even_blocks<4>(a, b), r.even4.data());
    store(odd_blocks<8>(a, b), r.odd8.data());
    Vec<Isa> rows[kRows];
    for (size_t i = 0; i < kRows; ++i) rows[i] = at<Isa>(x.data() + i * 16);
    transpose(rows);
    for (size_t i = 0; i < kRows; ++i) store(rows[i], r.turned[i].data());
    for (size_t i = 0; i < kRows; ++i) rows[i] = at<Isa>(x.data() + i * 16);
    sum_rows(rows, r.sums.data());
    store(load_as<Vector<double, Isa>>(x.data() + 3), r.wide.data());
    store_as(bits_as<int32_t>(a) & 0xff, r.bytes.data());
    r.sum = sum(a);
    r.largest = largest(a);
    r.dot = dot<Isa>(x.data(), x.data() + 64, 57);
    r.lane = a[13];
    r.wide_sum = sum(at<Isa>(r.wide.data()));
  }
};

std::vector<float> numbers() {
  std::vector<float> x(kRows * 16);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::sin(1.7 * static_cast<double>(i)) * 3);
  return x;
}

Results results(void (*run)(const Body&)) {
  static const std::vector<float> x = numbers();
  Results r{};
  run(Body{x, r});
  return r;
}

TEST(Simd, MeansWhatItsLanesMean) {
  const std::vector<float> x = numbers();
  const Results r = results(run_baseline<Body>);
  for (size_t i = 0; i < 16; ++i) {
    const float a = x[i], b = x[16 + i];
    EXPECT_NEAR(r.exponential[i], std::exp(a), 3e-7 * std::exp(a)) << i;
    EXPECT_EQ(r.chosen[i], std::max(a, b)) << i;
    EXPECT_NEAR(r.fused[i], a + 0.25f * b, 1e-6) << i;
    EXPECT_EQ(r.even1[i], i % 2 ? x[16 + i - 1] : x[i]) << i;
    EXPECT_EQ(r.odd2[i], i / 2 % 2 ? x[16 + i] : x[i + 2]) << i;
    EXPECT_EQ(r.even4[i], i / 4 % 2 ? x[16 + i - 4] : x[i]) << i;
    EXPECT_EQ(r.odd8[i], i / 8 % 2 ? x[16 + i] : x[i + 8]) << i;
    for (size_t j = 0; j < kRows; ++j) EXPECT_EQ(r.turned[i][j], x[j * 16 + i]) << i << " " << j;
    uint32_t bits;
    std::memcpy(&bits, &x[i], sizeof bits);
    EXPECT_EQ(r.bytes[i], bits & 0xff) << i;
    double sum = 0;
    for (size_t j = 0; j < 16; ++j) sum += double{x[i * 16 + j]};
    EXPECT_NEAR(r.sums[i], sum, 1e-5) << i;
  }
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(r.wide[i], double{x[3 + i]});
  EXPECT_NEAR(r.sum, r.sums[0], 1e-6);
  EXPECT_EQ(r.lane, x[13]);
  EXPECT_EQ(r.largest, *std::max_element(x.begin(), x.begin() + 16));
  double dot = 0, wide = 0;
  for (size_t i = 0; i < 57; ++i) dot += double{x[i]} * double{x[64 + i]};
  for (const double lane : r.wide) wide += lane;
  EXPECT_NEAR(r.dot, dot, 1e-4);
  EXPECT_NEAR(r.wide_sum, wide, 1e-12);
}

#if defined(__x86_64__) || defined(__aarch64__)
// Of one rounding less, where a product and a sum are one instruction.
void expect_alike(const Results& a, const Results& b) {
  EXPECT_EQ(a.chosen, b.chosen);
  EXPECT_EQ(a.even1, b.even1);
  EXPECT_EQ(a.odd2, b.odd2);
  EXPECT_EQ(a.even4, b.even4);
  EXPECT_EQ(a.odd8, b.odd8);
  EXPECT_EQ(a.turned, b.turned);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.sum, b.sum);
  EXPECT_EQ(a.largest, b.largest);
  EXPECT_EQ(a.wide_sum, b.wide_sum);
  EXPECT_NEAR(a.dot, b.dot, 1e-4);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(a.exponential[i], b.exponential[i], 3e-7 * b.exponential[i]);
}

#if defined(__x86_64__)
TEST(Simd, IsTheSameOnAvx2) {
  if (level < 1) GTEST_SKIP() << "this machine has no AVX2";
  expect_alike(results(run_avx2<Body>), results(run_baseline<Body>));
}

TEST(Simd, IsTheSameOnAvx512) {
  if (level < 2) GTEST_SKIP() << "this machine has no AVX-512";
  EXPECT_EQ(results(run_avx512<Body>), results(run_avx2<Body>));
}
#else
TEST(Simd, IsTheSameOnNeon) { expect_alike(results(run_neon<Body>), results(run_baseline<Body>)); }
#endif
#endif

// Both exponentials of 16 numbers.
struct Exponentials {
  const float* x;
  float *plain, *to_88;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    Vec<Isa> a = at<Isa>(x), b = a;
    exp(a);
    exp_to_88(b);
    store(a, plain);
    store(b, to_88);
  }
};

void compare_exponentials(void (*run)(const Exponentials&)) {
  const auto check = [&](const std::array<float, 16>& x) {
    std::array<float, 16> plain{}, to_88{};
    run({x.data(), plain.data(), to_88.data()});
    for (size_t i = 0; i < 16; ++i) {
      if (std::isnan(x[i]))
        EXPECT_TRUE(std::isnan(to_88[i])) << i;
      else if (x[i] > 88.38f)
        EXPECT_EQ(to_88[i], std::numeric_limits<float>::infinity()) << x[i];
      else if (x[i] < 88.37f)
        EXPECT_EQ(to_88[i], plain[i]) << x[i];
    }
  };
  std::array<float, 16> x{};
  for (int64_t i = 0; i < 200000; ++i) {
    for (size_t l = 0; l < 16; ++l)
      x[l] = static_cast<float>(-88.5 + 177.0 * static_cast<double>(i * 16 + static_cast<int64_t>(l)) / 3.2e6);
    check(x);
  }
  // What a NaN carries must not become a number.
  constexpr float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  for (uint32_t carried = 1; carried < 0x800000; carried = carried * 2 + 1)
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t bits = sign | 0x7F800000u | carried;
      std::memcpy(x.data(), &bits, sizeof bits);
      check(x);
    }
  x = {-infinity, infinity,
       -most,     most,
       -0.0f,     0.0f,
       -87,       std::nextafter(-87.0f, -88.0f),
       88,        std::nextafter(88.0f, 89.0f)};
  check(x);
}

TEST(Simd, HasOneExponentialUpTo88) {
  compare_exponentials(run_baseline<Exponentials>);
#if defined(__x86_64__)
  if (level >= 1) compare_exponentials(run_avx2<Exponentials>);
  if (level >= 2) compare_exponentials(run_avx512<Exponentials>);
#elif defined(__aarch64__)
  compare_exponentials(run_neon<Exponentials>);
#endif
}

// Each vector's lanes have the sum that they have by themselves, bit for bit.
TEST(Simd, FoldsSixteenVectorsAsEachAlone) {
  Vec<Baseline> all[16];
  float alone[16], together[16];
  for (int v = 0; v < 16; ++v) {
    float lanes[16];
    for (int i = 0; i < 16; ++i)
      lanes[i] = std::sin(static_cast<float>(100 * v + 7 * i)) * std::ldexp(1.0f, (v + 5 * i) % 9);
    all[v] = at<Baseline>(lanes);
    alone[v] = sum(all[v]);
  }
  store(fold_each(all, [](const auto& a, const auto& b) { return a + b; }), together);
  for (int v = 0; v < 16; ++v) EXPECT_EQ(alone[v], together[v]) << v;
}

// Fewer lanes than a vector has: the others are zero, and nothing beyond is read or written.
TEST(Simd, TakesPartsOfAVector) {
  const std::vector<float> x = numbers();
  for (int64_t n = 1; n <= 16; ++n) {
    const std::vector<float> from(x.begin(), x.begin() + n);
    std::vector<float> all(16, 7.0f), part(static_cast<size_t>(n), 7.0f);
    Vec<Baseline> v;
    load(from.data(), n, v);
    store(v, all.data());
    store(v, n, part.data());
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i < n ? x[static_cast<size_t>(i)] : 0) << n;
    EXPECT_EQ(part, from);
  }
}

TEST(Simd, ExponentialsKeepTheirEnds) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(16, nan);
  x[1] = infinity;
  x[2] = -infinity;
  x[3] = 89;
  x[4] = -88;
  Vec<Baseline> v = at<Baseline>(x.data());
  exp(v);
  EXPECT_TRUE(std::isnan(v[0]));
  EXPECT_EQ(v[1], infinity);
  EXPECT_EQ(v[2], 0);
  EXPECT_EQ(v[3], infinity);
  EXPECT_EQ(v[4], 0);
}

}  // namespace
}  // namespace attnkit::simd
