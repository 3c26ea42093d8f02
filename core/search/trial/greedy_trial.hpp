// The outputs of a model by itself: greedy decoding of the examples of a data set, and how it compares with the
// references.
#pragma once

#include <vector>

#include "core/search/outcomes.hpp"
#include "core/search/trial/data_set.hpp"

namespace attnkit::core::search {

struct Greedy {
  std::vector<QualitySums> sums;  // by bucket; examples and exact alone are filled
  Outcomes outcomes;              // right: all of an example's tokens, or none
  double bleu = 0;                // percent, against the references as the vocabulary spells them
  Interval bleu_interval;         // 95 %: bootstrap over examples
  int64_t tokens = 0;             // written, </s> included
};

// Returns the model's texts for these examples, </s> included where it was reached, as attnkit_session_generate decodes
// each with its default limit.  A model that cannot predict the target's length is given that of the reference.
// Throws Error that names the example: UNSUPPORTED from a mechanism that refuses, INTERNAL for scores that are not
// numbers.
std::vector<Ids> written(const Model& model, const TaskFacts& facts, const DataSet& data, std::vector<size_t> examples);

// The most tokens that are written for an example, the forced ones among them.
size_t limit_of(const TaskFacts& facts, const Example& example);

// Examples [begin, end).  bounds: see bucket_of.  sure: of those that it is true for the model is known to write the
// reference, so they are not decoded; empty: of none.
// Throws Failure (manifest: a model that has nothing to translate; usage: a range outside the data), and what written
// throws.
Greedy decode(const Model& model, const TaskFacts& facts, const DataSet& data, const std::vector<int64_t>& bounds,
              size_t begin, size_t end, const std::vector<bool>& sure = {});

}  // namespace attnkit::core::search
