// Pieces of feature maps, as attnkit/kernels/features.hpp has them for the CPU.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_FEATURES_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_FEATURES_HPP
#include <cuda_runtime.h>

namespace attnkit::cuda::linear {

// max(0, x); NaN stays NaN.
template <class Real>
__device__ Real relu(Real x) {
  return x < 0 ? 0 : x;
}

// elu(x) + 1: x + 1 for positive x, otherwise e^x, in f32 0 below -87 as on the CPU; NaN stays NaN.
__device__ inline float elu1(float x) { return x > 0 ? x + 1 : x < -87 ? 0 : expf(x); }
__device__ inline double elu1(double x) { return x > 0 ? x + 1 : exp(x); }
// Its slope where it is y.
template <class Real>
__device__ Real elu1_slope(Real x, Real y) {
  return x > 0 ? 1 : y;
}

// Cosine and sine of `turns` quarter turns, to 3e-7 for what f32 tells apart; of doubles, |turns| up to 2^50.
__device__ inline void quarter_turns(float turns, float& cosine, float& sine) { sincospif(turns / 2, &sine, &cosine); }
__device__ inline void quarter_turns(double turns, double& cosine, double& sine) {
  sincospi(turns / 2, &sine, &cosine);
}
__device__ inline void quarter_turns(double turns, float& cosine, float& sine) {
  quarter_turns(static_cast<float>(turns - 4 * rint(turns * 0.25)), cosine, sine);  // whole turns go, exactly
}

}  // namespace attnkit::cuda::linear
#endif
