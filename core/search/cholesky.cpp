#include "core/search/cholesky.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <cmath>

namespace attnkit::core::search {
namespace {

// A row that is finished serves several others while it is at hand: most of the time would go into fetching it.
struct Factorise {
  double* matrix;
  size_t n;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    constexpr size_t block = 16;
    for (size_t first = 0; first < n; first += block) {
      const size_t last = std::min(first + block, n);
      for (size_t j = 0; j < first; ++j)
        for (size_t i = first; i < last; ++i) reduce<Isa>(i, j);
      for (size_t i = first; i < last; ++i) {
        double* const row = matrix + i * n;
        for (size_t j = first; j < i; ++j) reduce<Isa>(i, j);
        row[i] = std::sqrt(std::max(row[i] - simd::dot<Isa>(row, row, static_cast<int64_t>(i)), 1e-12));
      }
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void reduce(size_t i, size_t j) const {
    double *const row = matrix + i * n, *const other = matrix + j * n;
    row[j] = (row[j] - simd::dot<Isa>(row, other, static_cast<int64_t>(j))) / other[j];
  }
};

}  // namespace

void cholesky(std::vector<double>& matrix, size_t n) { simd::dispatch(Factorise{matrix.data(), n}); }

}  // namespace attnkit::core::search
