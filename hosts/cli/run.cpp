// attnkit run: inputs in, outputs out.
#include <chrono>

#include "command.hpp"
#include "decode.hpp"
#include "files.hpp"
#include "open.hpp"
#include "output.hpp"
#include "output_check.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "score.hpp"
#include "text.hpp"

namespace attnkit::cli {
namespace {

Arguments::Options options() {
  Arguments::Options o;
  o.add_options()("text", values("TEXT"), "an input; may be repeated");
  o.add_options()("file", value("FILE"), "inputs, one per line; - is standard input");
  o.add_options()("output,o", value("FILE"),
                  "outputs, one per line, written when all are there; default standard output");
  o.add_options()("target", values("TEXT"),
                  "a reference for each --text: perplexity and exact match on standard error");
  o.add_options()("target-file", value("FILE"), "references, one per line");
  o.add_options()("beams", value("N"), "beam search with N beams, 1 is greedy; default what the manifest says");
  o.add_options()("limit", value("N"), "most tokens of an output; default 1.5 times the input and 20");
  o.add_options()("batch", value("N"), "inputs decoded together (default 16); the outputs do not depend on it");
  return o;
}

// Hands texts on in the order of the inputs, whatever order they come in.
class InOrder {
 public:
  explicit InOrder(std::vector<Result>& results, bool print_them) : results_(results), print_(print_them) {}
  void add(size_t index, Result result) {
    results_[index] = std::move(result);
    results_[index].done = true;
    if (!print_) return;
    std::string lines;
    for (; next_ < results_.size() && results_[next_].done; ++next_) lines += results_[next_].text + "\n";
    print(lines);
  }

 private:
  std::vector<Result>& results_;
  bool print_;
  size_t next_ = 0;
};

std::string class_text(const Label& label) {
  return fmt::format("{}\t{:.6f}", label.best, label.scores[static_cast<size_t>(label.best)]);
}

void run_encoder(const Model& model, const Facts& facts, const Arguments& arguments, Report& report, InOrder& out) {
  const auto batch = static_cast<size_t>(arguments.integer("batch", 16, 1, 1024));
  label_inputs(model, facts, report.inputs, batch, [&](size_t i, const Label& label) {
    Result result;
    result.made = report.inputs[i].ids.size();
    result.text = facts.classifier ? class_text(label) : model.detokenize(Side::source, label.ids);
    result.label = label;
    report.tokens += result.made;
    out.add(i, std::move(result));
  });
}

void run_decoder(const Model& model, const Facts& facts, const Arguments& arguments, Report& report, InOrder& out) {
  DecodeOptions options;
  options.beams = static_cast<uint32_t>(arguments.integer("beams", facts.info.beams, 1, 1024));
  options.limit = static_cast<uint32_t>(arguments.integer("limit", 0, 1, INT32_MAX));
  options.batch = static_cast<uint32_t>(arguments.integer("batch", 16, 1, 1024));
  report.beams = options.beams;
  ProgressBar progress(arguments.has("file") ? arguments.progress() : Progress::none, report.inputs.size());
  size_t finished = 0;
  report.largest = decode(model, facts, report.inputs, options, [&](size_t i, const Decoded& decoded) {
    Result result;
    result.made = decoded.made;
    result.finished = decoded.whole;
    result.length = decoded.length;
    result.text = model.detokenize(Side::target, decoded.ids);
    report.tokens += decoded.made;
    out.add(i, std::move(result));
    progress.show(++finished, report.tokens);
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

Report run_all(const Model& model, const Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const Facts facts = facts_of(model);
  Report report;
  report.decoder = facts.decoder;
  report.inputs = read_inputs(arguments);
  tokenize(model, facts, report.inputs);
  report.results.resize(report.inputs.size());
  InOrder out(report.results, !arguments.json() && !arguments.has("output"));
  const Clock::time_point start = Clock::now();
  if (facts.decoder)
    run_decoder(model, facts, arguments, report, out);
  else
    run_encoder(model, facts, arguments, report, out);
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  score(model, facts, arguments, report);
  return report;
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
  const Report report = run_all(model, arguments);
  if (arguments.has("output")) {
    std::string lines;
    for (const Result& result : report.results) lines += result.text + "\n";
    write_file(arguments.text("output"), lines);
  }
  const Json description = Json::parse(model.describe());
  if (arguments.json()) print_json(report_json(report, description));
  note(report_text(report, description));
  return Exit::success;
}

}  // namespace

const Command run_command = {"run",
                             "run MANIFEST (--text TEXT ... | --file FILE) [OPTION ...]",
                             "translates, continues or classifies texts",
                             "MANIFEST",
                             true,
                             options,
                             run};

}  // namespace attnkit::cli
