// Remembers which plugins did harm when they were tried.
#pragma once

#include <string>

namespace attnkit::core {

// Returns plugins-VERSION-TRIAL.tsv in cache_folder(); empty where there is none.  Whoever removes the file has every
// plugin tried again.
std::string first_load_cache();

}  // namespace attnkit::core
