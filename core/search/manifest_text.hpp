// A manifest's text with another placement in it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/search/space.hpp"

namespace attnkit::search {

// Any thread; immutable.
class ManifestText {
 public:
  // toml: a manifest that the library accepts.  Throws Failure (manifest): no TOML.
  explicit ManifestText(std::string toml);

  // For a trial: [attention] says the placement (params stay), [search] is gone, and max_length is at least the one
  // given.
  std::string with(const Space& space, const Placement& placement, int64_t max_length = 0) const;

  // The files it names, by key: "weights.file", "model.encoder.vocab", ...
  std::vector<std::pair<std::string, std::string>> files() const;

  // For users: the same with [search] kept and every relative path, meant from folder `from`, written as seen from
  // folder `to`.  comment: lines for the top, without '#'.
  std::string deployed(const Space& space, const Placement& placement, const std::string& from, const std::string& to,
                       const std::string& comment) const;

 private:
  const std::string toml_;
};

}  // namespace attnkit::search
