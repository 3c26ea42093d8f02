// The depth of a TOML text: toml++ recurses, and must not see one that is too deep.
#pragma once

#include <cstddef>
#include <string_view>

namespace attnkit::core {

constexpr int max_toml_depth = 16;

// Returns where brackets or dotted keys nest deeper than that, else the text's size.  Needs no valid TOML.
size_t shallow_part(std::string_view text);

}  // namespace attnkit::core
