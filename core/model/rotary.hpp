// Positions that turn the channels of q and k.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/manifest/manifest.hpp"

namespace attnkit::core {

// Rotary positions (Su et al. 2021, arXiv:2104.09864): channels a and b of a pair of a head at position p become
// a cos(p w) - b sin(p w) and b cos(p w) + a sin(p w), w the pair's speed.  Immutable: any thread.
class Rotary {
 public:
  Rotary(const RotaryTable& table, int64_t max_length);
  // heads (count, width) of one row, side by side, in place.  length: positions of the text up to the last that is
  // turned with this one, which decides between the speeds of longrope as transformers does.
  void turn(float* heads, int64_t count, int64_t width, int64_t position, int64_t length) const;
  // The cosine and sine of each position and pair, as turn() has them: (max_length, pairs, 2).  Throws Error
  // (ATTN_UNSUPPORTED) where the length of a text decides between two tables.
  std::vector<float> table(int64_t max_length) const;
  int64_t pairs() const { return pairs_; }
  int64_t first() const { return first_; }
  int64_t second() const { return second_; }

 private:
  struct Turns {
    std::vector<double> near, far;  // cosines and sines of p w for p below `stride`, and for its multiples
  };
  std::pair<float, float> turn_of(const Turns& by, int64_t position, int64_t pair) const;
  static Turns turns(const RotaryTable& table, const std::vector<double>& slower, int64_t max_length);

  std::vector<Turns> all_;  // the last for texts of more than short_length_
  int64_t short_length_;
  int64_t pairs_, first_, second_;  // how far apart pairs, and the two of a pair, are
};

}  // namespace attnkit::core
