#include "core/base/first_load_cache.hpp"

#include <sys/auxv.h>

#include <cstdlib>

namespace attnkit::core {

std::string first_load_cache() {
  if (getauxval(AT_SECURE) != 0) return {};
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::string folder;
  if (cache != nullptr && *cache == '/')
    folder = cache;
  else if (home != nullptr && *home == '/')
    folder = std::string(home) + "/.cache";
  else
    return {};
  return folder + "/attnkit/plugins-" ATTNKIT_VERSION ".tsv";
}

}  // namespace attnkit::core
