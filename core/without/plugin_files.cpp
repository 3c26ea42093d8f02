// A library without dlopen has the plugins of its program alone.
#include <cstdlib>

#include "core/base/text.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit::core {

constexpr const char* why =
    "this attnkit is built without dlopen (ATTNKIT_DLOPEN=OFF) and has the mechanisms of its program alone";

std::vector<std::string> default_search_path(const char* plugin_path) {
  if (plugin_path && *plugin_path) fail(ATTN_UNSUPPORTED, "plugin_path {}: {}; leave it out", quote(plugin_path), why);
  const char* const set = std::getenv("ATTNKIT_PLUGIN_PATH");
  if (!set || !*set) return {};
  return {set};
}

void Registry::search(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) skipped_.push_back({folder, fmt::format("is not searched: {}", why)});
}

}  // namespace attnkit::core
