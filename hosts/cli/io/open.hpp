// Opens runtimes and models by the global options, and turns their errors into exit codes.
#pragma once

#include "hosts/cli/arguments.hpp"
#include "hosts/cli/failure.hpp"

namespace attnkit::cli {

// threads: used when --threads is not given.
Runtime open_runtime(const Arguments& arguments, uint32_t threads = 0);
// The folders of --plugin-dir, absolute, separated by ':'.  Throws Failure (usage).
std::string plugin_path(const Arguments& arguments);

// That of --device, 0 where it is not given.  Throws Failure (usage).
int32_t device_type(const Arguments& arguments);

// The exit code of the first error among them; success when there is none.
Exit exit_of(const std::vector<Diagnostic>& diagnostics);

// The model of the argument MANIFEST.  Throws Failure with every diagnostic.  Warns first of files in the folders of
// --plugin-dir that are not used.  Warnings go to *warnings, or, but for those about the manifest's form, to standard
// error.
Model open_model(const Runtime& runtime, const Arguments& arguments, std::vector<Diagnostic>* warnings = nullptr);
// The model of a manifest's text; file: its name in diagnostics, folder: what its paths are relative to.
Model open_model_text(const Runtime& runtime, const std::string& file, const std::string& toml,
                      const std::string& folder);
// The model of a manifest whose warnings were shown before, or are for nobody.
Model open_model_quietly(const Runtime& runtime, const std::string& path);

}  // namespace attnkit::cli
