// attnkit import: a manifest for a checkpoint of another library, which stays where it is.
#include "core/import/import.hpp"

#include <algorithm>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options import_options = {
    {"output,o", "FILE", "the manifest to write; its paths are relative to its folder"},
    {"name", "NAME", "what reports call the model; default the folder's or the file's name"},
    {"architecture", "FILE", "an architecture of your own, a file whose name ends in .toml (docs/importing.md)"},
};

namespace {

Imported imported(const ImportRequest& request) {
  try {
    return import_folder(request);
  } catch (const ImportFailure& e) {
    throw Failure(Exit::data, e.what(), e.help());
  }
}

// Nobody sees the manifest, which is not written: what is wrong with it is said of what was imported, each thing once.
Model opened(const Runtime& runtime, const std::string& from, const std::string& output, const std::string& toml) {
  try {
    return open_model_text(runtime, output, toml, std::filesystem::absolute(output).parent_path().string());
  } catch (const Failure& e) {
    if (e.diagnostics().empty()) throw;
    std::vector<Diagnostic> once;
    for (Diagnostic d : e.diagnostics()) {
      d.line = d.column = 0;
      if (std::ranges::count(once, d.message, &Diagnostic::message) == 0) once.push_back(std::move(d));
    }
    throw Failure(e.exit(), from, std::move(once));
  }
}

}  // namespace

Exit import_command(const Arguments& arguments) {
  const std::string output = arguments.text("output"), own = arguments.text("architecture");
  if (output.empty()) fail(Exit::usage, "--output FILE is missing: the manifest to write");
  if (output == "-") fail(Exit::usage, "--output must be a file, since paths in a manifest are relative to its folder");
  if (arguments.has("architecture") && !own.ends_with(".toml"))
    fail(Exit::usage, "--architecture {}: a file whose name ends in .toml is needed", quote(own));
  check_writable(output);
  const Imported made = imported({arguments.text("DIR"), output, arguments.text("name"), own});
  for (const std::string& file : made.files)
    if (same_file(file, output))
      fail(Exit::usage, "--output {} is an input of this command: choose another file", quote(output));
  if (std::filesystem::exists(output) && !output.ends_with(".toml"))
    fail(Exit::usage, "--output {} exists and is by its name no manifest: choose another file", quote(output));
  const Runtime runtime = open_runtime(arguments);
  const Model model = opened(runtime, arguments.text("DIR"), output, made.toml);
  write_file(output, made.toml);
  const Json description = Json::parse(model.describe());
  Json document = {{"schema", "attnkit.import/1"},
                   {"manifest", output},
                   {"architecture", made.architecture},
                   {"weights", made.weights},
                   {"parameters", description["parameters"]},
                   {"notes", made.notes}};
  std::string text = fmt::format("{}: {}, {}, {} parameters in {}\n", output, description["name"].get<std::string>(),
                                 made.architecture, count_text(description["parameters"].get<double>()), made.weights);
  for (const std::string& one : made.notes) text += "note: " + one + "\n";
  print_result(arguments.json(), document, text);
  return Exit::success;
}

}  // namespace attnkit::cli
