// A search as the document "attnkit.search/1", and its answer in a sentence.
#pragma once

#include "core/search/search.hpp"

namespace attnkit::core::search {

// Everything but "command", "date", "machine", "seconds" and "files", which are the host's to add.
nlohmann::ordered_json result_document(const Search& search);

// Tokens below which the baseline decodes as fast as the placement: where their measured times meet, between two
// measured lengths.  From there on the placement is faster at every length measured; 0: at all of them, no value: not
// at the greatest.
std::optional<int64_t> crossover(const Record& record);

struct AnswerInput {
  const Space& space;
  const Settings& settings;
  const Declared& declared;
  const Ranked& winner;
  const Ranked& baseline;
  bool test = false;                // quality is that of the test set
  size_t tied = 1;                  // placements of the top group
  std::string why = {};             // they are tied; may be empty
  int64_t lines = 0, repeated = 0;  // of the data; those that stood there before
  bool trained = false;             // workers trained each placement first
  bool is_chosen_by_test = false;   // the test set is the data of the race
};

// Names the placement, what it keeps and gains, and the length from which it is faster.
std::string answer_text(const AnswerInput& input);

}  // namespace attnkit::core::search
