// The words of a search's report: what was measured where, how to read it, how to repeat it.
#pragma once

#include <string>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

std::string facts_of(const SearchView& view, const Json& result);
std::string notes_of(const SearchView& view, const Json& result);
std::string rerun_of(const Json& result);  // "" without a command

}  // namespace attnkit::cli
