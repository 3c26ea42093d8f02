// Frames of speech: logarithms of mel energies, as Kaldi computes them (docs/manifest.md has the formulas' constants).
#pragma once

#include <cstdint>
#include <memory>

namespace attnkit {

// A frame sees window_ms of the samples; the next one stands shift_ms later.
struct FbankSpec {
  int sample_rate = 16000, bins = 80;
  double window_ms = 25, shift_ms = 10;
  int64_t frame_length() const { return static_cast<int64_t>(sample_rate * 0.001 * window_ms); }  // in samples
  int64_t frame_shift() const { return static_cast<int64_t>(sample_rate * 0.001 * shift_ms); }
};

class Fbank {
 public:
  // Throws Error (ATTN_INVALID) for a spec that cannot work, such as a mel bin without any bin of the FFT.
  explicit Fbank(const FbankSpec& spec);
  ~Fbank();
  Fbank(Fbank&&) noexcept;
  Fbank& operator=(Fbank&&) noexcept;

  // Whole frames in so many samples.
  int64_t frames(int64_t samples) const;
  // out (frames, bins) of samples within [-1, 1], of which all that these frames see must be there.  A frame depends on
  // its samples alone, bitwise.  Any thread.
  void apply(const float* samples, int64_t frames, float* out) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

}  // namespace attnkit
