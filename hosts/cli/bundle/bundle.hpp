// A model in a folder of its own, to be copied to another machine and run there: a manifest that names only what it
// uses, the tensors of its placement, its other files, licences, and a README with the figures of a search.
#pragma once

#include <functional>
#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

// The changes that make a bundle another model than the one it comes from.
struct Change {
  std::string type;                                        // of the weights, as in [weights]
  std::function<std::string(const std::string&)> weights;  // the bytes of the new file from those of the old one
  std::function<Json(const Model& made)> report;           // a document about the new model, in the folder as well
  static constexpr const char* report_name = "report.json";
};

// model: opened from the manifest.  folder: as check_new_folder has it; made whole or not at all.  Figures come from a
// result.json of attnkit search beside the manifest, if that has the placement and nothing is changed.  Returns
// "attnkit.bundle/1".  Throws Failure (data, weights).
Json write_bundle(const Runtime& runtime, const Model& model, const std::string& manifest, const std::string& folder,
                  const Change* change = nullptr);

// The document for people.
std::string bundle_text(const Json& bundle);

}  // namespace attnkit::cli
