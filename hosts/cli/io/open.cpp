#include "hosts/cli/io/open.hpp"

#include <algorithm>
#include <filesystem>

#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

// Users may name relative folders; the library searches absolute ones.
fs::path whole(const std::string& folder) {
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

void warn_of_skipped(const Runtime& runtime, const Arguments& arguments) {
  if (!arguments.has("plugin-dir")) return;
  std::vector<fs::path> folders;
  for (const std::string& folder : arguments.texts("plugin-dir")) folders.push_back(whole(folder));
  const auto named = [&](const fs::path& p) { return std::find(folders.begin(), folders.end(), p) != folders.end(); };
  // Not the runtime's description, which calls every plugin: one that hangs would hang commands that never use it.
  const Json list = Json::parse(runtime.list());
  for (const Json& s : list["skipped"]) {
    const fs::path path = s["path"].get<std::string>();
    const std::string reason = s["reason"];
    if (named(path))
      note(fmt::format("attnkit: warning: plugin folder {}: {}\n", clean_line(path.string()), reason));
    else if (named(path.parent_path()))
      note(fmt::format("attnkit: warning: plugin folder {}: {} {}\n", clean_line(path.parent_path().string()),
                       clean_line(path.filename().string()), reason));
  }
}

// The model that `make` gives with the warnings that it finds.
template <class Make>
Model load(const std::string& path, std::vector<Diagnostic>* warnings, Make make) {
  try {
    std::vector<Diagnostic> found;
    Model model = make(found);
    if (warnings)
      *warnings = std::move(found);
    else
      for (const Diagnostic& d : found)
        // Warnings about the manifest's form are for validate; those that may change results are always shown.
        if (d.area != ATTNKIT_AREA_MANIFEST) note(diagnostic_text(path, d));
    return model;
  } catch (const Error& e) {
    const Exit exit = exit_of(e.diagnostics());
    if (exit != Exit::success) throw Failure(exit, path, e.diagnostics());
    if (e.code() == ATTN_DEVICE) throw Failure(Exit::data, e.what(), "--device cpu runs it on the CPU");
    const bool unreadable = e.code() == ATTN_INVALID;
    throw Failure(unreadable ? Exit::data : Exit::internal, e.what(),
                  unreadable ? "a manifest is a TOML file; its name comes first, then the options" : "");
  }
}

}  // namespace

Runtime open_runtime(const Arguments& arguments, uint32_t threads) {
  return Runtime(static_cast<uint32_t>(arguments.integer("threads", threads, 0, 1024)), plugin_path(arguments),
                 device_type(arguments));
}

int32_t device_type(const Arguments& arguments) {
  return arguments.has("device") ? 1 + static_cast<int32_t>(arguments.choice("device", 0, {"cpu", "cuda"})) : 0;
}

std::string plugin_path(const Arguments& arguments) {
  std::string path;
  for (const std::string& folder : arguments.texts("plugin-dir")) {
    if (folder.empty() || folder.find(':') != std::string::npos)
      fail(Exit::usage, "--plugin-dir {}: a folder's name without ':' is needed", quote(folder));
    path += (path.empty() ? "" : ":") + whole(folder).string();
  }
  return path;
}

Exit exit_of(const std::vector<Diagnostic>& diagnostics) {
  constexpr Exit exits[] = {Exit::data, Exit::manifest, Exit::plugin, Exit::weights, Exit::data};  // by ATTNKIT_AREA_*
  for (const Diagnostic& d : diagnostics)
    if (d.is_error()) return exits[d.area];
  return Exit::success;
}

Model open_model(const Runtime& runtime, const Arguments& arguments, std::vector<Diagnostic>* warnings) {
  warn_of_skipped(runtime, arguments);
  const std::string path = arguments.text("MANIFEST");
  return load(path, warnings, [&](std::vector<Diagnostic>& found) { return Model(runtime, path, &found); });
}

Model open_model_quietly(const Runtime& runtime, const std::string& path) {
  std::vector<Diagnostic> warnings;
  return load(path, &warnings, [&](std::vector<Diagnostic>& found) { return Model(runtime, path, &found); });
}

Model open_model_text(const Runtime& runtime, const std::string& file, const std::string& toml,
                      const std::string& folder) {
  std::vector<Diagnostic> warnings;
  return load(file, &warnings, [&](std::vector<Diagnostic>& found) { return Model(runtime, toml, folder, &found); });
}

}  // namespace attnkit::cli
