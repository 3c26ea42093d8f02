// What a journal's trials were measured on: another search may use them only when all of it is the same.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/search/manifest_edit.hpp"
#include "core/search/settings.hpp"
#include "core/search/worker_pool.hpp"

namespace attnkit::search {

struct LoadedMechanism {
  std::string name, file;
};

// Digests of the manifest (but for [search] and the placement), of the files it names, of the data sets and of the
// plugins; what timings depend on.  The strategy, the rank and the limits are not in it: a journal serves any.
// cpu: the processor's name.  Throws Failure (data): a file that cannot be read, named.
nlohmann::json identity_of(const ManifestText& manifest, const Space& space, const Settings& settings,
                           const WorkerCommand& command, const std::vector<LoadedMechanism>& mechanisms,
                           const std::string& cpu);

}  // namespace attnkit::search
