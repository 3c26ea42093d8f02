// The map of a linear mechanism whose logits are what it is given, each feature with a denominator of its own:
//   o_i = sum_f softmax_f(q_i)_f sum_j softmax_j(k_.f)_j v_j
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_LATENTS_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_LATENTS_HPP
#include <attnkit/kernels/cuda/linear.hpp>

namespace attnkit::cuda::linear {

template <class Real>
struct LatentMap {
  static constexpr bool kSplits = false;
  enum { kFollows, kEach };
  static constexpr bool follows = true;
  int latents;
  Real scale;

  // Nothing stands in a table.
  __device__ Nothing in_memory() const { return {}; }
  __device__ Nothing in_table(const Shared<Real>&) const { return {}; }
  __device__ void load_table(const Shared<Real>&) const {}

  template <bool kQuery, class X>
  __device__ void logits(const X& x, const Row<Real>& row, Nothing) const {
    for (int l = lane(); l < latents; l += 32) row.s[l] = x[l] * scale;
  }
  template <class C>
  __device__ void key(const Row<Real>& row, const C& c) const {
    for (int l = lane(); l < latents; l += 32) row.s[l] = exponential(row.s[l] - c(l));
  }
  template <class X, class C>
  __device__ void query(const X&, const Row<Real>& row, const C&) const {
    Real top = kLeast<Real>;
    for (int l = lane(); l < latents; l += 32) top = larger(top, static_cast<Real>(row.s[l]));
    for (int bits = 16; bits > 0; bits /= 2) top = larger(top, __shfl_xor_sync(kAll, top, bits));
    for (int l = lane(); l < latents; l += 32) row.s[l] = exponential(row.s[l] - top);
  }
  template <class X, class Visit>
  __device__ void gradient(const X&, const Row<Real>& given, Nothing, const Visit& visit) const {
    for (int l = lane(); l < latents; l += 32) visit(l, given.s[l] * scale);
  }
};

}  // namespace attnkit::cuda::linear
#endif
