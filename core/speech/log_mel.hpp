// Log-mel spectrograms of whole recordings, by Whisper's conventions (Radford et al. 2022, arXiv:2212.04356, 2.2).
#pragma once

#include <cstdint>
#include <memory>

#include "core/speech/fbank.hpp"

namespace attnkit::core {

// Every number depends on the loudest of the recording, so there are no frames before its end.
class LogMel {
 public:
  // frames: of every recording; silence follows what is shorter.  Throws Error: numbers that do not fit each other.
  LogMel(const FbankSpec& spec, int64_t frames);
  ~LogMel();
  LogMel(LogMel&&) noexcept;
  LogMel& operator=(LogMel&&) noexcept;

  int64_t samples() const;  // of the longest recording
  // samples: f32 in [-1, 1], at most samples(); out: (frames, bins), (max(log10 of the energy, the loudest - 8) + 4)
  // / 4. Any thread.
  void apply(const float* samples, int64_t n, float* out) const;

 private:
  struct Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace attnkit::core
