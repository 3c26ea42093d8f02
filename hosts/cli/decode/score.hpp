// Scores of references, teacher-forced, and the labels that an encoder alone gives its inputs.
#pragma once

#include <functional>
#include <span>

#include "hosts/cli/io/inputs.hpp"

namespace attnkit::cli {

struct Score {
  double nll = 0;     // negative log likelihood, natural logarithm, of all tokens
  size_t tokens = 0;  // </s> included
  double perplexity() const;
};

// One score for each input, all of which have references.  `batch` rows run together.  Throws Failure (numerical).
std::vector<Score> score_references(const Model& model, const Facts& facts, std::span<const Input> inputs,
                                    size_t batch);

struct Label {
  int32_t best;                // class, of a classifier
  std::vector<double> scores;  // probability of each class
  Ids ids;                     // most probable token at each position, of an encoder with an LM head
};

// For models that are an encoder alone.  Calls done(index, label) in order.
void label_inputs(const Model& model, const Facts& facts, std::span<const Input> inputs, size_t batch,
                  const std::function<void(size_t, const Label&)>& done);

// For models that give out a vector.  Calls done(index, vector) in any order.
void embed_inputs(const Model& model, const Facts& facts, std::span<const Input> inputs, size_t batch,
                  const std::function<void(size_t, std::span<const float>)>& done);

}  // namespace attnkit::cli
