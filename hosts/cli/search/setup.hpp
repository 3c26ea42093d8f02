// The settings of a search: the manifest's [search], changed by the command line.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/search/settings.hpp"
#include "core/search/space.hpp"
#include "hosts/cli/arguments.hpp"

namespace attnkit::cli {

// Bytes that a worker may take; 0: no limit is known.  Throws Failure (usage).
uint64_t trial_memory(const Arguments& arguments);

// description: "attnkit.model-description/1".  Throws Failure (usage): a wrong value, no data set.
search::Settings search_settings(const Arguments& arguments, const nlohmann::json& description);

// The roles that --space names.  Throws Failure (usage): not ROLE=NAME,NAME.  "all" stands for every mechanism loaded.
search::SpaceRequest search_space(const Arguments& arguments, const nlohmann::json& description,
                                  const std::vector<std::string>& mechanisms);

}  // namespace attnkit::cli
