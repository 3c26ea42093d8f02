// The attention weights of one block for one input, with the tokens that they belong to.
#pragma once

#include <string>
#include <vector>

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

struct AttentionMap {
  std::string block, mechanism;            // "decoder.cross.2", "leap"
  std::string query_title, key_title;      // what the axes show
  std::vector<std::string> queries, keys;  // labels
  std::vector<int> heads;                  // from 1, in the order of weights
  std::vector<float> weights;              // (heads, queries, keys)
  float at(size_t head, size_t query, size_t key) const {
    return weights[(head * queries.size() + query) * keys.size() + key];
  }
};

// From --attention, --text, --target and --head.  Throws Failure.
AttentionMap attention_map(const Model& model, const Arguments& arguments);

}  // namespace attnkit::cli
