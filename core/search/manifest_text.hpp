// A manifest's text with another placement in it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/search/space.hpp"

namespace attnkit::core::search {

// Any thread; immutable.
class ManifestText {
 public:
  // toml: a manifest that the library accepts.  Throws Failure (manifest): no TOML.
  explicit ManifestText(std::string toml);

  // For a trial: [attention] says the placement (all params stay: a journal knows the model by this text), [search] is
  // gone, and max_length is at least the one given.
  std::string with(const Space& space, const Placement& placement, int64_t max_length = 0) const;

  // The files it names, by key: "weights.file", "model.encoder.vocab", ...
  std::vector<std::pair<std::string, std::string>> files() const;
  // [attention] as it is, in one line without comments.
  std::string attention() const;
  // The weights have names of another library.
  bool renames() const;

  // For users: the placement, without params of mechanisms that it lacks and without [search]; every relative path,
  // meant from folder `from`, is written as seen from folder `to`.  comment: lines for the top, without '#'.
  std::string deployed(const Space& space, const Placement& placement, const std::string& from, const std::string& to,
                       const std::string& comment) const;

  // For another machine: the same with other paths, by the keys of files(), "weights.file" among them.  sha256: of the
  // weights, which have all tensors, so that no seed is kept.  type: of [weights]; empty: as it is.
  std::string bundled(const Space& space, const Placement& placement, const std::map<std::string, std::string>& paths,
                      const std::string& sha256, const std::string& comment, const std::string& type = {}) const;

 private:
  const std::string toml_;
};

}  // namespace attnkit::core::search
