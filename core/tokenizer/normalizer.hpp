// Normalises a text before it is split into words.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/base/json.hpp"

namespace attnkit::core {

using Normalizer = std::function<std::u32string(std::u32string_view)>;

// As the `normalizer` of a tokenizer.json says; absent: nothing.  Any thread may call it.  Throws Error naming the
// place in the file and what is not supported.  keep: a text of which a Precompiled leaves something out
// stays as it is.
Normalizer read_normalizer(const JsonValue& part, bool keep = false);

}  // namespace attnkit::core
