// The tables of a search's report, as HTML.
#pragma once

#include <string>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

std::string placement_table(const SearchView& view);   // the winner, layer by role
std::string comparison_table(const SearchView& view);  // the winner beside the baseline
std::string bucket_table(const SearchView& view);      // "" without buckets
std::string ranking_table(const SearchView& view);
std::string untimed_table(const SearchView& view);  // lengths at which a placement could not be timed; "" without any
std::string reasons_table(const SearchView& view);  // limited, refused and failed; "" when there are none

}  // namespace attnkit::cli
