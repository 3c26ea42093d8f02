#include "core/plugin/registry.hpp"

#include <algorithm>
#include <tuple>

#include "core/plugin/linked.hpp"

namespace attnkit::core {

constexpr const char* linked_in = "(linked into the program)";

Registry::Registry(const std::vector<std::string>& folders) {
  for (const LinkedPlugin& linked : linked_plugins()) {
    try {
      plugins_.push_back(std::make_unique<Plugin>(Plugin{linked.name, linked_in, ask_plugin(linked.main)}));
    } catch (const Error& e) {
      skipped_.push_back({fmt::format("{} {}", linked.name, linked_in), e.what()});
    }
  }
  search(folders);
  std::sort(plugins_.begin(), plugins_.end(), [](const auto& a, const auto& b) {
    return std::tie(a->name, a->table.device_type) < std::tie(b->name, b->table.device_type);
  });
}

const Plugin* Registry::find(const std::string& name, int32_t device_type) const {
  for (const auto& plugin : plugins_) {
    if (plugin->name == name && plugin->table.device_type == device_type) return plugin.get();
  }
  return nullptr;
}

const SkippedFile* Registry::skipped(const std::string& name) const {
  for (const SkippedFile& skipped : skipped_) {
    const std::string file = skipped.path.substr(skipped.path.rfind('/') + 1);  // npos + 1 is 0
    if (file == name + ".so" || (file.starts_with(name + "-") && file.ends_with(".so"))) return &skipped;
  }
  return nullptr;
}

std::vector<std::string> Registry::names(int32_t device_type) const {
  std::vector<std::string> result;
  for (const auto& plugin : plugins_) {
    if (plugin->table.device_type == device_type) result.push_back(plugin->name);
  }
  return result;
}

}  // namespace attnkit::core
