#include "core/speech/frontend.hpp"

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/model/layers.hpp"

namespace attnkit {

Frontend::Frontend(const SpeechTable& table, Activation activation, const std::vector<float>& mean,
                   const std::vector<float>& scale, std::vector<Dense> convolutions, const Dense& out)
    : table_(table),
      activation_(activation),
      fbank_(table.features),
      mean_(mean),
      scale_(scale),
      conv_(std::move(convolutions)),
      out_(out),
      parameters_(out_.parameters()) {
  for (const Dense& conv : conv_) parameters_ += conv.parameters();
}

int64_t Frontend::frames(SourceKind kind, int64_t units) const {
  return kind == SourceKind::samples ? fbank_.frames(units) : units;
}

int64_t Frontend::rows(SourceKind kind, int64_t units) const { return frames(kind, units) / table_.subsampling(); }

int64_t Frontend::end_of_row(SourceKind kind, int64_t row) const {
  const int64_t frames = (row + 1) * table_.subsampling();
  if (kind == SourceKind::frames) return frames;
  return table_.features.frame_length() + (frames - 1) * table_.features.frame_shift();
}

double Frontend::seconds(SourceKind kind, int64_t units) const {
  const FbankSpec& f = table_.features;
  if (kind == SourceKind::frames && units > 0) units = f.frame_length() + (units - 1) * f.frame_shift();
  return static_cast<double>(units) / f.sample_rate;
}

void Frontend::require_row(SourceKind kind, int64_t units) const {
  if (rows(kind, units) == 0)
    fail(ATTN_INVALID, "source: {} {} are less than the {} that the first row of the encoder needs", units,
         unit_name(kind), end_of_row(kind, 0));
}

void Frontend::features(const float* samples, int64_t frames, float* out) const {
  if (frames > 0) fbank_.apply(samples, frames, out);
}

Frontend::Waiting Frontend::start() const {
  Waiting waiting;
  for (const Dense& conv : conv_)
    waiting.rows.emplace_back(static_cast<size_t>(carried() * conv.inputs() / table_.kernel), 0.0f);
  return waiting;
}

std::vector<float> Frontend::frames_of(std::vector<float>& samples, const float* more, int64_t length) const {
  samples.insert(samples.end(), more, more + length);
  const int64_t n = fbank_.frames(static_cast<int64_t>(samples.size()));
  std::vector<float> frames(static_cast<size_t>(n * table_.features.bins));
  features(samples.data(), n, frames.data());
  samples.erase(samples.begin(), samples.begin() + n * table_.features.frame_shift());
  return frames;
}

void Frontend::normalise(std::vector<float>& frames) const {
  for (size_t i = 0; i < frames.size(); ++i) {
    const size_t bin = i % mean_.size();
    frames[i] = (frames[i] - mean_[bin]) * scale_[bin];
  }
}

std::vector<float> Frontend::convolve(Threads& threads, size_t layer, std::vector<float>& rows,
                                      const std::vector<float>& more) const {
  const Dense& conv = conv_[layer];
  const int64_t width = conv.inputs() / table_.kernel, stride = table_.stride * width;
  rows.insert(rows.end(), more.begin(), more.end());
  const int64_t n = (static_cast<int64_t>(rows.size()) / width - carried()) / table_.stride;
  std::vector<float> made(static_cast<size_t>(n * conv.outputs()));
  // What an output sees lies side by side, so neighbours are rows that overlap.
  conv.apply(threads, rows.data(), stride, made.data(), conv.outputs(), n);
  activate(activation_, made.data(), static_cast<int64_t>(made.size()));
  rows.erase(rows.begin(), rows.begin() + n * stride);
  return made;
}

std::vector<float> Frontend::take(Threads& threads, Waiting& waiting, SourceKind kind, const float* units,
                                  int64_t length) const {
  std::vector<float> x = kind == SourceKind::samples ? frames_of(waiting.samples, units, length)
                                                     : std::vector<float>(units, units + length * table_.features.bins);
  normalise(x);
  for (size_t l = 0; l < conv_.size(); ++l) x = convolve(threads, l, waiting.rows[l], x);
  const int64_t n = static_cast<int64_t>(x.size()) / out_.inputs();
  std::vector<float> made(static_cast<size_t>(n * out_.outputs()));
  out_.apply(threads, x.data(), out_.inputs(), made.data(), out_.outputs(), n);
  return made;
}

bool Frontend::fits(const Waiting& waiting, SourceKind kind, int64_t units) const {
  int64_t rows = frames(kind, units);
  const int64_t samples = kind == SourceKind::samples ? units - rows * table_.features.frame_shift() : 0;
  if (static_cast<int64_t>(waiting.samples.size()) != samples || waiting.rows.size() != conv_.size()) return false;
  for (size_t l = 0; l < conv_.size(); ++l, rows /= table_.stride) {
    const int64_t wait = carried() + rows % table_.stride;
    if (static_cast<int64_t>(waiting.rows[l].size()) != wait * conv_[l].inputs() / table_.kernel) return false;
  }
  return true;
}

void Frontend::digest(Sha256& to) const {
  to.add_numbers(std::span(mean_));
  to.add_numbers(std::span(scale_));
  for (const Dense& conv : conv_) to.add_numbers(conv.numbers());
  to.add_numbers(out_.numbers());
}

}  // namespace attnkit
