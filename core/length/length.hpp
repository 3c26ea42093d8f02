// Predicts the length of a source's target, as [length] says: for mechanisms that need the whole length.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/threads.hpp"
#include "core/manifest/manifest.hpp"
#include "core/speech/source.hpp"

namespace attnkit {

class Vocabulary;

// Buffers of one thread of control.
struct LengthBuffers {
  Buffer x, y;
};

// Immutable: any thread.
class Length {
 public:
  virtual ~Length() = default;
  // Positions of the target, </s> included; positive, perhaps no whole number.  Depends on nothing but this source from
  // its beginning; ids and rows may be NULL where needs_ids() and needs_rows() say no.
  virtual double predict(Threads& threads, LengthBuffers& buffers, const SourcePart& source) const = 0;
  virtual bool needs_ids() const { return false; }
  virtual bool needs_rows() const { return false; }
  virtual void describe(nlohmann::ordered_json& to) const = 0;  // adds its settings
  // Equal exactly where predictions are.
  const std::string& identity() const { return identity_; }

 protected:
  explicit Length(std::string identity) : identity_(std::move(identity)) {}

 private:
  std::string identity_;
};

// "ratio": the key of the manifest; "none" without [length].
const char* predict_name(Predict predict);

// Makes the predictor that the manifest names; source: the vocabulary, NULL without an encoder.  NULL where nothing is
// predicted, or after a diagnostic.  Throws Stopped.
std::unique_ptr<const Length> make_length(const Manifest& manifest, const Vocabulary* source, Diagnostics& diagnostics);

// Target positions that each source token makes on average, for predict = "lut".
struct LengthTable {
  std::vector<double> means;  // by id; of tokens that the file does not list: the mean
  int64_t listed = 0;
  double mean = 0;  // of those that are listed, each counted once
};

// File: UTF-8, one token per line: token, TAB, a number from 0.  Throws Error (ATTN_INVALID) naming file and line: no
// lines, a token that the vocabulary lacks or that stood before, no number.
LengthTable read_length_table(const std::string& path, const Vocabulary& vocabulary);

}  // namespace attnkit
