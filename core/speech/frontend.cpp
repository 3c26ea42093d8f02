#include "core/speech/frontend.hpp"

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/model/layers.hpp"

namespace attnkit::core {

Frontend::Frontend(const SpeechTable& table, Activation activation, const std::vector<float>& mean,
                   const std::vector<float>& scale, std::vector<Dense> convolutions, const Dense& out)
    : table_(table),
      activation_(activation),
      mean_(mean),
      scale_(scale),
      conv_(std::move(convolutions)),
      out_(out),
      parameters_(out_.parameters()) {
  for (const Dense& conv : conv_) parameters_ += conv.parameters();
  if (table.type == Features::log_mel)
    log_mel_.emplace(table.features, table.frames);
  else
    fbank_.emplace(table.features);
}

int64_t Frontend::frames(SourceKind kind, int64_t units) const {
  if (whole()) return units > 0 ? table_.frames : 0;
  return kind == SourceKind::samples ? fbank_->frames(units) : units;
}

int64_t Frontend::rows(SourceKind kind, int64_t units) const {
  const int64_t whole_rows = frames(kind, units) + (whole() ? table_.subsampling() - 1 : 0);
  return whole_rows / table_.subsampling();
}

void Frontend::check_whole(SourceKind kind, int64_t units) const {
  if (!whole() || units == 0) return;
  if (kind == SourceKind::samples && units > log_mel_->samples())
    fail(ATTN_INVALID,
         "source: {} samples are {:.2f} s, and this model takes up to {:g} s at once: split the recording", units,
         seconds(kind, units), seconds(kind, log_mel_->samples()));
  if (kind == SourceKind::frames && units != table_.frames)
    fail(ATTN_INVALID, "source: {} frames; this model has {} of every recording, silence included", units,
         table_.frames);
}

void Frontend::features(const float* samples, int64_t length, float* out) const {
  if (whole())
    log_mel_->apply(samples, length, out);
  else
    fbank_->apply(samples, fbank_->frames(length), out);
}

int64_t Frontend::end_of_row(SourceKind kind, int64_t row) const {
  if (whole()) return kind == SourceKind::frames ? table_.frames : 1;
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

Frontend::Waiting Frontend::start() const {
  Waiting waiting;
  for (const Dense& conv : conv_)
    if (!whole()) waiting.rows.emplace_back(static_cast<size_t>(carried() * conv.inputs() / table_.kernel), 0.0f);
  return waiting;
}

std::vector<float> Frontend::take(Threads& threads, Waiting& waiting, SourceKind kind, const float* units,
                                  int64_t length) const {
  if (whole()) return take_whole(threads, kind, units, length);
  const int64_t bins = table_.features.bins;
  std::vector<float> x;
  if (kind == SourceKind::samples) {
    std::vector<float>& samples = waiting.samples;
    samples.insert(samples.end(), units, units + length);
    const int64_t n = fbank_->frames(static_cast<int64_t>(samples.size()));
    x.resize(static_cast<size_t>(n * bins));
    fbank_->apply(samples.data(), n, x.data());
    samples.erase(samples.begin(), samples.begin() + n * table_.features.frame_shift());
  } else {
    x.assign(units, units + length * bins);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t bin = i % mean_.size();
    x[i] = (x[i] - mean_[bin]) * scale_[bin];
  }
  for (size_t l = 0; l < conv_.size(); ++l) {
    std::vector<float>& rows = waiting.rows[l];
    const int64_t width = conv_[l].inputs() / table_.kernel, stride = table_.stride * width;
    rows.insert(rows.end(), x.begin(), x.end());
    const int64_t n = (static_cast<int64_t>(rows.size()) / width - carried()) / table_.stride;
    x.resize(static_cast<size_t>(n * conv_[l].outputs()));
    // The inputs of an output stand side by side, so neighbours are rows that overlap.
    conv_[l].apply(threads, rows.data(), stride, x.data(), conv_[l].outputs(), n, activation_);
    rows.erase(rows.begin(), rows.begin() + n * stride);
  }
  const int64_t n = static_cast<int64_t>(x.size()) / out_.inputs();
  std::vector<float> made(static_cast<size_t>(n * out_.outputs()));
  out_.apply(threads, x.data(), out_.inputs(), made.data(), out_.outputs(), n);
  return made;
}

std::vector<float> Frontend::take_whole(Threads& threads, SourceKind kind, const float* units, int64_t length) const {
  if (length == 0) return {};
  const int64_t bins = table_.features.bins, beside = table_.kernel / 2;
  std::vector<float> x(static_cast<size_t>(table_.frames * bins));
  if (kind == SourceKind::samples)
    log_mel_->apply(units, length, x.data());
  else
    x.assign(units, units + length * bins);
  for (size_t l = 0; l < conv_.size(); ++l) {
    const Dense& conv = conv_[l];
    const int64_t width = conv.inputs() / table_.kernel, stride = table_.stride_of(static_cast<int>(l));
    const auto zeros = static_cast<size_t>(beside * width);
    const int64_t n = (static_cast<int64_t>(x.size()) / width + stride - 1) / stride;
    x.insert(x.begin(), zeros, 0.0f);
    x.insert(x.end(), zeros, 0.0f);
    std::vector<float> made(static_cast<size_t>(n * conv.outputs()));
    conv.apply(threads, x.data(), stride * width, made.data(), conv.outputs(), n, activation_);
    x = std::move(made);
  }
  return x;
}

bool Frontend::fits(const Waiting& waiting, SourceKind kind, int64_t units) const {
  if (whole()) return false;  // nothing of them waits
  int64_t rows = frames(kind, units);
  const int64_t samples = kind == SourceKind::samples ? units - rows * table_.features.frame_shift() : 0;
  if (static_cast<int64_t>(waiting.samples.size()) != samples || waiting.rows.size() != conv_.size()) return false;
  for (size_t l = 0; l < conv_.size(); ++l, rows /= table_.stride) {
    const int64_t wait = carried() + rows % table_.stride;
    if (static_cast<int64_t>(waiting.rows[l].size()) != wait * conv_[l].inputs() / table_.kernel) return false;
  }
  return true;
}

__int128 Frontend::multiply_adds(int64_t rows) const {
  __int128 all = out_.multiply_adds(rows);
  for (size_t l = conv_.size(); l-- > 0; rows *= table_.stride_of(static_cast<int>(l)))
    all += conv_[l].multiply_adds(rows);
  return all;
}

void Frontend::digest(Sha256& to) const {
  to.add_numbers(std::span(mean_));
  to.add_numbers(std::span(scale_));
  for (const Dense& conv : conv_) conv.digest(to);
  out_.digest(to);
}

}  // namespace attnkit::core
