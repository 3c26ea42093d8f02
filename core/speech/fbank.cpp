// Equal to torchaudio.compliance.kaldi.fbank with dither 0 and otherwise its defaults, but for the number of bins:
// per frame, x = 32768 samples; x -= mean; x_i -= 0.97 x_(i-1); x *= (0.5 - 0.5 cos(2 pi i / (n - 1)))^0.85; zeros up
// to a power of two; |FFT|^2; triangles on the mel scale from 20 Hz to Nyquist; log of at least f32's epsilon.
#include "core/speech/fbank.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <kissfft.hh>
#include <limits>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr double lowest_hz = 20, preemphasis = 0.97, povey = 0.85, full_scale = 32768;

double mel_of(double hz) { return 1127.0 * std::log(1.0 + hz / 700.0); }

// The weights of a bin of the mel scale, for frequencies from `first` on.
struct Triangle {
  size_t first = 0;
  std::vector<double> weights;
};

int64_t samples_in(const FbankSpec& spec, double ms) {
  // In this order, as torchaudio multiplies: 0.001 is inexact and the result is cut off.
  return static_cast<int64_t>(spec.sample_rate * ms * 0.001);
}

void check(const FbankSpec& spec) {
  if (spec.sample_rate < 1000 || spec.sample_rate > 384'000)
    fail(ATTN_INVALID, "sample_rate is {}; it must be 1000 to 384000", spec.sample_rate);
  if (spec.bins < 1 || spec.bins > 512) fail(ATTN_INVALID, "bins is {}; it must be 1 to 512", spec.bins);
  if (!(spec.window_ms > 0 && spec.window_ms <= 1000))
    fail(ATTN_INVALID, "window_ms is {}; it must be above 0 and at most 1000", spec.window_ms);
  if (!(spec.shift_ms > 0 && spec.shift_ms <= spec.window_ms))
    fail(ATTN_INVALID, "shift_ms is {}; it must be above 0 and at most window_ms, {}", spec.shift_ms, spec.window_ms);
  if (spec.frame_length() < 2)
    fail(ATTN_INVALID, "window_ms {} is less than two samples at a sample_rate of {}: make it longer", spec.window_ms,
         spec.sample_rate);
  if (spec.frame_shift() < 1)
    fail(ATTN_INVALID, "shift_ms {} is less than one sample at a sample_rate of {}: make it longer", spec.shift_ms,
         spec.sample_rate);
}

std::vector<double> window_of(size_t length) {
  std::vector<double> window(length);
  for (size_t i = 0; i < length; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length - 1);
    window[i] = full_scale * std::pow(0.5 - 0.5 * std::cos(angle), povey);
  }
  return window;
}

// The bins, equally wide on the mel scale, over the frequencies of a transform of so many points below Nyquist.
std::vector<Triangle> triangles(const FbankSpec& spec, size_t points) {
  std::vector<double> mels(points / 2);
  for (size_t k = 0; k < mels.size(); ++k)
    mels[k] = mel_of(static_cast<double>(k) * spec.sample_rate / static_cast<double>(points));
  const double low = mel_of(lowest_hz), step = (mel_of(spec.sample_rate / 2.0) - low) / (spec.bins + 1);
  std::vector<Triangle> made(static_cast<size_t>(spec.bins));
  for (int bin = 0; bin < spec.bins; ++bin) {
    const double left = low + bin * step, center = left + step, right = center + step;
    const auto first = std::upper_bound(mels.begin(), mels.end(), left);
    made[bin].first = static_cast<size_t>(first - mels.begin());
    for (auto mel = first; mel != mels.end() && *mel < right; ++mel)
      made[bin].weights.push_back(std::min((*mel - left) / (center - left), (right - *mel) / (right - center)));
    if (made[bin].weights.empty()) spec.refuse_bin(bin, mels.size());
  }
  return made;
}

}  // namespace

int64_t FbankSpec::frame_length() const { return samples_in(*this, window_ms); }
int64_t FbankSpec::frame_shift() const { return samples_in(*this, shift_ms); }
void FbankSpec::refuse_bin(int bin, size_t frequencies) const {
  fail(ATTN_INVALID,
       "bins {} are too many for {} frequencies (window_ms {} at a sample_rate of {}): bin {} would be empty; take "
       "fewer bins or a longer window",
       bins, frequencies, window_ms, sample_rate, bin + 1);
}

struct Fbank::Plan {
  Plan(const FbankSpec& spec, size_t window_length)
      : length(window_length),
        shift(static_cast<size_t>(spec.frame_shift())),
        points(std::bit_ceil(length)),
        transform(points / 2, false),
        window(window_of(length)),
        bins(triangles(spec, points)) {}
  void frame(const float* samples, float* out) const;

  size_t length, shift, points;
  kissfft<double> transform;  // its scratch, which threads may not share, is for lengths that are no powers of two
  std::vector<double> window;
  std::vector<Triangle> bins;
};

void Fbank::Plan::frame(const float* samples, float* out) const {
  // Of the calling thread; they grow with the largest transform and then stay.
  thread_local std::vector<double> time;
  thread_local std::vector<std::complex<double>> frequency;
  if (time.size() < points) {
    time.resize(points);
    frequency.resize(points / 2);
  }
  const double mean = std::accumulate(samples, samples + length, 0.0) / static_cast<double>(length);
  double before = samples[0] - mean;
  for (size_t i = 0; i < length; ++i) {
    const double x = samples[i] - mean;
    time[i] = (x - preemphasis * before) * window[i];
    before = x;
  }
  std::fill(time.data() + length, time.data() + points, 0.0);
  transform.transform_real(time.data(), frequency.data());
  for (size_t bin = 0; bin < bins.size(); ++bin) {
    const Triangle& t = bins[bin];
    double energy = 0;  // frequency[0] holds Nyquist as well as 0 Hz, but no triangle reaches below 20 Hz
    for (size_t k = 0; k < t.weights.size(); ++k) energy += t.weights[k] * std::norm(frequency[t.first + k]);
    out[bin] = static_cast<float>(std::log(std::max<double>(energy, std::numeric_limits<float>::epsilon())));
  }
}

Fbank::Fbank(const FbankSpec& spec)
    : plan_((check(spec), std::make_unique<const Plan>(spec, static_cast<size_t>(spec.frame_length())))) {}
Fbank::~Fbank() = default;
Fbank::Fbank(Fbank&&) noexcept = default;
Fbank& Fbank::operator=(Fbank&&) noexcept = default;

int64_t Fbank::frames(int64_t samples) const {
  const auto length = static_cast<int64_t>(plan_->length), shift = static_cast<int64_t>(plan_->shift);
  return samples < length ? 0 : 1 + (samples - length) / shift;
}

void Fbank::apply(const float* samples, int64_t frames, float* out) const {
  for (int64_t j = 0; j < frames; ++j)
    plan_->frame(samples + j * static_cast<int64_t>(plan_->shift), out + j * static_cast<int64_t>(plan_->bins.size()));
}

}  // namespace attnkit::core
