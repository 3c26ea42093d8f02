// Equal to transformers' WhisperFeatureExtractor: frame j is centred at sample j times the shift, the recording is
// mirrored at both ends; Hann's window, periodic; |FFT|^2; triangles of equal area, equally wide on Slaney's mel scale
// from 0 Hz to Nyquist; log10 of at least 1e-10.
#include "core/speech/log_mel.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <kissfft.hh>
#include <numbers>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr double min_energy = 1e-10, range = 8;

// Linear below 1000 Hz, which is mel 15; above it 27 mels make a factor of 6.4.
const double log_step = std::log(6.4) / 27;
double mel_of(double hz) { return hz < 1000 ? hz * 3 / 200 : 15 + std::log(hz / 1000) / log_step; }
double hz_of(double mel) { return mel < 15 ? mel * 200 / 3 : 1000 * std::exp((mel - 15) * log_step); }

// The weights of a bin of the mel scale, for frequencies from `first` on.
struct Triangle {
  size_t first = 0;
  std::vector<double> weights;
};

std::vector<Triangle> triangles(const FbankSpec& spec, size_t points) {
  const double top = mel_of(spec.sample_rate / 2.0);
  const auto edge = [&](int i) { return hz_of(top * i / (spec.bins + 1)); };
  std::vector<Triangle> made(static_cast<size_t>(spec.bins));
  for (int bin = 0; bin < spec.bins; ++bin) {
    const double left = edge(bin), centre = edge(bin + 1), right = edge(bin + 2);
    Triangle& t = made[static_cast<size_t>(bin)];
    for (size_t k = 1; k < points / 2; ++k) {
      const double hz = static_cast<double>(k) * spec.sample_rate / static_cast<double>(points);
      if (hz <= left || hz >= right) continue;
      if (t.weights.empty()) t.first = k;
      t.weights.push_back(std::min((hz - left) / (centre - left), (right - hz) / (right - centre)) * 2 /
                          (right - left));
    }
    if (t.weights.empty()) spec.refuse_bin(bin, points / 2);
  }
  return made;
}

// The transform has scratch of its own, which threads may not share, for other factors.
bool is_smooth(int64_t n) {
  for (const int64_t factor : {2, 3, 5})
    while (n % factor == 0) n /= factor;
  return n == 1;
}

void check(const FbankSpec& spec, int64_t frames) {
  const int64_t length = spec.frame_length(), shift = spec.frame_shift();
  if (length < 4 || length % 2 != 0 || !is_smooth(length))
    fail(ATTN_INVALID,
         "window_ms {} at a sample_rate of {} are {} samples; log_mel needs an even number of them without other prime "
         "factors than 2, 3 and 5",
         spec.window_ms, spec.sample_rate, length);
  if (shift < 1 || frames < 1 || frames * shift <= length / 2)
    fail(ATTN_INVALID, "{} frames every {} samples are too few for windows of {}", frames, shift, length);
}

}  // namespace

struct LogMel::Plan {
  Plan(const FbankSpec& spec, int64_t frame_count)
      : length(static_cast<size_t>(spec.frame_length())),
        shift(spec.frame_shift()),
        frames(frame_count),
        transform(length / 2, false),
        window(length),
        bins(triangles(spec, length)) {
    for (size_t i = 0; i < length; ++i)
      window[i] = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(length));
  }

  size_t length;
  int64_t shift, frames;
  kissfft<double> transform;
  std::vector<double> window;
  std::vector<Triangle> bins;
};

LogMel::LogMel(const FbankSpec& spec, int64_t frames)
    : plan_((check(spec, frames), std::make_unique<const Plan>(spec, frames))) {}
LogMel::~LogMel() = default;
LogMel::LogMel(LogMel&&) noexcept = default;
LogMel& LogMel::operator=(LogMel&&) noexcept = default;

int64_t LogMel::samples() const { return plan_->frames * plan_->shift; }

void LogMel::apply(const float* samples, int64_t n, float* out) const {
  const Plan& p = *plan_;
  const int64_t total = this->samples(), half = static_cast<int64_t>(p.length) / 2;
  const size_t width = p.bins.size();
  std::vector<double> time(p.length);
  std::vector<std::complex<double>> frequency(p.length / 2);
  double loudest = std::log10(min_energy);
  std::vector<double> logs(static_cast<size_t>(p.frames) * width, loudest);
  // Behind the last frame that sees a sample all is silent; mirrored samples are not further away than others.
  const int64_t reached = std::min(p.frames, (n + half) / p.shift + 1);
  for (int64_t j = 0; j < p.frames; ++j) {
    if (j >= reached && (j + 1) * p.shift + half < total) continue;
    for (size_t i = 0; i < p.length; ++i) {
      int64_t at = std::abs(j * p.shift - half + static_cast<int64_t>(i));
      if (at >= total) at = 2 * (total - 1) - at;
      time[i] = at < n ? samples[at] * p.window[i] : 0;
    }
    p.transform.transform_real(time.data(), frequency.data());
    for (size_t bin = 0; bin < width; ++bin) {
      const Triangle& t = p.bins[bin];
      double energy = 0;
      for (size_t k = 0; k < t.weights.size(); ++k) energy += t.weights[k] * std::norm(frequency[t.first + k]);
      double& log = logs[static_cast<size_t>(j) * width + bin];
      log = std::log10(std::max(energy, min_energy));
      loudest = std::max(loudest, log);
    }
  }
  for (size_t i = 0; i < logs.size(); ++i) out[i] = static_cast<float>((std::max(logs[i], loudest - range) + 4) / 4);
}

}  // namespace attnkit::core
