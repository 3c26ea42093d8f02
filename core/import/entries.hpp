// A checkpoint by the files of architectures/: which architecture it is of, and what that one's entries make of it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/import/architecture.hpp"
#include "core/import/draft.hpp"

namespace attnkit::core {

// The tensors of a file that an entry may ask for.
struct FileTensors {
  static constexpr int64_t max_numbers = 1024;  // of one in a manifest
  std::set<std::string> names;
  std::map<std::string, std::vector<float>> numbers;  // of the small ones
};

// config: config.json, or a file's metadata, which say by `key` what they are of.  part: of architectures, for files of
// this format.
Architecture architecture_of(Draft& draft, const JsonValue& config, const char* key,
                             std::shared_ptr<const Architecture> Architecture::*part = nullptr);
void add_entries(Draft& draft, const Architecture& architecture, const JsonValue& config,
                 const FileTensors& tensors = {});

}  // namespace attnkit::core
