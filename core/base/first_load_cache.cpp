#include "core/base/first_load_cache.hpp"

#include "core/base/file.hpp"

namespace attnkit::core {

std::string first_load_cache() {
  const std::string folder = cache_folder();
  return folder.empty() ? folder : folder + "plugins-" ATTNKIT_VERSION ".tsv";
}

}  // namespace attnkit::core
