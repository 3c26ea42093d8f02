// The front end of a model that takes speech: frames of samples, normalised; convolutions that never look
// back at a row they made; a projection to the model's width.
#pragma once

#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/model/dense/dense.hpp"
#include "core/speech/fbank.hpp"
#include "core/speech/source.hpp"

namespace attnkit {

class Sha256;

class Frontend {
 public:
  // Speech of one source that makes no row of the encoder yet.
  struct Waiting {
    std::vector<float> samples;            // from the first that the next frame sees
    std::vector<std::vector<float>> rows;  // by layer: of its input, from the first that its next output sees
  };

  // Throws Error (ATTN_INVALID) for features that cannot be computed.
  // mean and scale: (bins), of the frames; convolutions: one for each layer; out: from channels to d_model.
  Frontend(const SpeechTable& table, Activation activation, const std::vector<float>& mean,
           const std::vector<float>& scale, std::vector<Dense> convolutions, const Dense& out);

  const SpeechTable& table() const { return table_; }
  int64_t parameters() const { return parameters_; }
  // Frames, and rows of the encoder, of so many units; a unit is a sample or a frame.
  int64_t frames(SourceKind kind, int64_t units) const {
    return kind == SourceKind::samples ? fbank_.frames(units) : units;
  }
  int64_t rows(SourceKind kind, int64_t units) const { return frames(kind, units) / table_.subsampling(); }
  // The units that are there when row `row`, from 0, is whole.
  int64_t end_of_row(SourceKind kind, int64_t row) const;
  // Seconds that so many units last.
  double seconds(SourceKind kind, int64_t units) const;
  // Throws Error (ATTN_INVALID) when so many units make no row at all.
  void require_row(SourceKind kind, int64_t units) const;
  // out (frames, bins) of samples, before normalisation.
  void features(const float* samples, int64_t frames, float* out) const { fbank_.apply(samples, frames, out); }

  Waiting start() const;
  // The rows (n, d_model) that `length` more units complete, without positions.  Whatever the pieces, the same rows,
  // bitwise.  Any thread, one Waiting each.
  std::vector<float> take(Threads& threads, Waiting& waiting, SourceKind kind, const float* units,
                          int64_t length) const;
  // Can this wait after so many units?
  bool fits(const Waiting& waiting, SourceKind kind, int64_t units) const;
  void digest(Sha256& to) const;  // adds all numbers

 private:
  int64_t carried() const { return table_.kernel - table_.stride; }  // rows that two outputs see

  SpeechTable table_;
  Activation activation_;
  Fbank fbank_;
  std::vector<float> mean_, scale_;
  std::vector<Dense> conv_;  // over (kernel, inputs), as rows lie in memory
  Dense out_;
  int64_t parameters_ = 0;
};

}  // namespace attnkit
