// A search's result for a terminal.
#pragma once

#include <cstddef>
#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

// The answer, the best `rows` placements with the baseline and the homogeneous ones, of an ablation the quality by
// block, what is tied with the winner, and what was not ranked and why; about 100 columns.  `result` is a document
// "attnkit.search/1", in which anything may be missing.
std::string search_table(const Json& result, size_t rows);

}  // namespace attnkit::cli
