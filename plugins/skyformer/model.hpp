// The sizes of a skyformer block and what its samples mean.
#pragma once
#include <attnkit/kernels/pack.hpp>
#include <attnkit/plugin.hpp>

namespace skyformer {

struct Model : attnkit::Widths {
  int64_t m, steps;
  double scale, gamma;

  int64_t padded() const { return attnkit::simd::whole_lanes(m); }
  double flops(int64_t rows) const {
    const auto x = static_cast<double>(m);
    return x * static_cast<double>((3 * d + 2 * e) * rows) + x * x * static_cast<double>(3 * d + 2 * e) +
           8 * x * x * x * static_cast<double>(steps);
  }
};

// A sample: a place in [Q; K], from 0 to 1 in Q and from 1 to 2 in K, whatever the length of the row.
struct Sample {
  bool query;
  int64_t row;
  Sample(double place, int64_t queries, int64_t keys)
      : query(place < 1),
        row(static_cast<int64_t>(query ? place * static_cast<double>(queries)
                                       : (place - 1) * static_cast<double>(keys))) {}
};

}  // namespace skyformer
