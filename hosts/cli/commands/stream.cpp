// attnkit stream: simultaneous decoding, its quality and its latency.
#include <chrono>

#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output_check.hpp"
#include "hosts/cli/stream/report.hpp"

namespace attnkit::cli {
namespace {

Arguments::Options options() {
  Arguments::Options o;
  add_input_options(o, "a reference for each --text or --audio: quality, and AL against its length");
  o.add_options()("policy", value("POLICY"),
                  "wait-k:K, wait-k:K:PRE_DECISION or offline; default what [stream] in the manifest says");
  o.add_options()("unit", value("word|token"), "what of a text arrives at once; default word");
  o.add_options()("chunk-ms", value("N"),
                  "how much speech arrives at once; default what completes a row of the encoder");
  o.add_options()("output,o", value("FILE"),
                  "outputs, one per line, written when all are there; default standard output");
  o.add_options()("events", value("FILE"), "READ and WRITE as JSON lines; - is standard output, as they happen");
  o.add_options()("limit", value("N"), "most tokens of an output; default 1.5 times the input and 20");
  o.add_options()("word-ms", value("N"), "how long a word of a text lasts, for latency with computation; default 300");
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

void run_all(const Model& model, const Facts& facts, EventLines& events, StreamReport& report, Outputs& outputs) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  Streamer streamer(model, facts, report.setup, events, outputs);
  for (size_t i = 0; i < report.inputs.size(); ++i) {
    report.results.push_back(streamer.run(i, report.inputs[i]));
    outputs.add(i, report.results.back().output, report.results.back().made);
  }
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  score(model, report);
}

Exit run(const Arguments& arguments) {
  // Wrong values are refused before a model is loaded.
  check_options(arguments);
  StreamReport report;
  report.setup = read_stream_setup(arguments);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_stream_model(runtime, arguments, report.setup);
  EventLines events(arguments.text("events"));
  const Facts facts = facts_of(model);
  report.speech = facts.speech.has_value();
  report.inputs = inputs_of(model, facts, arguments, LiveAudio::left);
  Outputs outputs(arguments, report.inputs.size(), events.on_standard_output());
  run_all(model, facts, events, report, outputs);
  events.finish();
  outputs.finish();
  const Json description = Json::parse(model.describe());
  if (arguments.json()) print_json(stream_json(report, description));
  note(stream_text(report, description));
  return Exit::success;
}

}  // namespace

const Command stream_command = {
    "stream",
    "stream MANIFEST (--text TEXT ... | --file FILE | --audio FILE ... | --audio-list FILE) "
    "[--policy wait-k:3] [OPTION ...]",
    "translates while the source still arrives, and measures the lag",
    "MANIFEST",
    true,
    options,
    run};

}  // namespace attnkit::cli
