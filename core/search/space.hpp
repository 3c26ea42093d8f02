// The space of a search, from a model's description and what the command line changes.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/search/placement.hpp"

namespace attnkit::search {

struct SpaceRequest {
  nlohmann::json description;                             // "attnkit.model-description/1" of the manifest
  std::map<std::string, std::vector<std::string>> roles;  // role -> mechanisms, in place of the manifest's
  std::optional<std::string> baseline;  // a mechanism for every block; else as the manifest says, else
                                        // the first one of every role
  std::vector<std::string> mechanisms;  // those that are loaded
};

// Roles that neither names keep what the manifest has there.  Throws Failure (usage): nothing to choose from, a role
// that the model lacks, a mechanism that is not loaded or named twice, a role outside the space whose layers differ.
Space make_space(const SpaceRequest& request);

}  // namespace attnkit::search
