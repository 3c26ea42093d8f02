// attnkit verify: a model against golden activations, layer by layer.
#include <algorithm>
#include <filesystem>
#include <limits>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options verify_options = {
    {"golden", "FILE", "golden activations (default golden.safetensors beside the manifest)"},
    {"tolerance", "X", "how far a number may be off, relative to the largest of its layer (default 1e-4)"},
};

Exit verify_command(const Arguments& arguments) {
  const std::string path = arguments.text("MANIFEST");
  const std::string beside = (std::filesystem::path(path).parent_path() / "golden.safetensors").string();
  const std::string golden = arguments.text("golden", beside);
  const double tolerance = arguments.number("tolerance", 1e-4, 0, 1e30);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  if (!std::filesystem::exists(golden))
    throw Failure(
        Exit::data, golden + " is not there",
        "attnkit.train and attnkit.torch.Model.export write one beside the manifest; --golden FILE names another");
  Json document = Json::parse(model.verify(golden));
  Table table({"layer", ">difference", ">largest number"});
  const Json *first = nullptr, *worst = nullptr;
  const auto relative = [](const Json& layer) {
    if (layer["error"].is_null()) return std::numeric_limits<double>::infinity();  // a number that is none
    return layer["error"].get<double>() / std::max(layer["largest"].get<double>(), 1e-30);
  };
  const Json layers = document["layers"];
  for (const Json& layer : layers) {
    if (!worst || relative(layer) > relative(*worst)) worst = &layer;
    if (!first && relative(layer) > tolerance) first = &layer;
    table.add({layer["layer"], layer["error"].is_null() ? "NaN" : fmt::format("{:.1e}", layer["error"].get<double>()),
               layer["largest"].is_null() ? "inf" : fmt::format("{:.2e}", layer["largest"].get<double>())});
  }
  if (!worst) fail(Exit::data, "{}: holds no layer to compare", golden);
  std::string verdict = fmt::format("{}: ok, {} layers, at most {:.1e} of a layer's largest number apart ({})\n", path,
                                    layers.size(), relative(*worst), (*worst)["layer"].get<std::string>());
  if (first)
    verdict = fmt::format(
        "{}: {} is the first layer that differs, by {:.1e} of its largest number, in row {}, position {}, channel {} "
        "(from 0)\n",
        path, (*first)["layer"].get<std::string>(), relative(*first), (*first)["row"].get<int64_t>(),
        (*first)["position"].get<int64_t>(), (*first)["channel"].get<int64_t>());
  document["tolerance"] = tolerance;
  document["ok"] = first == nullptr;
  document["first"] = first ? (*first)["layer"] : Json();
  print_result(arguments.json(), document, table.text() + verdict);
  return first ? Exit::numerical : Exit::success;
}

}  // namespace attnkit::cli
