// The search space: the blocks of a model, what may sit in each, and one choice for every block.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/roles.hpp"

namespace attnkit::core::search {

// A mechanism with its options, as the value of a role's key in a manifest.
struct Choice {
  std::string label;  // its name in tables and ids: a mechanism's name, or "name{option = 2}"; no space, comma or '='
                      // outside the braces
  std::string toml;   // "\"name\"" or "{ use = \"name\", option = 2 }"
};

// One attention position: role is ATTN_ENCODER_SELF, ATTN_DECODER_SELF or ATTN_DECODER_CROSS; layers count from 1.
struct BlockId {
  uint32_t role = 0;
  int layer = 0;
  bool operator==(const BlockId&) const = default;
};

struct Space {
  std::vector<BlockId> blocks;  // by role in the order above, then by layer
  std::vector<Choice> choices;  // every choice once
  std::vector<std::vector<int>>
      allowed;                // by block: indices into choices, at least one; equal for all layers of a role
  std::vector<int> baseline;  // by block: what every cost and quality is compared with; need not be allowed

  const Choice& choice(int c) const { return choices[static_cast<size_t>(c)]; }
};

struct SpaceRequest {
  nlohmann::json description;                             // "attnkit.model-description/1" of the manifest
  std::map<std::string, std::vector<std::string>> roles;  // role -> mechanisms, in place of the manifest's; "all"
                                                          // alone: that of layer 1 with its options, then all others
  std::optional<std::string> baseline;  // a mechanism for every block; else as the manifest says, else
                                        // the first one of every role
  std::vector<std::string> mechanisms;  // those that are loaded
};

// Roles that neither names keep what the manifest has there.  Throws Failure (usage): nothing to choose from, a role
// that the model lacks, a mechanism that is not loaded or named twice, a role outside the space whose layers differ.
Space make_space(const SpaceRequest& request);

// By block an index into Space::choices.
using Placement = std::vector<int>;

// The blocks [first, last) that change together: those of a role, or a single one.
struct Unit {
  size_t first = 0;
  size_t last = 0;
  bool operator==(const Unit&) const = default;
};

// The roles of the space, in its order, each once.
std::vector<uint32_t> roles_of(const Space& space);
Unit blocks_of(const Space& space, uint32_t role);

// The same choice in the whole unit?
bool is_uniform(const Placement& placement, Unit unit);
Placement with_choice(Placement placement, Unit unit, int choice);
// Has the unit one choice, and one that it may take?  The baseline's need not be.
bool is_allowed(const Space& space, Unit unit, const Placement& placement);

// "encoder.self=b decoder.self=c decoder.cross=a"; a role whose layers differ lists them:
// "decoder.self=c,a,c".  Equal placements have equal ids.
std::string id_of(const Space& space, const Placement& placement);

// Placements that have one choice in every block, for each choice that all blocks allow, in the order of choices.
std::vector<Placement> homogeneous(const Space& space);

// Returns the number of placements with one choice per role, or per block when per_layer; saturates at UINT64_MAX.
uint64_t size_of(const Space& space, bool per_layer);

// Costs that mechanisms declare of one block, or of all blocks of a placement; session of one row.  Sums saturate at
// UINT64_MAX.
struct DeclaredCost {
  uint64_t state_bytes = 0, flops = 0,
           step_flops = 0;  // kept at a length; attention of a whole pass; of one more token
};

// Gathered from descriptions of models.
class Declared {
 public:
  // description: "attnkit.model-description/1" of a placement, at lengths.
  void add(const Space& space, const Placement& placement, const nlohmann::json& description);
  DeclaredCost of(const Placement& placement, int64_t length) const;
  DeclaredCost of(size_t block, int choice, int64_t length) const;

 private:
  std::map<std::tuple<size_t, int, int64_t>, DeclaredCost> costs_;
};

}  // namespace attnkit::core::search
