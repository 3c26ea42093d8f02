// The answer of a search in a sentence: what to put where, what it keeps, what it gains, and from which length on.
#pragma once

#include <optional>
#include <string>

#include "core/search/ranking.hpp"

namespace attnkit::search {

struct AnswerInput {
  const Space& space;
  const Settings& settings;
  const Declared& declared;
  const Ranked& winner;
  const Ranked& baseline;
  bool test = false;  // quality is that of greedy decoding on the test set
};

// Tokens below which the baseline decodes as fast as the placement: where their measured times meet, between two
// measured lengths.  0: the placement is faster at every length measured; no value: at none.
std::optional<int64_t> crossover(const Record& record);

std::string answer_text(const AnswerInput& input);

}  // namespace attnkit::search
