// The entries of [attention], each with what it would decide; which one does is decided in manifest_attention.cpp.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/manifest/parts.hpp"

namespace attnkit {

inline constexpr uint32_t all_roles[] = {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS};

// A mechanism's name or { use = name, option = value, ... }.
struct Use {
  Place decided;  // of the mechanism's name
  std::string mechanism;
  const Plugin* plugin = nullptr;  // NULL: none that could sit there, and reported
  std::vector<const Entry*> options;
  bool sound = true;  // its options
};

// Reports what is wrong with it.  key: what it is the value of; value must live as long as the result.
Use read_use(const Node& value, const std::string& key, ManifestCheck& check);

// The options that were given, in the order of the schema: one spelling for one choice.
SearchChoice choice_of(const Use& use);

// One entry that may decide blocks.
struct Site : Use {
  Place place;                                 // of the entry: an override's header, another's key
  uint32_t role = 0;                           // 0: all
  std::optional<std::vector<int64_t>> layers;  // nothing: all
  bool matchable = true;                       // false: what it should match is wrong, and reported
  int hits = 0;                                // blocks it decided
};

struct Sites {
  std::optional<Site> fallback;
  std::map<uint32_t, Site> blocks;  // by role
  std::vector<Site> overrides;      // in order
};

// Reads them and reports what is wrong with each by itself; params go to check.  attention must live as long as the
// result.
Sites read_sites(const Node& attention, ManifestCheck& check);

// The model has such blocks, and how many layers of them is known.
bool is_known(const ManifestCheck& check, uint32_t role);

}  // namespace attnkit
