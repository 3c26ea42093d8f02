// Texts before which an output ends, the same in sessions and in hosts that decode batches.
#pragma once

#include <algorithm>
#include <span>
#include <string>

namespace attnkit::core {

// Returns the place of the first of the stops; npos: the text has none.
inline size_t stop_in(const std::string& text, std::span<const std::string> stops) {
  size_t first = std::string::npos;
  for (const std::string& stop : stops) first = std::min(first, text.find(stop));
  return first;
}

}  // namespace attnkit::core
