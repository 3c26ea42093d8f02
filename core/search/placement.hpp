// The search space: the blocks of a model, what may sit in each, and one choice for every block.
#pragma once

#include <attnkit/plugin.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/roles.hpp"

namespace attnkit::search {

// A mechanism with its options, as the value of a role's key in a manifest.
struct Choice {
  std::string label;  // what tables and ids call it: a mechanism's name, or "name{option = 2}"; no space, comma or '='
                      // outside the braces
  std::string toml;   // "\"name\"" or "{ use = \"name\", option = 2 }"
};

// One attention position: role is ATTN_ENCODER_SELF, ATTN_DECODER_SELF or ATTN_DECODER_CROSS; layers count from 1.
struct Site {
  uint32_t role = 0;
  int layer = 0;
  bool operator==(const Site&) const = default;
};

struct Space {
  std::vector<Site> sites;                // by role in the order above, then by layer
  std::vector<Choice> choices;            // every choice once
  std::vector<std::vector<int>> allowed;  // by site: indices into choices, at least one; equal for all layers of a role
  std::vector<int> baseline;              // by site: what every cost and quality is compared with; need not be allowed
};

// By site an index into Space::choices.
using Placement = std::vector<int>;

// The roles of the space, in its order, each once.
std::vector<uint32_t> roles_of(const Space& space);
// The sites of one role: [first, last).
std::pair<size_t, size_t> sites_of(const Space& space, uint32_t role);

// "encoder.self=b decoder.self=c decoder.cross=a"; a role whose layers differ lists them:
// "decoder.self=c,a,c".  Equal placements have equal ids.
std::string id_of(const Space& space, const Placement& placement);

// The same choice in all layers of every role?
bool is_per_role(const Space& space, const Placement& placement);

// Placements that have one choice in every site, for each choice that all sites allow, in the order of choices.
std::vector<Placement> homogeneous(const Space& space);

// How many placements there are, with one choice per role, or per site when per_layer; saturates at UINT64_MAX.
uint64_t size_of(const Space& space, bool per_layer);

}  // namespace attnkit::search
