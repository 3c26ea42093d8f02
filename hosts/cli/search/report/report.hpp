// A search's result as one HTML page.
#pragma once

#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

// `result` is a document "attnkit.search/1"; whatever is missing in it is missing on the page.  The page needs nothing
// else: no other file, no network.  Without gnuplot it says so in place of its figures.  Throws Failure (interrupted).
std::string search_html(const Json& result);

}  // namespace attnkit::cli
