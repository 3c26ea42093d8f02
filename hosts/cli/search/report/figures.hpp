// The figures of a search's report, drawn by gnuplot.
#pragma once

#include <string>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

// A page shows the narrow ones on narrow screens.
enum class Width { wide, narrow };

// Each gives an <svg> for the page, or "" when the document holds nothing to draw.  Throw like run_gnuplot.

// Quality against speed relative to the baseline; a disc's area is its memory, hollow when it was screened alone; a
// line joins the Pareto front of what is comparable.
std::string quality_figure(const SearchView& view, Width width);
// Speed against length for the baseline, the winner and the homogeneous placements.
std::string length_figure(const SearchView& view, Width width);

// The meaning of a disc's area: "peak memory", "state", or "" when no memory was measured.
const char* area_name(const SearchView& view);
// Is it in the first figure?  Measured, and within the limits unless it has a name of its own.
bool is_drawn(const Trial& trial);

// Label and colour of the placements with names, in figures and tables.
std::string named_label(const Trial& trial);
std::string named_colour(const SearchView& view, const Trial& trial);

}  // namespace attnkit::cli
