#include "core/base/plugin_process.hpp"

#include <unistd.h>

#include "core/base/file.hpp"

namespace attnkit::core {

std::string plugin_process() {
  const std::string own = own_file();
  const std::string folder = own.substr(0, own.rfind('/') + 1);
  if (folder.empty()) return {};
  for (const char* libraries : {"attnkit/", "../lib/attnkit/", "../" ATTNKIT_LIBDIR "/attnkit/", ""}) {
    const std::string path = folder + libraries + "attnkit-plugin-process";
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return {};
}

}  // namespace attnkit::core
