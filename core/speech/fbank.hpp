// Log-mel frames of speech, by Kaldi's conventions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace attnkit::core {

struct FbankSpec {
  int sample_rate = 16000, bins = 80;
  double window_ms = 25, shift_ms = 10;

  // In samples, rounded down.
  int64_t frame_length() const;
  int64_t frame_shift() const;
  // Throws Error of a bin that would see none of so many frequencies.
  [[noreturn]] void refuse_bin(int bin, size_t frequencies) const;
};

// Frame j is a function of samples [j shift, j shift + length) alone, bitwise, whatever comes with them.
class Fbank {
 public:
  // Throws Error: numbers out of bounds, or a bin of the mel scale that would see no frequency of the transform.
  explicit Fbank(const FbankSpec& spec);
  ~Fbank();
  Fbank(Fbank&&) noexcept;
  Fbank& operator=(Fbank&&) noexcept;

  // Of so many samples: 0 below one window, then one and one more for each shift.
  int64_t frames(int64_t samples) const;
  // samples: f32 in [-1, 1], at least frame_length + (frames - 1) frame_shift; out: (frames, bins), natural logarithms
  // of energies of 16-bit samples.  Any thread; allocates only the first time in a thread.
  void apply(const float* samples, int64_t frames, float* out) const;

 private:
  struct Plan;
  std::unique_ptr<const Plan> plan_;
};

}  // namespace attnkit::core
