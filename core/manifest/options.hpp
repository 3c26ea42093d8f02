// Options of a mechanism as a manifest gives them, against the schema that its plugin publishes.
#pragma once

#include <string>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit {

struct OptionSet {
  std::vector<OptionValue> values;  // in the order of the schema
  std::vector<Place> places;        // of the value that was given; line 0: the plugin's default
};

// All defaults.
OptionSet default_options(const Plugin& plugin);

// Puts the entries' values over what is there.  False when one of them was wrong, which is then reported and skipped.
bool apply_options(const Plugin& plugin, const std::vector<const Entry*>& entries, OptionSet& options,
                   Diagnostics& diagnostics);

// "option = value, ..." as a manifest would say it; given: only those with a place.  May be empty.
std::string options_text(const Plugin& plugin, const std::vector<OptionValue>& options,
                         const std::vector<Place>* given = nullptr);

// The value of a manifest's key: "\"name\"", or "{ use = \"name\", option = value, ... }".
std::string use_text(const std::string& mechanism, const std::string& options);

// The mechanism of that name for the device; NULL when there is none, which is then reported at place.
const Plugin* find_mechanism(const std::string& name, Place place, const Registry& registry, int32_t device_type,
                             Diagnostics& diagnostics);

}  // namespace attnkit
