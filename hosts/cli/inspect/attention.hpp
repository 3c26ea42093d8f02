// attnkit inspect --attention BLOCK: the attention weights of one block for one input.
#pragma once

#include <string>
#include <vector>

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

struct AttentionMap {
  std::string block, mechanism;            // "decoder.cross.2", "leap"
  std::string query_title, key_title;      // of the axes
  std::vector<std::string> queries, keys;  // labels
  std::vector<int> heads;                  // from 1, in the order of weights
  std::vector<float> weights;              // (heads, queries, keys)
  float at(size_t head, size_t query, size_t key) const {
    return weights[(head * queries.size() + query) * keys.size() + key];
  }
};

// Prints or writes the weights as a heat map, CSV, JSON or text.  Throws Failure.
Exit inspect_attention(const Arguments& arguments);

// SVG with one panel per head, drawn by gnuplot.  Throws Failure (data): too many cells, gnuplot missing or failing.
std::string heatmap_svg(const AttentionMap& map);

}  // namespace attnkit::cli
