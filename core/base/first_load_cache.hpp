// Remembers which plugins did harm when they were tried.
#pragma once

#include <string>

namespace attnkit::core {

// Returns attnkit/plugins-VERSION.tsv in the user's folder for caches.  Empty where there is no such folder, or the
// program runs with more rights than its user.  Whoever removes the file has every plugin tried again.
std::string first_load_cache();

}  // namespace attnkit::core
