// A whole sequence fed through one state row in chunks.
#pragma once
#include "core/conformance/runner.hpp"

namespace attnkit::core::conformance {

struct Feed {
  std::vector<int64_t> keys;       // rows that each step appends; in a causal block it reads them as well
  std::vector<int64_t> queries{};  // elsewhere, rows that are read after that; empty: all at once
  uint32_t flags = 0;              // totals that are known, which the steps are then given
  uint32_t workers = 1;
};

// The outputs of all steps under each other; aux gets what the last step gave.
Array streamed(Inputs& in, const Feed& feed, std::map<std::string, Array>* aux = nullptr);

// Chunks of one size and the rest, adding up to n.
std::vector<int64_t> chunks_of(int64_t n, int64_t size);

// Copies the rows of part behind row `from` of all.
void paste(Array& all, const Array& part, int64_t from);

}  // namespace attnkit::core::conformance
