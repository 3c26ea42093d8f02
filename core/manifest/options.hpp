// Options of a mechanism as a manifest gives them, against the schema that its plugin publishes.
#pragma once

#include <string>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/manifest/toml.hpp"

namespace attnkit::core {

struct OptionSet {
  explicit OptionSet(const Plugin& plugin);  // all defaults
  // Puts the entries' values over what is there.  False when one of them was wrong, which is then reported and skipped.
  bool apply(const std::vector<const Entry*>& entries, Diagnostics& diagnostics);
  // The mechanism with the options that were given.
  SearchChoice choice() const;

  const Plugin& plugin;
  std::vector<OptionValue> values;  // in the order of the schema
  std::vector<Place> places;        // of the value that was given; line 0: the plugin's default
};

// The same of a mechanism that is not there: nobody knows its options, but all options are numbers, truths and texts.
bool check_values(const std::vector<const Entry*>& entries, Diagnostics& diagnostics);
SearchChoice choice_as_written(const std::string& mechanism, const std::vector<const Entry*>& entries);

}  // namespace attnkit::core
