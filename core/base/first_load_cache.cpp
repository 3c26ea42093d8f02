#include "core/base/first_load_cache.hpp"

#include "core/base/file.hpp"

namespace attnkit::core {

std::string first_load_cache() {
  const std::string folder = cache_folder();
  // The last number counts what trials have learned to look for: what an earlier kind found is not enough.
  return folder.empty() ? folder : folder + "plugins-" ATTNKIT_VERSION "-4.tsv";
}

}  // namespace attnkit::core
