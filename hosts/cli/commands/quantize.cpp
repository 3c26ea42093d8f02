// attnkit quantize: a model in a folder of its own with weights of fewer bits, and what that costs.
#include "hosts/cli/quantize/quantize.hpp"

#include "core/search/failure.hpp"
#include "core/search/trial/quality_trial.hpp"
#include "hosts/cli/bundle/bundle.hpp"
#include "hosts/cli/bundle/staging.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/setup.hpp"

namespace attnkit::cli {

const Options quantize_options = {
    {"type", "bf16|int8|int4", "of dense layers and embeddings (default int8)"},
    {"output,o", "DIR", "the new folder; one that is there must be empty and no mount point"},
    {"data", "FILE", "examples for the quality before and after (default the manifest's [search] data)"},
    {"examples", "N", "of the data, at most (default 500)"},
    {"rows", "N", "layers that the table shows, those that lose most first (default 12)"},
};

namespace {

// The quality of both models on the same examples; null without a data set.
Json quality_of(const Arguments& arguments, size_t examples, const Model& before, const Model& after) {
  const Json description = Json::parse(before.describe());
  const std::string data_file = search_data(arguments, description);
  if (data_file.empty()) return nullptr;
  const search::TaskFacts facts = search::facts_of(before);
  const search::Metric metric = usual_metric(description);
  const search::DataSet data(data_file, before, facts, read_recording);
  const auto count = std::min(data.size(), examples);
  search::QualityTrial trial(data, facts, search::length_bounds(data));
  if (trial.lacks_vectors(0, count)) trial.compare_with(before, 0, count);
  const auto measure = [&](const Model& model) {
    search::QualitySums sums;
    for (const search::QualitySums& bucket : trial.run(model, "", 0, count).sums) sums += bucket;
    const search::Interval interval = search::interval_of(metric, sums);
    return Json{{"value", search::value_of(metric, sums)}, {"low", interval.low}, {"high", interval.high}};
  };
  return {{"metric", search::metric_names[static_cast<size_t>(metric)]},
          {"data", data_file},
          {"examples", count},
          {"before", measure(before)},
          {"after", measure(after)}};
}

std::string report_text(const Json& report, size_t rows) {
  std::vector<Json> layers = report["layers"];
  std::ranges::stable_sort(layers, std::greater<>(), [](const Json& l) { return l["error"].get<double>(); });
  Table table({"layer", ">outputs", ">inputs", ">relative error"});
  for (size_t i = 0; i < std::min(rows, layers.size()); ++i) {
    const std::vector<int64_t> shape = layers[i]["shape"];
    int64_t inputs = 1;
    for (size_t d = 1; d < shape.size(); ++d) inputs *= shape[d];
    table.add({layers[i]["name"], grouped_text(static_cast<uint64_t>(shape[0])),
               grouped_text(static_cast<uint64_t>(inputs)), fmt::format("{:.2e}", layers[i]["error"].get<double>())});
  }
  std::string out = table.text();
  if (layers.size() > rows) out += fmt::format("and {} layers that lose less\n", layers.size() - rows);
  if (const size_t whole = report["rounded_at_opening"]; whole > 0)
    out += fmt::format("and {} that the file keeps whole and the model rounds when it opens: not measured\n", whole);
  out += fmt::format("\nweights: {} bytes, {} as f32\n", grouped_text(report["bytes"]["after"]),
                     grouped_text(report["bytes"]["before"]));
  const Json& quality = report["quality"];
  if (quality.is_null()) return out + "quality: not measured, no data is given (--data FILE)\n";
  const auto shown = [&](const char* which) {
    const Json& q = quality[which];
    const auto number = [](const Json& x) { return x.is_null() ? "NaN" : fmt::format("{:.6g}", x.get<double>()); };
    return fmt::format("{} ({} .. {})", number(q["value"]), number(q["low"]), number(q["high"]));
  };
  return out + fmt::format("{} of {} examples: {}, before {}\n", quality["metric"].get<std::string>(),
                           quality["examples"].get<size_t>(), shown("after"), shown("before"));
}

}  // namespace

Exit quantize_command(const Arguments& arguments) {
  if (!arguments.has("output")) fail(Exit::usage, "the new model needs a folder: --output DIR");
  const std::vector<std::string> types = {"bf16", "int8", "int4"};
  const std::string type = types[arguments.choice("type", 1, types)];
  const auto rows = static_cast<size_t>(arguments.integer("rows", 12, 1, 1 << 20));
  const auto examples = static_cast<size_t>(arguments.integer("examples", 500, 1, INT32_MAX));
  const std::string folder = arguments.text("output");
  check_new_folder(folder);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  QuantisedWeights made;
  size_t before = 0;
  Change change;
  change.type = type;
  change.weights = [&](const std::string& bytes) {
    before = bytes.size();
    made = quantised(bytes, type);
    return made.bytes;
  };
  change.report = [&](const Model& after) {
    Json report = {{"schema", "attnkit.quantize/1"},
                   {"type", type},
                   {"bytes", {{"before", before}, {"after", made.bytes.size()}}},
                   {"layers", Json::array()},
                   {"rounded_at_opening", made.whole},
                   {"quality", quality_of(arguments, examples, model, after)}};
    for (const LayerLoss& l : made.layers)
      report["layers"].push_back({{"name", l.name}, {"shape", l.shape}, {"error", l.error}});
    return report;
  };
  Json bundle;
  try {
    bundle = write_bundle(runtime, model, arguments.text("MANIFEST"), folder, &change);
  } catch (const search::Failure& e) {
    throw Failure(exit_of(e.fault()), e.what(), e.help());
  }
  print_result(
      arguments.json(), bundle,
      report_text(bundle["report"], rows) + fmt::format("{} runs it\n", bundle["manifest"].get<std::string>()));
  return Exit::success;
}

}  // namespace attnkit::cli
