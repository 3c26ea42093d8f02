// Types of two bytes and products on the tensor cores, as the stand-ins compute them.
#include <gtest/gtest.h>

#include <attnkit/kernels/cuda/device.hpp>
#include <vector>

namespace attnkit::test {
namespace {

using attnkit::cuda::SharedParts;

TEST(Matrices, HalvesRoundToTheNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = __half2float({static_cast<uint16_t>(bits)});
    if (std::isnan(x)) continue;
    ASSERT_EQ(bits, __float2half_rn(x).bits) << x;
  }
  const auto rounded = [](float x) { return __half2float(__float2half_rn(x)); };
  EXPECT_EQ(1.0f, rounded(1.0f + 0x1p-11f));                       // a tie goes to the even one
  EXPECT_EQ(1.0f + 0x1p-9f, rounded(1.0f + 0x1p-10f + 0x1p-11f));  // the other way
  EXPECT_EQ(1.0f + 0x1p-10f, rounded(1.0f + 0x1p-11f + 0x1p-20f));
  EXPECT_EQ(0x1p-24f, rounded(0x1.8p-25f));
  EXPECT_EQ(0.0f, rounded(0x1p-25f));
  EXPECT_EQ(65504.0f, rounded(65519.0f));
  EXPECT_EQ(INFINITY, rounded(65520.0f));
  EXPECT_EQ(-2.0f, rounded(-1.99999f));
  EXPECT_TRUE(std::isnan(rounded(NAN)));
}

TEST(Matrices, BfloatsRoundToTheNearestEven) {
  const auto rounded = [](float x) { return __bfloat162float(__float2bfloat16_rn(x)); };
  EXPECT_EQ(1.0f, rounded(1.0f + 0x1p-8f));
  EXPECT_EQ(1.0f + 0x1p-6f, rounded(1.0f + 0x1p-7f + 0x1p-8f));
  EXPECT_EQ(1.0f + 0x1p-7f, rounded(1.0f + 0x1p-8f + 0x1p-20f));
  EXPECT_EQ(INFINITY, rounded(3.4e38f));
  EXPECT_TRUE(std::isnan(rounded(NAN)));
}

TEST(Matrices, Tf32HasTenBitsOfFraction) {
  EXPECT_EQ(1.0f + 0x1p-10f, attnkit::cuda::as_tf32(1.0f + 0x1p-11f));  // a tie goes away from zero
  EXPECT_EQ(1.0f, attnkit::cuda::as_tf32(1.0f + 0x1p-12f));
  EXPECT_EQ(-1.0f - 0x1p-10f, attnkit::cuda::as_tf32(-1.0f - 0x1p-11f));
}

template <class T>
T narrowed(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else
    return __float2bfloat16_rn(x);
}

// c = a b, a of 16 rows, b of 16 columns by halves of 8, stored as its rows: as kernels do it, through shared memory.
template <class T>
__global__ void multiply(const float* a, const float* b, float* c) {
  SharedParts parts;
  const auto rows = parts.take<T>(256), columns = parts.take<T>(256);
  const int l = static_cast<int>(threadIdx.x);
  for (int i = l; i < 256; i += 32) {
    rows[i] = narrowed<T>(a[i]);
    columns[i] = narrowed<T>(b[i]);
  }
  __syncwarp();
  uint32_t left[4], right[4];
  const int row = l % 16 * 16, half = l / 16 * 8;
  attnkit::cuda::load_matrices<false>(left, rows + (row + half));
  attnkit::cuda::load_matrices<true>(right, columns + (row + half));
  for (int n = 0; n < 2; ++n) {
    float d[4] = {1, 1, 1, 1};
    const uint32_t b_half[2] = {right[2 * n], right[2 * n + 1]};
    attnkit::cuda::multiply_add<T>(d, left, b_half);
    for (int i = 0; i < 4; ++i) c[(l / 4 + i / 2 * 8) * 16 + n * 8 + l % 4 * 2 + i % 2] = d[i];
  }
}

__global__ void multiply_tf32(const float* a, const float* b, float* c) {
  const int l = static_cast<int>(threadIdx.x), g = l / 4, t = l % 4;
  for (int n = 0; n < 2; ++n) {
    float d[4] = {1, 1, 1, 1};
    for (int k = 0; k < 16; k += 8) {
      const float left[4] = {a[g * 16 + k + t], a[(g + 8) * 16 + k + t], a[g * 16 + k + t + 4],
                             a[(g + 8) * 16 + k + t + 4]};
      const float right[2] = {b[(k + t) * 16 + n * 8 + g], b[(k + t + 4) * 16 + n * 8 + g]};
      attnkit::cuda::multiply_add(d, left, right);
    }
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 16 + n * 8 + t * 2 + i % 2] = d[i];
  }
}

// Numbers that every type holds, so that the product has one right answer.
void check_product(void (*kernel)(const float*, const float*, float*)) {
  float *a, *b, *c;
  std::vector<float> left(256), right(256), got(256);
  for (int i = 0; i < 256; ++i) {
    left[static_cast<size_t>(i)] = static_cast<float>((i * 37 + i / 16) % 17 - 8) / 4;
    right[static_cast<size_t>(i)] = static_cast<float>((i * 23 + i / 16) % 19 - 9) / 2;
  }
  for (float** p : {&a, &b, &c}) cudaMalloc(reinterpret_cast<void**>(p), 1024);
  cudaMemcpy(a, left.data(), 1024, cudaMemcpyHostToDevice);
  cudaMemcpy(b, right.data(), 1024, cudaMemcpyHostToDevice);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = 1024;
  ASSERT_EQ(cudaSuccess, cudaLaunchKernelEx(&config, kernel, a, b, c));
  ASSERT_EQ(cudaSuccess, cudaMemcpy(got.data(), c, 1024, cudaMemcpyDeviceToHost)) << emulator::take_report();
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 16; ++j) {
      float sum = 1;
      for (size_t k = 0; k < 16; ++k) sum += left[i * 16 + k] * right[k * 16 + j];
      EXPECT_EQ(sum, got[i * 16 + j]) << i << ", " << j;
    }
  for (float* p : {a, b, c}) cudaFree(p);
}

TEST(Matrices, ProductsOfHalves) { check_product(multiply<__half>); }
TEST(Matrices, ProductsOfBfloats) { check_product(multiply<__nv_bfloat16>); }
TEST(Matrices, ProductsOfTf32) { check_product(multiply_tf32); }

__global__ void fine_product(float* c) {
  const float fine = 1.0f + 0x1p-12f, left[4] = {fine, fine, fine, fine}, right[2] = {1, 1};
  float d[4] = {};
  attnkit::cuda::multiply_add(d, left, right);
  c[threadIdx.x] = d[0];
}
TEST(Matrices, TheUnitDropsWhatTf32DoesNotHold) {
  float *c, got[32];
  cudaMalloc(reinterpret_cast<void**>(&c), sizeof got);
  cudaLaunchConfig_t config{};
  config.blockDim = dim3(32);
  ASSERT_EQ(cudaSuccess, cudaLaunchKernelEx(&config, fine_product, c));
  ASSERT_EQ(cudaSuccess, cudaMemcpy(got, c, sizeof got, cudaMemcpyDeviceToHost));
  EXPECT_EQ(8.0f, got[0]);
  cudaFree(c);
}

}  // namespace
}  // namespace attnkit::test
