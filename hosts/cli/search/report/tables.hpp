// The tables of a search's report, as HTML.
#pragma once

#include <string>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

std::string placement_table(const SearchView& view);   // the winner, layer by role
std::string comparison_table(const SearchView& view);  // the winner beside the baseline
std::string bucket_table(const SearchView& view);      // "" without buckets
std::string ranking_table(const SearchView& view);
std::string block_table(
    const SearchView& view);  // quality when one block alone differs from the baseline; "" without any
std::string test_table(
    const SearchView& view);  // the top group and the baseline on the test set; "" when it was not read
std::string race_table(const SearchView& view);     // its stages; "" without any
std::string untimed_table(const SearchView& view);  // lengths at which a placement could not be timed; "" without any
std::string reasons_table(const SearchView& view);  // limited, refused and failed; "" when there are none

}  // namespace attnkit::cli
