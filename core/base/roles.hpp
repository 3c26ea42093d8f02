// The roles of attention blocks by the names that manifests and reports use.
#pragma once

#include <attnkit/plugin.h>

#include <iterator>
#include <string_view>

namespace attnkit::core {

inline constexpr uint32_t all_roles[] = {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS};
inline constexpr const char* role_names[] = {"encoder.self", "decoder.self", "decoder.cross"};  // of all_roles

constexpr const char* role_name(uint32_t role) {
  for (size_t i = 0; i < std::size(all_roles); ++i)
    if (all_roles[i] == role) return role_names[i];
  return "unknown role";
}

// 0: no role has this name.
constexpr uint32_t role_of(std::string_view name) {
  for (const uint32_t role : all_roles)
    if (name == role_name(role)) return role;
  return 0;
}

}  // namespace attnkit::core
