// YAML from outside as JSON: Marian's settings and vocabularies.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace attnkit::core {

// Plain true, false, null and numbers are these, all else is text; keys are text.  path: for messages.  Throws Error
// (ATTN_INVALID) naming the file and the line: no YAML, keys that are no text, more than 2 million values (aliases make
// many of few bytes), too deep.
nlohmann::json parse_yaml(const std::string& text, const std::string& path);

// Reads a file of at most `limit` bytes.  Throws as well.
nlohmann::json read_yaml(const std::string& path, uint64_t limit);

}  // namespace attnkit::core
