// attnkit stream: simultaneous decoding, its quality and its latency.
#include <chrono>

#include "command.hpp"
#include "files.hpp"
#include "open.hpp"
#include "output_check.hpp"
#include "progress.hpp"
#include "stream_report.hpp"

namespace attnkit::cli {
namespace {

Arguments::Options options() {
  Arguments::Options o;
  o.add_options()("text", values("TEXT"), "an input; may be repeated");
  o.add_options()("file", value("FILE"), "inputs, one per line; - is standard input");
  o.add_options()("policy", value("POLICY"),
                  "wait-k:K, wait-k:K:PRE_DECISION or offline; default what [stream] in the manifest says");
  o.add_options()("unit", value("word|token"), "what of the source arrives at once; default word");
  o.add_options()("target", values("TEXT"), "a reference for each --text: quality, and AL against its length");
  o.add_options()("target-file", value("FILE"), "references, one per line");
  o.add_options()("output,o", value("FILE"),
                  "outputs, one per line, written when all are there; default standard output");
  o.add_options()("events", value("FILE"), "READ and WRITE as JSON lines; - is standard output, as they happen");
  o.add_options()("limit", value("N"), "most tokens of an output; default 1.5 times the input and 20");
  o.add_options()("word-ms", value("N"),
                  "how long a word of the source lasts, for latency with computation; default 300");
  o.add_options()("replay",
                  "lets mechanisms of decoder.cross start anew at each read, where the manifest has no [stream]");
  return o;
}

void check_options(const Arguments& arguments) {
  check_output(arguments);
  check_output(arguments, "events");
  const bool events_out = arguments.text("events") == "-", texts_out = arguments.text("output") == "-";
  if (arguments.json() && (events_out || texts_out))
    fail(Exit::usage, "--json writes to standard output, so --{} cannot", events_out ? "events" : "output");
  if (arguments.has("events") && arguments.text("events") == arguments.text("output"))
    fail(Exit::usage, "--events and --output cannot be the same");
}

StreamReport run_all(const Model& model, const Arguments& arguments, const StreamSetup& setup, EventLines& events) {
  using Clock = std::chrono::steady_clock;
  const Facts facts = facts_of(model);
  StreamReport report;
  report.setup = setup;
  report.inputs = read_inputs(arguments);
  tokenize(model, facts, report.inputs);
  const bool live = !arguments.json() && !arguments.has("output") && !events.on_standard_output();
  ProgressBar progress(arguments.has("file") ? arguments.progress() : Progress::none, report.inputs.size());
  size_t tokens = 0;
  const Clock::time_point start = Clock::now();
  Streamer streamer(model, facts, report.setup, events);
  for (size_t i = 0; i < report.inputs.size(); ++i) {
    report.results.push_back(streamer.run(i, report.inputs[i]));
    if (live) print(report.results.back().output + "\n");
    tokens += report.results.back().made;
    progress.show(i + 1, tokens);
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  score(model, report);
  return report;
}

Exit run(const Arguments& arguments) {
  // Wrong values are refused before a model is loaded.
  check_options(arguments);
  StreamSetup setup = read_stream_setup(arguments);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_stream_model(runtime, arguments, setup);
  EventLines events(arguments.text("events"));
  const StreamReport report = run_all(model, arguments, setup, events);
  events.finish();
  if (arguments.has("output")) {
    std::string lines;
    for (const Streamed& result : report.results) lines += result.output + "\n";
    write_file(arguments.text("output"), lines);
  }
  const Json description = Json::parse(model.describe());
  if (arguments.json()) print_json(stream_json(report, description));
  note(stream_text(report, description));
  return Exit::success;
}

}  // namespace

const Command stream_command = {"stream",
                                "stream MANIFEST (--text TEXT ... | --file FILE) [--policy wait-k:3] [OPTION ...]",
                                "translates while the source still arrives, and measures the lag",
                                "MANIFEST",
                                true,
                                options,
                                run};

}  // namespace attnkit::cli
