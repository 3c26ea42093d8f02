// Operations of a block's threads on tiles in shared memory: products of four rows by four columns, sums of a warp.
#ifndef ATTNKIT_KERNELS_CUDA_TILE_HPP
#define ATTNKIT_KERNELS_CUDA_TILE_HPP
#include <attnkit/kernels/cuda/device.hpp>
#include <attnkit/kernels/cuda/launch.hpp>
#include <attnkit/plugin.hpp>

namespace attnkit::cuda {

constexpr unsigned kAll = 0xFFFFFFFFu;

__host__ __device__ constexpr int round4(int n) { return (n + 3) / 4 * 4; }

__device__ inline int warp() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }

template <class Real>
__device__ Real sum_of_warp(Real x) {
  for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(kAll, x, bits);
  return x;
}

// The type that tensors of T are computed in: f32, for f64 f64.
template <class T>
using RealOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

// f(number of the tensor's type): f32, f16 or bf16, and f64 where kF64.
template <bool kF64 = false, class F>
void with_type(const attn_tensor& t, const F& f) {
  if constexpr (kF64)
    if (t.dtype_bits == 64) return f(double{});
  if (t.dtype_bits == 32)
    f(float{});
  else if (t.dtype_code == 2)
    f(__half{});
  else
    f(__nv_bfloat16{});
}

__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline float widened(__half x) { return __half2float(x); }
__device__ inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ T narrowed(RealOf<T> x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(x);
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(x);
  else
    return x;
}

// a / b.  Not IEEE's division in f32: that is a call, and spills.
__device__ inline float quotient(float a, float b) { return __fdividef(a, b); }
__device__ inline double quotient(double a, double b) { return a / b; }
template <class Real>
__device__ Real reciprocal(Real x) {
  return quotient(Real{1}, x);
}
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }
__device__ inline float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double fused(double a, double b, double c) { return fma(a, b, c); }

template <class Real>
struct alignas(16) Four {
  Real x, y, z, w;
};
// At a place in shared memory, or in the block's own part of global memory.
template <class Real, class At>
__device__ Four<Real> four(const At& p) {
  return as<Four<Real>>(p)[0];
}
template <class Real>
__device__ void add(Four<Real>& to, Real x, const Four<Real>& y) {
  to.x = fused(x, y.x, to.x);
  to.y = fused(x, y.y, to.y);
  to.z = fused(x, y.z, to.z);
  to.w = fused(x, y.w, to.w);
}
// Chained after sum.
template <class Real>
__device__ Real dot(const Four<Real>& a, const Four<Real>& b, Real sum) {
  return fused(a.w, b.w, fused(a.z, b.z, fused(a.y, b.y, fused(a.x, b.x, sum))));
}

// acc[r][...] += sum over k of left[r][k] right[k][...], for four rows and four columns; depth is a multiple of 4.
template <class Real, class Right>
__device__ void multiply(const Shared<Real>& left, int left_row, const Right& right, int right_row, int depth,
                         Four<Real> (&acc)[4]) {
#pragma unroll 2
  for (int k = 0; k < depth; k += 4) {
    Four<Real> l[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) l[r] = four<Real>(left + (r * left_row + k));
    const Four<Real> r0 = four<Real>(right + k * right_row), r1 = four<Real>(right + (k + 1) * right_row),
                     r2 = four<Real>(right + (k + 2) * right_row), r3 = four<Real>(right + (k + 3) * right_row);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      add(acc[r], l[r].x, r0);
      add(acc[r], l[r].y, r1);
      add(acc[r], l[r].z, r2);
      add(acc[r], l[r].w, r3);
    }
  }
}

}  // namespace attnkit::cuda
#endif
