// attnkit validate: every problem of a manifest, at once.
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

Json document(const std::string& path, Exit exit, const std::vector<Diagnostic>& diagnostics) {
  Json json = {{"schema", "attnkit.validation/1"},
               {"manifest", path},
               {"ok", exit == Exit::success},
               {"exit", static_cast<int>(exit)},
               {"diagnostics", Json::array()}};
  for (const Diagnostic& d : diagnostics) json["diagnostics"].push_back(diagnostic_json(path, d));
  return json;
}

std::string listing(const std::string& path, const std::vector<Diagnostic>& diagnostics) {
  std::string out;
  for (const Diagnostic& d : diagnostics) out += diagnostic_text(path, d);
  return out;
}

}  // namespace

Exit validate_command(const Arguments& arguments) {
  const std::string path = arguments.text("MANIFEST");
  const Runtime runtime = open_runtime(arguments);
  std::vector<Diagnostic> diagnostics;
  try {
    const Model model = open_model(runtime, arguments, &diagnostics);
    const Json grid = Json::parse(model.describe());
    const size_t blocks = grid["blocks"].size();
    const uint64_t parameters = grid["parameters"];
    Json json = document(path, Exit::success, diagnostics);
    json.update({{"blocks", blocks}, {"parameters", parameters}});
    print_result(arguments.json(), json,
                 listing(path, diagnostics) + fmt::format("{}: ok, {} blocks, {} parameters\n", path, blocks,
                                                          count_text(static_cast<double>(parameters))));
    return Exit::success;
  } catch (const Failure& e) {
    if (e.diagnostics().empty()) throw;
    print_result(arguments.json(), document(path, e.exit(), e.diagnostics()), listing(path, e.diagnostics()));
    return e.exit();
  }
}

}  // namespace attnkit::cli
