// Walks the plugin folders and decides file by file.
#include <dirent.h>
#include <sys/auxv.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/plugin/first_load.hpp"
#include "core/plugin/linked.hpp"
#include "core/plugin/loader.hpp"
#include "core/plugin/plugin_file.hpp"
#include "core/plugin/registry.hpp"

namespace attnkit::core {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view extension = ".so", cuda_ending = "-cuda";
constexpr int32_t cpu = 1, cuda = 2;

// A file's name promises a mechanism and its device: <name>.so on the CPU, <name>-cuda.so on CUDA.
struct Promise {
  std::string name;
  int32_t device;
};

Promise promise_of(const std::string& path) {
  std::string stem = fs::path(path).stem().string();
  if (!stem.ends_with(cuda_ending)) return {stem, cpu};
  stem.resize(stem.size() - cuda_ending.size());
  return {stem, cuda};
}

const char* device_name(int32_t device) { return device == cuda ? "CUDA" : "the CPU"; }

// Not by std::filesystem, whose iterators end the process when memory is out.
std::vector<std::string> library_files(const std::string& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  std::vector<std::string> files;
  int bad = open ? 0 : errno;
  while (bad == 0) {
    errno = 0;
    const dirent* entry = readdir(open.get());
    bad = errno;
    if (!entry) break;
    const std::string_view name = entry->d_name;
    if (name.ends_with(extension) && name != extension) files.push_back(join_path(folder, entry->d_name));
  }
  if (bad == ENOMEM) throw std::bad_alloc();
  if (bad != 0) fail(ATTN_INVALID, "cannot be listed: {}", std::system_category().message(bad));
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<Plugin> load(const std::string& path, const Promise& promise, FirstLoads& first_loads) {
  const PluginFile file = read_plugin_file(path);
  first_loads.check(file);
  const attn_plugin table = load_plugin(file);
  if (promise.name != table.name || promise.device != table.device_type)
    fail(ATTN_INVALID, "holds mechanism \"{0}\" for {1}, so its name must be {0}{2}.so", table.name,
         device_name(table.device_type), table.device_type == cuda ? cuda_ending : "");
  return std::make_unique<Plugin>(Plugin{promise.name, path, table});
}

bool is_listed(const std::vector<std::string>& folders, const std::string& folder) {
  std::error_code bad;
  return std::any_of(folders.begin(), folders.end(),
                     [&](const std::string& other) { return other == folder || fs::equivalent(other, folder, bad); });
}

void append_parts(std::vector<std::string>& folders, const char* list) {
  for (std::string& part : split(list ? list : "", ':'))
    if (!part.empty()) folders.push_back(std::move(part));
}

}  // namespace

void Registry::search(const std::vector<std::string>& folders) {
  FirstLoads first_loads;
  first_load_program_ = first_loads.program();
  for (const auto& folder : folders) {
    if (is_listed(folders_, folder)) continue;
    folders_.push_back(folder);
    try {
      if (!fs::path(folder).is_absolute())
        fail(ATTN_INVALID,
             "is a relative path, and plugins are never searched in the working directory; give it whole");
      check_plugin_folder(folder);
      for (const auto& path : library_files(folder)) add(path, first_loads);
    } catch (const Error& e) {
      skipped_.push_back({folder, e.what()});
    }
  }
}

void Registry::add(const std::string& path, FirstLoads& first_loads) {
  try {
    // Decided by name, so that a file that is not wanted is not even loaded.
    const Promise promise = promise_of(path);
    if (const Plugin* first = find(promise.name, promise.device))
      fail(ATTN_INVALID, "is not used: \"{}\" for {} was found before, in {}", promise.name,
           device_name(promise.device), first->path);
    plugins_.push_back(load(path, promise, first_loads));
  } catch (const Error& e) {
    skipped_.push_back({path, e.what()});
  }
}

std::vector<std::string> default_search_path(const char* plugin_path) {
  std::vector<std::string> folders;
  append_parts(folders, plugin_path);
  if (getauxval(AT_SECURE) == 0) append_parts(folders, std::getenv("ATTNKIT_PLUGIN_PATH"));
  const std::string own = own_file();
  if (!own.empty() && linked_plugins().empty())
    folders.push_back((fs::path(own).parent_path() / "attnkit" / "1").string());
  return folders;
}

}  // namespace attnkit::core
