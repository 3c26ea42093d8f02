// The settings of a search: the manifest's [search], changed by the command line.
#pragma once

#include <attnkit/attnkit.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "core/search/failure.hpp"
#include "core/search/settings.hpp"
#include "core/search/space.hpp"
#include "core/search/trial/data_set.hpp"
#include "core/search/trial_runner.hpp"
#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

using namespace core;

// Bytes that a worker may take; 0: no limit is known.  Throws Failure (usage).
uint64_t trial_memory(const Arguments& arguments);

// As search::ReadAudio has it.
std::vector<float> read_recording(const std::string& path, const std::string& origin, const search::TaskFacts& facts);

// The metric of a model if none is given.  description: "attnkit.model-description/1".
search::Metric usual_metric(const nlohmann::json& description);
// The data set that is given, or that of the manifest's [search]; empty: there is none.
std::string search_data(const Arguments& arguments, const nlohmann::json& description);

// The exit code of what a search throws.
Exit exit_of(search::Fault fault);

// description: "attnkit.model-description/1".  Throws Failure (usage): a wrong value, no data set.
search::Settings search_settings(const Arguments& arguments, const nlohmann::json& description);

// The roles that --space names.  Throws Failure (usage): not ROLE=NAME,NAME.
search::SpaceRequest search_space(const Arguments& arguments, const nlohmann::json& description,
                                  const std::vector<std::string>& mechanisms);

// The processor's name as the system has it, and behind it that of the GPU that a model is on.
std::string cpu_name(const std::string& gpu = "");

// Those for "cpu" or "cuda".  Asks the plugins nothing: what they do when asked is for a worker to suffer.
std::vector<search::LoadedMechanism> loaded_mechanisms(const Runtime& runtime, const std::string& device);

}  // namespace attnkit::cli
