// From target ids, and the encoder's rows where there is an encoder, to the rows that the head scores.
#pragma once

#include <span>

#include "core/model/transformer.hpp"
#include "core/tokenizer/vocabulary.hpp"

namespace attnkit::core {

// Keys of one source, for the states of `slot`.
struct SourceKeys {
  SourcePart hidden;  // the encoder's rows up to the end of the source so far
  int64_t known = 0;  // keys that the states have already
  double target_total = 0;
  int32_t slot = -1;
  int64_t replayed = 0;  // given back: keys that states had before and were filled with anew, all blocks
};

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
  // The rows (batch, length, D) of the next tokens ws.ids of sessions, which begin_step gives; they live in ws.
  // ws.target and ws.source describe the sessions, ws.aux has the sequences for them.
  Ids begin_step(Workspace& ws) const;
  const float* step(Workspace& ws, const Ids& ids) const;
  // Fills the cross states of sources with their keys.  encoded: their rows as the encoder put them out, (sources,
  // length of the longest, D), or NULL where they do not lie so; all: every block is filled anew, not only those that
  // replay.
  void append(Workspace& ws, std::span<SourceKeys> sources, const float* encoded, bool all, Aux& aux) const;

 private:
  const float* side_by_side(Workspace& ws, std::span<const SourceKeys> sources) const;

  const Manifest& manifest_;
};

}  // namespace attnkit::core
