// From a source, text or speech, to the rows that a head or a decoder takes.
#pragma once

#include <optional>
#include <span>

#include "core/model/transformer.hpp"
#include "core/speech/frontend.hpp"
#include "core/tokenizer/vocabulary.hpp"

namespace attnkit::core {

class Encoder {
 public:
  explicit Encoder(const Manifest& manifest) : stack(manifest), manifest_(manifest) {}
  void load(LayerReader& from);

  std::shared_ptr<const Tokenizer> vocabulary;  // of text; NULL of speech
  std::optional<Frontend> frontend;             // of speech
  Embedding embedding;                          // of speech: positions alone
  Transformer stack;

  // Throws Error (ATTN_INVALID) unless the model takes this, and that with at most max_length rows.
  void check(const SourceBatch& source) const;
  int64_t rows(const SourceBatch& source) const {
    return frontend ? frontend->rows(source.kind, source.length) : source.length;
  }
  // x (batch, rows, D); ws.source describes its rows then.
  void run(Workspace& ws, const SourceBatch& source, float* x, Aux& aux, const Probe* probe) const;
  // Whole sources, or of an encoder that appends parts whose predecessors are in the states of `slots`.  The result
  // (parts, length of the longest, D) lives in ws.
  const float* run(Workspace& ws, std::span<const SourcePart> parts, const std::vector<int32_t>& slots, Aux& aux) const;
  // It takes a source part by part, with states of its own.
  bool appends() const { return manifest_.stream && manifest_.encoder.causal; }

 private:
  void embed(const SourcePart& part, float* x) const;
  void embed_speech(Workspace& ws, const SourceBatch& source, float* x) const;

  const Manifest& manifest_;
};

// Throws Error (ATTN_INVALID) unless ids of that side fit the vocabulary (NULL: the model has none) and max_length.
void check_ids(const Ids& ids, const char* side, const Tokenizer* vocabulary, int64_t max_length);

}  // namespace attnkit::core
