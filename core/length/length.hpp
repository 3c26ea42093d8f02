// Predicts the length of a source's target, as [length] says: for mechanisms that need the whole length.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/threads.hpp"
#include "core/manifest/manifest.hpp"
#include "core/speech/source.hpp"

namespace attnkit::core {

class Tokenizer;

// Buffers of one thread of control.
struct LengthBuffers {
  Buffer x, y;
};

// Immutable: any thread.
struct Length {
  std::string identity;  // equal exactly where predictions are
  // Positions of the target, </s> included; positive, perhaps no whole number.  Depends on nothing but this source from
  // its beginning; ids and rows may be NULL where needs_ids and needs_rows say no.
  std::function<double(Threads& threads, LengthBuffers& buffers, const SourcePart& source)> predict;
  std::function<void(nlohmann::ordered_json& to)> describe;  // adds its settings
  bool needs_ids = false, needs_rows = false;
};

// "ratio": the key of the manifest; "none" without [length].
const char* predict_name(Predict predict);

// Makes the predictor that the manifest names; source: the vocabulary, NULL without an encoder.  NULL where nothing is
// predicted, or after a diagnostic.  Throws Stopped.
std::unique_ptr<const Length> make_length(const Manifest& manifest, const Tokenizer* source, Diagnostics& diagnostics);

// Target positions that each source token makes on average, for predict = "lut".
struct LengthTable {
  std::vector<double> means;  // by id; of tokens that the file does not list: the mean
  int64_t listed = 0;
  double mean = 0;  // of those that are listed, each counted once
};

// File: UTF-8, one token per line: token, TAB, a number from 0.  Throws Error (ATTN_INVALID) naming file and line: no
// lines, a token that the vocabulary lacks or that stood before, no number.
LengthTable read_length_table(const std::string& path, const Tokenizer& vocabulary);

}  // namespace attnkit::core
