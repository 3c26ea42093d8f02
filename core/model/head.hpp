// From the last rows to scores: of the tokens of a vocabulary, or of the classes of a classifier.
#pragma once

#include "core/model/layers.hpp"
#include "core/model/workspace.hpp"

namespace attnkit {

class Head {
 public:
  explicit Head(const Manifest& manifest) : manifest_(manifest) {}
  // embedding (vocabulary, D): what a tied head shares.
  void load(LayerReader& from, const std::vector<float>& embedding);

  Dense hidden, out;  // hidden: of classifiers that have one

  bool classifies() const { return manifest_.head == HeadType::classifier; }
  int64_t outputs() const { return out.outputs(); }
  void score(Workspace& ws, const float* x, int64_t rows, float* scores) const;
  // scores (batch, outputs) of the rows x that ws.source describes, or of a sequence that the encoder gave out.
  void classify(Workspace& ws, const float* x, const Aux& aux, float* scores) const;

 private:
  const Manifest& manifest_;
};

}  // namespace attnkit
