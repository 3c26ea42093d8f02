// Parts of a tokenizer.json that are lists of parts.
#pragma once

#include <vector>

#include "core/base/json.hpp"

namespace attnkit::core {

// The parts in a part's `key`.  Throws Error: lists in lists, deeper than any tokenizer has them.
std::vector<JsonValue> read_sequence(const JsonValue& part, const char* key);

}  // namespace attnkit::core
