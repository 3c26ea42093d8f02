// The README of a bundle: what the model is, how to run it, its files, and what a search measured of it.
#pragma once

#include <string>
#include <vector>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

struct BundledFile {
  std::string name, what;
  uint64_t bytes = 0;
};

struct BundleFacts {
  Json description;                 // "attnkit.model-description/1"
  std::vector<BundledFile> files;   // without the README
  std::vector<std::string> lookup;  // folders where licences were looked for
  bool licensed = false;
  Json result;  // "attnkit.search/1" that has the placement, or null
  std::string placement;
};

std::string readme_text(const BundleFacts& facts);

}  // namespace attnkit::cli
