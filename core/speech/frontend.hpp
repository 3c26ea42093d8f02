// The front end of a model that takes speech.  Either frames of samples, normalised, convolutions that never look back
// at a row they made, and a projection to the model's width; or frames of a whole recording and centred convolutions.
#pragma once

#include <optional>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/model/dense/dense.hpp"
#include "core/speech/fbank.hpp"
#include "core/speech/log_mel.hpp"
#include "core/speech/source.hpp"

namespace attnkit::core {

class Sha256;

class Frontend {
 public:
  // Speech of one source that makes no row of the encoder yet.
  struct Waiting {
    std::vector<float> samples;            // from the first that the next frame sees
    std::vector<std::vector<float>> rows;  // by layer: of its input, from the first that its next output sees
  };

  // Throws Error (ATTN_INVALID) for features that cannot be computed.
  // mean and scale: (bins), of the frames; convolutions: one for each layer; out: from channels to d_model.  Of whole
  // recordings mean, scale and out are empty.
  Frontend(const SpeechTable& table, Activation activation, const std::vector<float>& mean,
           const std::vector<float>& scale, std::vector<Dense> convolutions, const Dense& out);

  const SpeechTable& table() const { return table_; }
  int64_t parameters() const { return parameters_; }
  __int128 multiply_adds(int64_t rows) const;  // of its layers, for so many rows of the encoder
  // Frames, and rows of the encoder, of so many units; a unit is a sample or a frame.
  int64_t frames(SourceKind kind, int64_t units) const;
  int64_t rows(SourceKind kind, int64_t units) const;
  // It takes recordings at once, and makes as many rows of each.
  bool whole() const { return log_mel_.has_value(); }
  // Throws Error (ATTN_INVALID) where so many units are no whole recording that it takes.
  void check_whole(SourceKind kind, int64_t units) const;
  // The units that are there when row `row`, from 0, is whole; of whole recordings the least that there may be.
  int64_t end_of_row(SourceKind kind, int64_t row) const;
  // Seconds that so many units last.
  double seconds(SourceKind kind, int64_t units) const;
  // Throws Error (ATTN_INVALID) when so many units make no row at all.
  void require_row(SourceKind kind, int64_t units) const;
  // out (frames, bins) of samples, before normalisation.
  // Of whole recordings `length` samples become all frames.
  void features(const float* samples, int64_t length, float* out) const;

  Waiting start() const;
  // The rows (n, d_model) that `length` more units complete, without positions.  Whatever the pieces, the same rows,
  // bitwise.  Any thread, one Waiting each.
  std::vector<float> take(Threads& threads, Waiting& waiting, SourceKind kind, const float* units,
                          int64_t length) const;
  // Can this wait after so many units?
  bool fits(const Waiting& waiting, SourceKind kind, int64_t units) const;
  void digest(Sha256& to) const;  // adds all numbers

 private:
  std::vector<float> take_whole(Threads& threads, SourceKind kind, const float* units, int64_t length) const;
  int64_t carried() const { return table_.kernel - table_.stride; }  // rows that two outputs see

  SpeechTable table_;
  Activation activation_;
  std::optional<Fbank> fbank_;
  std::optional<LogMel> log_mel_;  // of whole recordings
  std::vector<float> mean_, scale_;
  std::vector<Dense> conv_;  // over (kernel, inputs), as rows lie in memory
  Dense out_;
  int64_t parameters_ = 0;
};

}  // namespace attnkit::core
