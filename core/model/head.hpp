// From the last rows to scores of the tokens of a vocabulary, to those of the classes of a classifier, or to the vector
// of an embedding.
#pragma once

#include "core/model/layers.hpp"
#include "core/model/workspace.hpp"

namespace attnkit::core {

class Head {
 public:
  explicit Head(const Manifest& manifest) : manifest_(manifest) {}
  // embedding: what a tied head shares.
  void load(LayerReader& from, const Embedding& embedding);

  Dense hidden, out;        // hidden: of classifiers that have one, and the pooler of an embedding
  std::vector<float> bias;  // of the scores of tokens, beside a layer that is tied; empty: none

  bool pools() const { return manifest_.head != HeadType::lm; }  // gives one row for the whole input
  int64_t outputs() const { return manifest_.head == HeadType::embedding ? manifest_.d_model : out.outputs(); }
  void score(Workspace& ws, const float* x, int64_t rows, float* scores) const;
  // results (batch, outputs) of the rows x that ws.source describes, or of a sequence that the encoder gave out.
  void judge(Workspace& ws, const float* x, const Aux& aux, float* results) const;

 private:
  void pool(const Workspace& ws, const float* x, const Aux& aux, float* pooled) const;

  const Manifest& manifest_;
};

}  // namespace attnkit::core
