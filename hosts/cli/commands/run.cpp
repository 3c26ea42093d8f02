// attnkit run: inputs in, outputs out.
#include <chrono>

#include "hosts/cli/command.hpp"
#include "hosts/cli/decode/decode.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/output_check.hpp"
#include "hosts/cli/io/outputs.hpp"
#include "hosts/cli/decode/report.hpp"
#include "hosts/cli/decode/score.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

Arguments::Options options() {
  Arguments::Options o;
  add_input_options(o, "a reference for each --text or --audio: perplexity and exact match on standard error");
  o.add_options()("output,o", value("FILE"),
                  "outputs, one per line, written when all are there; default standard output");
  o.add_options()("beams", value("N"), "beam search with N beams, 1 is greedy; default what the manifest says");
  o.add_options()("limit", value("N"), "most tokens of an output; default 1.5 times the input and 20");
  o.add_options()("batch", value("N"), "inputs decoded together (default 16); the outputs do not depend on it");
  return o;
}

std::string class_text(const Label& label) {
  return fmt::format("{}\t{:.6f}", label.best, label.scores[static_cast<size_t>(label.best)]);
}

void run_encoder(const Model& model, const Facts& facts, const Arguments& arguments, Report& report, Outputs& out) {
  const auto batch = static_cast<size_t>(arguments.integer("batch", 16, 1, 1024));
  label_inputs(model, facts, report.inputs, batch, [&](size_t i, const Label& label) {
    Result result;
    result.made = source_length(facts, report.inputs[i]);
    result.text = facts.classifier ? class_text(label) : model.detokenize(Side::source, label.ids);
    result.label = label;
    report.tokens += result.made;
    out.add(i, result.text, result.made);
    report.results[i] = std::move(result);
  });
}

void run_decoder(const Model& model, const Facts& facts, const Arguments& arguments, Report& report, Outputs& out) {
  DecodeOptions options;
  options.beams = static_cast<uint32_t>(arguments.integer("beams", facts.info.beams, 1, 1024));
  options.limit = static_cast<uint32_t>(arguments.integer("limit", 0, 1, INT32_MAX));
  options.batch = static_cast<uint32_t>(arguments.integer("batch", 16, 1, 1024));
  report.beams = options.beams;
  report.largest = decode(model, facts, report.inputs, options, [&](size_t i, const Decoded& decoded) {
    Result result;
    result.made = decoded.made;
    result.finished = decoded.whole;
    result.length = decoded.length;
    result.text = model.detokenize(Side::target, decoded.ids);
    report.tokens += decoded.made;
    out.add(i, result.text, decoded.made);
    report.results[i] = std::move(result);
  });
}

void score(const Model& model, const Facts& facts, const Arguments& arguments, Report& report) {
  if (report.inputs.empty() || !report.inputs.front().reference) return;
  const auto batch = static_cast<size_t>(arguments.integer("batch", 16, 1, 1024));
  const std::vector<Score> scores = score_references(model, facts, report.inputs, batch);
  for (size_t i = 0; i < scores.size(); ++i) {
    report.results[i].score = scores[i];
    // Both as the vocabulary spells them, so that white space and case do not count.
    report.results[i].exact = report.results[i].text == model.detokenize(Side::target, report.inputs[i].target);
  }
}

void run_all(const Model& model, const Facts& facts, const Arguments& arguments, Report& report, Outputs& out) {
  using Clock = std::chrono::steady_clock;
  report.decoder = facts.decoder;
  report.results.resize(report.inputs.size());
  const Clock::time_point start = Clock::now();
  if (facts.decoder)
    run_decoder(model, facts, arguments, report, out);
  else
    run_encoder(model, facts, arguments, report, out);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (facts.speech) report.speech_seconds = seconds_of_speech(facts, report.inputs);
  score(model, facts, arguments, report);
}

void check_options(const Arguments& arguments) {
  // Wrong values are refused before a model is loaded.
  arguments.integer("beams", 1, 1, 1024);
  arguments.integer("limit", 1, 1, INT32_MAX);
  arguments.integer("batch", 1, 1, 1024);
  check_output(arguments);
  if (arguments.json() && arguments.text("output") == "-")
    fail(Exit::usage, "--json writes to standard output, so --output cannot");
}

Exit run(const Arguments& arguments) {
  check_options(arguments);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  const Facts facts = facts_of(model);
  Report report;
  report.inputs = inputs_of(model, facts, arguments, LiveAudio::read);
  Outputs outputs(arguments, report.inputs.size());
  run_all(model, facts, arguments, report, outputs);
  outputs.finish();
  const Json description = Json::parse(model.describe());
  if (arguments.json()) print_json(report_json(report, description));
  note(report_text(report, description));
  return Exit::success;
}

}  // namespace

const Command run_command = {
    "run",
    "run MANIFEST (--text TEXT ... | --file FILE | --audio FILE ... | --audio-list FILE) [OPTION ...]",
    "translates, continues or classifies texts, transcribes or translates speech",
    "MANIFEST",
    true,
    options,
    run};

}  // namespace attnkit::cli
