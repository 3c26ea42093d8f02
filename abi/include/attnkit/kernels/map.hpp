// A function of numbers over rows of them.
#ifndef ATTNKIT_KERNELS_MAP_HPP
#define ATTNKIT_KERNELS_MAP_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// to[i] = f(from[i] ...) for i < n; f takes vectors and numbers.  Where a loop is short, gcc's own vectors of it cost
// more than it does: they check first whether its rows overlap.
template <class Isa, class Real, class F, class... From>
ATTNKIT_INLINE void map(int64_t n, Real* to, F f, const From*... from) {
  constexpr int64_t lanes = Lanes<Real>::count;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(f(at<Isa>(from + i)...), to + i);
  for (; i < n; ++i) to[i] = f(from[i]...);
}

}  // namespace attnkit::simd
#endif
