// Finds plugin files, decides before trusting them, loads them for good, and answers by mechanism name.
#pragma once

#include <attnkit/plugin.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {

class FirstLoads;

// A loaded plugin.  Never unloaded: pointers into it stay valid until the process ends.
struct Plugin {
  std::string name, path;  // path: words in parentheses if it is linked in
  attn_plugin table;       // copied into this build's size: slots the plugin does not know are NULL
};

struct SkippedFile {
  std::string path, reason;
};

class Registry {
 public:
  // Plugins that are linked in come first.  folders: searched in order, first match of a name and device wins, later
  // ones are skipped with that reason. A folder that is missing or unreadable is listed in skipped().  Relative folders
  // are refused (skipped).
  explicit Registry(const std::vector<std::string>& folders);

  const Plugin* find(const std::string& name, int32_t device_type) const;           // NULL: no such plugin
  const std::vector<std::unique_ptr<Plugin>>& plugins() const { return plugins_; }  // by name, then device
  const std::vector<SkippedFile>& skipped() const { return skipped_; }
  // The first that the mechanism, or its variant for a device, would be in; NULL: none.
  const SkippedFile* skipped(const std::string& name) const;
  const std::vector<std::string>& folders() const { return folders_; }
  // The program that tried new files before they were loaded; empty: there is none.
  const std::string& first_load_program() const { return first_load_program_; }
  std::vector<std::string> names(int32_t device_type) const;

 private:
  void search(const std::vector<std::string>& folders);
  void add(const std::string& path, FirstLoads& first_loads);

  std::vector<std::string> folders_;
  std::string first_load_program_;
  std::vector<std::unique_ptr<Plugin>> plugins_;
  std::vector<SkippedFile> skipped_;
};

// plugin_path (':'-separated, may be NULL), then ATTNKIT_PLUGIN_PATH unless the process is set-uid, then
// <folder of this library>/attnkit/1 unless plugins are linked in.  Empty parts are dropped.
std::vector<std::string> default_search_path(const char* plugin_path);

}  // namespace attnkit::core
