#include "open.hpp"

#include <filesystem>

#include "output.hpp"
#include "text.hpp"

namespace attnkit::cli {

Runtime open_runtime(const Arguments& arguments, uint32_t threads) {
  std::string path;
  for (const std::string& folder : arguments.texts("plugin-dir")) {
    if (folder.empty() || folder.find(':') != std::string::npos)
      fail(Exit::usage, "--plugin-dir {}: a folder's name without ':' is needed", quote(folder));
    // What the user names may be relative; what the library searches may not.
    path += (path.empty() ? "" : ":") + std::filesystem::absolute(folder).lexically_normal().string();
  }
  return Runtime(static_cast<uint32_t>(arguments.integer("threads", threads, 0, 1024)), path);
}

Exit exit_of(const std::vector<Diagnostic>& diagnostics) {
  for (const Diagnostic& d : diagnostics) {
    if (!d.is_error()) continue;
    return d.area == ATTNKIT_AREA_MANIFEST  ? Exit::manifest
           : d.area == ATTNKIT_AREA_PLUGIN  ? Exit::plugin
           : d.area == ATTNKIT_AREA_WEIGHTS ? Exit::weights
                                            : Exit::data;
  }
  return Exit::success;
}

Model open_model(const Runtime& runtime, const std::string& path, std::vector<Diagnostic>* warnings) {
  try {
    std::vector<Diagnostic> found;
    Model model(runtime, path, &found);
    if (warnings)
      *warnings = std::move(found);
    else
      for (const Diagnostic& d : found)
        // That a manifest could be tidier is for validate to say; what may change results is always said.
        if (d.area != ATTNKIT_AREA_MANIFEST) note(diagnostic_text(path, d));
    return model;
  } catch (const Error& e) {
    const Exit exit = exit_of(e.diagnostics());
    if (exit != Exit::success) throw Failure(exit, path, e.diagnostics());
    const bool unreadable = e.code() == ATTN_INVALID;
    throw Failure(unreadable ? Exit::data : Exit::internal, e.what(),
                  unreadable ? "a manifest is a TOML file; its name comes first, then the options" : "");
  }
}

}  // namespace attnkit::cli
