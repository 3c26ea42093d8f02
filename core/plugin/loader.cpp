// Loading by Boost.DLL, once per file and process.
#include "core/plugin/loader.hpp"

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>
#include <cfenv>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/plugin/linked.hpp"

namespace attnkit::core {
namespace {

// Kept until the process ends, and with it the mapping: tables, option texts, thread-local destructors and threads of a
// plugin may be in use until then, and libraries with unique symbols cannot be unmapped anyway.
struct Loaded {
  PluginFile file;
  std::unique_ptr<boost::dll::shared_library> library = std::make_unique<boost::dll::shared_library>();
  attn_plugin table{};
  int32_t code = ATTN_OK;
  std::string refusal;
};

// A library linked with -ffast-math switches denormals off in the thread that loads it.
class FloatEnvironment {
 public:
  FloatEnvironment() { std::fegetenv(&saved_); }
  ~FloatEnvironment() { std::fesetenv(&saved_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// The part of Boost's "... (dlerror system message: <path>: <reason>): Bad file descriptor" that a user can act on.
std::string linker_reason(std::string text, const std::string& path) {
  constexpr std::string_view before = "dlerror system message: ", after = "): ";
  if (const auto at = text.find(before); at != text.npos) text.erase(0, at + before.size());
  if (const auto at = text.rfind(after); at != text.npos) text.erase(at);
  return text.starts_with(path + ": ") ? text.substr(path.size() + 2) : text;
}

attn_plugin_main_fn map(boost::dll::shared_library& library, const std::string& path) {
  using boost::dll::load_mode::rtld_local, boost::dll::load_mode::rtld_now;
  try {
    library.load(path, rtld_now | rtld_local);
  } catch (const std::exception& e) {
    fail(ATTN_INVALID, "cannot be loaded: {}", linker_reason(e.what(), path));
  }
  return &library.get<int32_t(const attn_host*, const attn_plugin**, attn_error*)>("attn_plugin_main_v1");
}

Loaded load(const PluginFile& file) {
  const FloatEnvironment kept;
  Loaded result;
  result.file = file;
  try {
    result.table = ask_plugin(map(*result.library, file.path));
  } catch (const Error& e) {
    result.code = e.code();
    result.refusal = e.what();
  }
  return result;
}

// The linker would answer with the library that it mapped before, or with one whose pages changed under it.
void check_unchanged(const PluginFile& before, const PluginFile& now) {
  if (before.inode == now.inode && before.device == now.device && before.bytes == now.bytes &&
      before.modified == now.modified) {
    return;
  }
  fail(ATTN_INVALID, "has changed since this process loaded it; start the program again to use the new one");
}

}  // namespace

attn_plugin load_plugin(const PluginFile& file) {
  static std::mutex mutex;
  static auto* all = new std::vector<Loaded>;  // never destroyed: hosts may run blocks in static destructors
  const std::lock_guard lock(mutex);
  const Loaded* found = nullptr;
  for (const auto& loaded : *all) {
    const bool same = loaded.file.device == file.device && loaded.file.inode == file.inode;
    if (same || loaded.file.path == file.path) {
      check_unchanged(loaded.file, file);
      found = &loaded;
    }
  }
  if (!found) {
    Loaded loaded = load(file);
    // A refusal by the linker is not kept; a library that the plugin needs may be installed before the next try.
    if (!loaded.library->is_loaded()) throw Error(loaded.code, loaded.refusal);
    found = &all->emplace_back(std::move(loaded));
  }
  if (found->code != ATTN_OK) throw Error(found->code, found->refusal);
  return found->table;
}

}  // namespace attnkit::core
