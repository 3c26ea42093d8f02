// Shared by the kernels of the library: numbers read and written by 16 bytes, and folds over a block's threads.
#pragma once

#include <attnkit/kernels/cuda/tile.hpp>

namespace attnkit::core::device {

using attnkit::cuda::kAll;
using attnkit::cuda::lane;
using attnkit::cuda::warp;

// kWidth numbers side by side, 1 or 4, computed in f32; in memory f32, f16 or bf16, and 4 of them aligned as one.
template <int kWidth>
struct Floats {
  float at[kWidth];
};
template <class T>
struct alignas(4 * sizeof(T)) Packed {
  T at[4];
};
template <int kWidth, class T>
__device__ Floats<kWidth> load(const T* from) {
  using attnkit::cuda::widened;
  if constexpr (kWidth == 4) {
    const auto v = *attnkit::cuda::as<const Packed<T>>(from);
    return {{widened(v.at[0]), widened(v.at[1]), widened(v.at[2]), widened(v.at[3])}};
  } else {
    return {{widened(*from)}};
  }
}
template <int kWidth, class T>
__device__ void store(const Floats<kWidth>& v, T* to) {
  using attnkit::cuda::narrowed;
  if constexpr (kWidth == 4)
    *attnkit::cuda::as<Packed<T>>(to) = {
        {narrowed<T>(v.at[0]), narrowed<T>(v.at[1]), narrowed<T>(v.at[2]), narrowed<T>(v.at[3])}};
  else
    *to = narrowed<T>(v.at[0]);
}

// Whether rows of `width` numbers may be taken four at a time.
template <class... T>
bool are_by_four(int64_t width, const T*... rows) {
  return width % 4 == 0 && ((reinterpret_cast<uintptr_t>(rows) % (4 * sizeof(T)) == 0) && ...);
}

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

template <class Fold>
__device__ float fold_of_warp(float x, const Fold& fold) {
  for (int bits = 16; bits > 0; bits /= 2) x = fold(x, __shfl_xor_sync(kAll, x, bits));
  return x;
}

// Of all threads of a block of whole warps, in one order; none: what changes nothing.
template <class Fold>
__device__ float fold_of_block(float x, float none, const Fold& fold) {
  ATTNKIT_SHARED(float, parts, 32);
  x = fold_of_warp(x, fold);
  __syncthreads();  // others may still read the parts of a fold before
  if (lane() == 0) parts[warp()] = x;
  __syncthreads();
  const int warps = static_cast<int>(blockDim.x / 32);
  return fold_of_warp(lane() < warps ? static_cast<float>(parts[lane()]) : none, fold);
}

}  // namespace attnkit::core::device
