// From target ids, and the encoder's rows where there is an encoder, to the rows that the head scores.
#pragma once

#include <optional>

#include "core/model/transformer.hpp"
#include "core/tokenizer/vocabulary.hpp"

namespace attnkit::core {

class Decoder {
 public:
  explicit Decoder(const Manifest& manifest) : stack(manifest), manifest_(manifest) {}
  void load(LayerReader& from);

  std::shared_ptr<const Tokenizer> vocabulary;
  Embedding embedding;
  Transformer stack;

  // The rows (batch, length, D) of whole targets; they live in ws.  ws.source describes memory, and ws.target has the
  // totals of the targets.
  float* run(Workspace& ws, const Ids& target, const float* memory, Aux& aux, const Probe* probe) const;
  // The rows (batch, length, D) of the next tokens ws.ids of sessions; they live in ws.  ws.target and ws.source
  // describe the sessions, ws.aux has the sequences for them.
  const float* step(Workspace& ws) const;
  // Fills the cross states of `slot` with the keys of a source.  hidden: the encoder's rows up to the end of the source
  // so far; known: the keys that the states have already; all: every block is filled anew, not only those that replay.
  // Returns the number of keys that states had before.
  int64_t append(Workspace& ws, const SourcePart& hidden, int64_t known, bool all, double target_total, int32_t slot,
                 Aux& aux) const;

 private:
  const Manifest& manifest_;
};

}  // namespace attnkit::core
