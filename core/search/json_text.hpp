// A text in a JSON document, compared so that it may run where memory is out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace attnkit::core::search {

// Is it this text?  nlohmann/json's own comparison with a text allocates, and may not throw.
inline bool is_text(const nlohmann::json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

}  // namespace attnkit::core::search
