// Positions that turn the channels of q and k.
#pragma once

#include <cstdint>
#include <vector>

#include "core/manifest/manifest.hpp"

namespace attnkit::core {

// Rotary positions (Su et al. 2021, arXiv:2104.09864): channels a and b of a pair of a head at position p become
// a cos(p w) - b sin(p w) and b cos(p w) + a sin(p w), w the pair's speed.  Immutable: any thread.
class Rotary {
 public:
  Rotary(const RotaryTable& table, int64_t max_length);
  // heads (count, width) of one row, side by side, in place.
  void turn(float* heads, int64_t count, int64_t width, int64_t position) const;

 private:
  std::vector<double> near_, far_;  // cosines and sines of p w for p below `stride`, and for its multiples
  int64_t pairs_, first_, second_;  // how far apart pairs, and the two of a pair, are
};

}  // namespace attnkit::core
