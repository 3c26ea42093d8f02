#include <algorithm>

#include "core/base/error.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/options.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

// "x" for <folder>/x.so and <folder>/x-<device>.so.
bool is_file_of(const std::string& path, const std::string& name) {
  const std::string file = path.substr(path.rfind('/') + 1);  // npos + 1 is 0
  return file == name + ".so" || (file.starts_with(name + "-") && file.ends_with(".so"));
}

std::string list_text(const std::vector<std::string>& names) {
  return names.empty() ? "no mechanism was found" : fmt::format("mechanisms found: {}", fmt::join(names, ", "));
}

}  // namespace

const Plugin* find_mechanism(const std::string& name, Place place, const Registry& registry, int32_t device_type,
                             Diagnostics& diagnostics) {
  if (const Plugin* plugin = registry.find(name, device_type)) return plugin;
  const std::vector<std::string> names = registry.names(device_type);
  const auto report = [&](int code, const std::string& message, const std::string& help) {
    diagnostics.error(code, place, message, help, ATTNKIT_AREA_PLUGIN);
    return nullptr;
  };
  for (const SkippedFile& file : registry.skipped())
    if (is_file_of(file.path, name))
      return report(ak::unusable_mechanism,
                    fmt::format("mechanism {} cannot be used: {}: {}", quote(name), file.path, file.reason),
                    list_text(names));
  const auto& all = registry.plugins();
  if (std::any_of(all.begin(), all.end(), [&](const auto& p) { return p->name == name; }))
    return report(ak::unusable_mechanism, fmt::format("mechanism {} has no variant for this device", quote(name)),
                  list_text(names));
  return report(ak::unknown_mechanism, fmt::format("no mechanism {}{}", quote(name), did_you_mean(name, names)),
                fmt::format("{}; folders searched: {}", list_text(names), fmt::join(registry.folders(), ", ")));
}

}  // namespace attnkit
