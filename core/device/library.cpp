// Finds and loads the library of a device, once per process.
#include <dlfcn.h>
#include <sys/auxv.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string_view>

#include "core/base/file.hpp"
#include "core/device/device.hpp"

namespace attnkit::core {
namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "libattnkit_cuda.so";

std::string path_of_library() {
  const char* const set = getauxval(AT_SECURE) == 0 ? std::getenv("ATTNKIT_DEVICE_LIBRARY") : nullptr;
  if (set && *set) return set;
  const std::string own = own_file();
  const fs::path beside = fs::path(own).parent_path() / file_name;
  std::error_code none;
  return !own.empty() && fs::exists(beside, none) ? beside.string() : file_name;
}

const DeviceTable& load() {
  const std::string path = path_of_library();
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* const why = dlerror();
    fail(ATTN_DEVICE,
         "models on a device need attnkit's library for it, and it cannot be loaded: {}; build with "
         "-DATTNKIT_CUDA=ON and install it beside libattnkit, or run on the CPU",
         why ? why : path.c_str());
  }
  const auto table_of = reinterpret_cast<DeviceTableFn>(dlsym(library, "attnkit_device_table"));
  if (!table_of) fail(ATTN_DEVICE, "{}: is no library of attnkit for a device", path);
  const DeviceTable* const table = table_of();
  // The first field alone is where it is in every version.
  if (table->struct_size != sizeof(DeviceTable) || table->version != std::string_view(ATTNKIT_VERSION))
    fail(ATTN_DEVICE, "{}: is of another version of attnkit ({}; this is {}): install both together", path,
         table->struct_size == sizeof(DeviceTable) ? table->version : "with other functions", ATTNKIT_VERSION);
  return *table;
}

}  // namespace

const DeviceTable& load_device_library() {
  // A failure is not kept: the library may be installed before the next try.
  static std::mutex mutex;
  static const DeviceTable* found = nullptr;
  const std::lock_guard lock(mutex);
  if (!found) found = &load();
  return *found;
}

std::string file_of(const DeviceTable& table) {
  Dl_info info{};
  return dladdr(&table, &info) != 0 && info.dli_fname ? info.dli_fname : "";
}

}  // namespace attnkit::core
