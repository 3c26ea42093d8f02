// A model in a folder of its own, to be copied to another machine and run there: a manifest that names only what it
// uses, the tensors of its placement, its other files, licences, and a README with the figures of a search.
#pragma once

#include <string>

#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {

// model: opened from the manifest.  folder: as check_new_folder has it; made whole or not at all.  Figures come from a
// result.json of attnkit search beside the manifest, if that has the placement.  Returns "attnkit.bundle/1".  Throws
// Failure (data, weights).
Json write_bundle(const Runtime& runtime, const Model& model, const std::string& manifest, const std::string& folder);

// The document for people.
std::string bundle_text(const Json& bundle);

}  // namespace attnkit::cli
