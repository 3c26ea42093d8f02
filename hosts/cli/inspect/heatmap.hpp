// Attention weights as a picture, drawn by gnuplot.
#pragma once

#include <string>

#include "hosts/cli/inspect/attention.hpp"

namespace attnkit::cli {

// SVG with one panel per head.  Throws Failure (data): too many cells, gnuplot missing or failing.
std::string heatmap_svg(const AttentionMap& map);

}  // namespace attnkit::cli
