// A batch of sources after a model's encoder, and the traits by which another model's decoder may read it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/manifest/manifest.hpp"
#include "core/model/block.hpp"

namespace attnkit::core {

// One property that the encoder's output depends on.
struct EncoderTrait {
  std::string name, value;
};
struct EncoderIdentity : std::vector<EncoderTrait> {
  template <class T>
  void add(const std::string& name, const T& value) {
    push_back({name, fmt::format("{}", value)});
  }
};

// The transformer around the blocks, with the encoder's size.
EncoderIdentity model_traits(const Manifest& manifest);

// Everything that decides what the encoder of a checked manifest computes.  Weights count by their sha256 where the
// manifest states it, else by their file's path and state as it was loaded, `weights` of Weights::identity: any change
// between two loads counts.
EncoderIdentity encoder_identity(const Manifest& manifest, const Registry& registry, const std::string& weights);

// Throws Error (ATTN_INVALID) naming the first trait that differs.  opening and here complete the sentence: "the
// sources were encoded by another encoder: heads is 4 there, but 2 in this model".
void require_same(const EncoderIdentity& theirs, const EncoderIdentity& ours, const char* opening, const char* here);

// Immutable once made: any thread.  Depends on no model.
struct Encoded {
  std::shared_ptr<const EncoderIdentity> encoder;
  int64_t length = 0;            // columns of the batch, padding included
  std::vector<int32_t> lengths;  // of each row
  std::vector<int32_t> ids;      // (batch, length), of text
  // By row: the length of its target, as the model that encoded predicts it, and what that predictor is; both empty
  // where it has none.
  std::vector<double> target_lengths;
  std::string predictor;
  Buffer memory;
  const float* rows = nullptr;  // (batch, length, D), in memory
  Aux aux;
};

}  // namespace attnkit::core
