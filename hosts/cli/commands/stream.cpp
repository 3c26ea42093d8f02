// attnkit stream: simultaneous decoding, its quality and its latency.
#include <filesystem>
#include <stdexcept>

#include "core/base/text_stream.hpp"
#include "core/search/bleu.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/decode/arriving.hpp"
#include "hosts/cli/decode/results.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options stream_options = with_input_options(
    "a reference for each --text or --audio: quality, and AL against its length",
    {
        {"policy", "POLICY", "wait-k:K, wait-k:K:PRE_DECISION or offline; default what [stream] in the manifest says"},
        {"unit", "word|token", "what of a text arrives at once; default word"},
        {"chunk-ms", "N", "how much speech arrives at once; default what completes a row of the encoder"},
        {"output,o", "FILE", "outputs, one per line, written when all are there; default standard output"},
        {"events", "FILE", "READ and WRITE as JSON lines; - is standard output, as they happen"},
        {"limit", "N", "most tokens of an output; default 1.5 times the input and 20"},
        {"word-ms", "N", "how long a word of a text lasts, for latency with computation; default 300"},
        {"replay", nullptr,
         "lets mechanisms of decoder.cross start anew at each read, where the manifest has no [stream]"},
    });

namespace {

// Throws Failure (usage) for wrong values, before a model is loaded.
StreamSetup read_setup(const Arguments& arguments) {
  check_output(arguments);
  check_output(arguments, "events");
  if (arguments.has("events") && arguments.has("output") &&
      same_place(arguments.text("events"), arguments.text("output")))
    fail(Exit::usage, "--events and --output cannot be the same");
  StreamSetup setup;
  try {
    if (arguments.has("policy")) setup.policy = stream::policy_named(arguments.text("policy"));
  } catch (const std::invalid_argument& e) {
    fail(Exit::usage, "--policy {}", e.what());
  }
  setup.unit = static_cast<stream::Unit>(arguments.choice("unit", 0, {"word", "token"}));
  setup.word_seconds = static_cast<double>(arguments.integer("word-ms", 300, 1, 3'600'000)) / 1000;
  setup.chunk_ms = arguments.integer("chunk-ms", 0, 1, 3'600'000);
  setup.limit = static_cast<uint32_t>(arguments.integer("limit", 0, 1, INT32_MAX));
  return setup;
}

// table: [stream] in a model's description; null where the manifest has none.
std::shared_ptr<const stream::Policy> policy_in(const Json& table) {
  if (table.is_null())
    throw Failure(Exit::usage, "who decides between reading and writing? neither --policy nor [stream] says",
                  "--policy wait-k:3 or --policy offline");
  if (table["policy"] == "offline") return std::make_shared<stream::Offline>();
  return std::make_shared<stream::WaitK>(table["k"].get<int64_t>(), table["pre_decision"].get<int64_t>());
}

// The model of MANIFEST, and in setup.policy the one of its [stream] unless --policy gave one.
Model open_stream_model(const Runtime& runtime, const Arguments& arguments, StreamSetup& setup) {
  Model model = open_model(runtime, arguments);
  if (model.info().kind != ATTNKIT_ENCODER_DECODER)
    fail(Exit::usage, "simultaneous decoding reads a source while it writes a target: an encoder-decoder is needed");
  const bool speech = model.info().sample_rate > 0;
  for (const char* option : {"unit", "word-ms"})
    if (speech && arguments.has(option))
      fail(Exit::usage, "--{} is for texts, this model takes speech: --chunk-ms says what arrives at once", option);
  if (!speech && arguments.has("chunk-ms"))
    fail(Exit::usage, "--chunk-ms is for speech, this model takes text: --unit says what arrives at once");
  const Json table = Json::parse(model.describe()).value("stream", Json());
  if (!setup.policy) setup.policy = policy_in(table);
  if (!table.is_null() && arguments.has("replay"))
    fail(Exit::usage, "--replay is for manifests without [stream]; this one has it: set replay = true there");
  if (!table.is_null() || setup.policy->name() == "offline") return model;
  // A policy that reads by turns needs [stream]: added at the end, so that diagnostics name the lines of the file.
  const std::string path = arguments.text("MANIFEST");
  const std::string text = read_file(path) + "\n[stream]\nreplay = " + (arguments.has("replay") ? "true\n" : "false\n");
  return open_model_text(runtime, path, text, std::filesystem::absolute(path).parent_path().string());
}

// READ and WRITE as JSON lines: live on standard output, or a file written at the end.
class EventLines {
 public:
  // path: "" for none, "-" for standard output.
  explicit EventLines(std::string path) : path_(std::move(path)) {}
  bool wanted() const { return !path_.empty(); }
  bool on_standard_output() const { return path_ == "-"; }
  void add(const Json& event) {
    if (!wanted()) return;
    const std::string line = event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (on_standard_output())
      print(line);
    else
      lines_ += line;
  }
  void finish() const {
    if (wanted() && !on_standard_output()) write_file(path_, lines_);
  }

 private:
  std::string path_, lines_;
};

struct Streamed {
  size_t reads = 0;    // units
  double seconds = 0;  // of computing until the last token
  stream::LatencyLog log;
  uint64_t encoded_again = 0, predicted_again = 0, keys_replayed = 0;
};

struct StreamResults : Results {
  StreamSetup setup;
  bool speech = false;             // lengths and delays are milliseconds, not words
  std::vector<Streamed> streamed;  // by input
  double bleu = 0;

  template <class Field>
  auto sum(Field Streamed::*field) const {
    Field n{};
    for (const Streamed& s : streamed) n += s.*field;
    return n;
  }
  std::string unit_name() const {
    if (speech) return setup.chunk_ms > 0 ? "chunk" : "row";
    return setup.unit == stream::Unit::word ? "word" : "token";
  }
};

// Reads and writes one input after the other by turns.
struct Streamer {
  const Model& model;
  const Facts& facts;
  const StreamSetup& setup;
  EventLines& events;
  Outputs& outputs;

  // index: of the input, the next one after the last.
  Result run(size_t index, const Input& input, Streamed& streamed) {
    check_interrupt();
    const std::unique_ptr<ArrivingSource> source = arriving_source(model, facts, setup, input);
    const bool live = input.audio && input.audio->path == "-";
    std::vector<stream::Write> writes;
    Ids made;
    TextStream live_text([&](std::span<const int32_t> ids) { return text_of(ids); });
    double seconds = 0;
    const auto decide = [&](const attnkit_stream_view& view) {
      if (!live) check_interrupt();
      const auto action = static_cast<uint32_t>(setup.policy->decide(view));
      return view.ended || source->ready(view.read) ? action : uint32_t{ATTNKIT_READ};
    };
    const auto observe = [&](const attnkit_stream_event& event) {
      seconds = event.seconds;
      if (event.action == ATTNKIT_WRITE) {
        writes.push_back({event.read, event.seconds});
        made.push_back(event.id);
        if (live) outputs.show(live_text.push(event.id));
      } else {
        ++streamed.reads;
      }
      if (events.wanted()) events.add(event_line(index, event, *source));
    };
    Result result;
    try {
      if (!source->empty()) result = decode(*source, input, decide, observe, streamed);
      streamed.log = log_of(*source, input, writes, made);
    } catch (const Error& e) {
      fail_decoding(input, e);
    }
    streamed.seconds = source->computing_seconds().value_or(seconds);
    events.add({{"input", index},
                {"action", "END"},
                {"output", result.text},
                {"finished", result.finished},
                {"seconds", seconds}});
    return result;
  }

  std::string text_of(std::span<const int32_t> ids) const { return model.detokenize(Side::target, ids); }

  Result decode(ArrivingSource& source, const Input& input, const ArrivingSource::Decide& decide,
                const ArrivingSource::Observe& observe, Streamed& streamed) const {
    Session session(model, 1);
    if (facts.asks_for_length && input.reference)
      session.set_length(static_cast<double>(facts.forced.size() + input.target.size() + 1));
    const Ids made = source.decode(session, decide, observe, setup.limit);
    const Json state = Json::parse(session.describe());
    streamed.encoded_again = state.value("tokens_encoded_again", uint64_t{0});
    streamed.predicted_again = state.value("tokens_predicted_again", uint64_t{0});
    streamed.keys_replayed = state.value("keys_replayed", uint64_t{0});
    const bool finished = !made.empty() && made.back() == facts.info.end_id;
    return {text_of(made), made.size(), finished, length_use(facts, state)};
  }

  stream::LatencyLog log_of(const ArrivingSource& source, const Input& input, std::span<const stream::Write> writes,
                            const Ids& made) const {
    const auto words = stream::words_of(made, [&](std::span<const int32_t> ids) { return text_of(ids); });
    std::optional<double> reference;
    if (input.reference) reference = static_cast<double>(stream::reference_words(*input.reference));
    return source.log(writes, words, reference);
  }

  Json event_line(size_t index, const attnkit_stream_event& event, const ArrivingSource& source) const {
    const bool writes = event.action == ATTNKIT_WRITE;
    Json line = {{"input", index}, {"action", writes ? "WRITE" : "READ"}};
    if (writes)
      line.update({{"id", event.id}, {"text", text_of({&event.id, 1})}});
    else
      source.add_text(event, line);
    line.update({{"read", event.read}, {"written", event.written}});
    source.add_time(event, line);
    line["seconds"] = event.seconds;
    return line;
  }
};

double bleu_of(const Model& model, const Results& results) {
  search::BleuStats corpus;
  for (size_t i = 0; i < results.all.size(); ++i)
    corpus += search::bleu_stats(results.all[i].text, model.detokenize(Side::target, results.inputs[i].target));
  return search::bleu(corpus);
}

struct Latencies {
  std::optional<stream::Latency> source, computation;
};

Latencies latencies_of(const StreamResults& results) {
  std::vector<std::optional<stream::Latency>> source, computation;
  for (const Streamed& s : results.streamed) {
    source.push_back(stream::latency(s.log));
    computation.push_back(stream::computation_aware_latency(s.log));
  }
  return {stream::mean(source), stream::mean(computation)};
}

Json json_of(const std::optional<stream::Latency>& latency) {
  return latency ? Json{{"al", latency->al}, {"laal", latency->laal}, {"dal", latency->dal}} : Json();
}

// Nothing without speech.
std::optional<SpeechTime> speech_time(const StreamResults& results) {
  if (!results.speech || results.streamed.empty()) return {};
  double speech = 0;
  for (const Streamed& s : results.streamed) speech += s.log.source_length / 1000;
  return SpeechTime{speech, results.sum(&Streamed::seconds)};
}

// "attnkit.stream/1".
Json json_of(const StreamResults& r) {
  Json json = {{"schema", "attnkit.stream/1"},
               {"model", r.description["name"]},
               {"policy", r.setup.policy->name()},
               {"unit", r.unit_name()}};
  if (!r.speech) json["word_ms"] = r.setup.word_seconds * 1000;
  if (r.setup.chunk_ms > 0) json["chunk_ms"] = r.setup.chunk_ms;
  add_blocks(r, json);
  add_results(r, json, [&](size_t i, Json& entry) {
    const Streamed& s = r.streamed[i];
    entry.update({{"source_length", s.log.source_length},
                  {"delays", s.log.delays},
                  {"elapsed", s.log.elapsed},
                  {"seconds", s.seconds},
                  {"latency", json_of(stream::latency(s.log))},
                  {"computation_aware", json_of(stream::computation_aware_latency(s.log))}});
    add_length(r.all[i], entry);
    if (r.speech) entry["real_time_factor"] = s.seconds * 1000 / s.log.source_length;
    if (r.inputs[i].reference)
      entry.update({{"reference", *r.inputs[i].reference},
                    {"reference_length", *s.log.reference_length},
                    {"exact", r.all[i].exact}});
  });
  const Latencies latencies = latencies_of(r);
  Json summary = {{"inputs", r.all.size()},
                  {"reads", r.sum(&Streamed::reads)},
                  {"tokens", r.tokens()},
                  {"seconds", r.seconds},
                  {"tokens_encoded_again", r.sum(&Streamed::encoded_again)},
                  {"tokens_predicted_again", r.sum(&Streamed::predicted_again)},
                  {"beyond_target_length", r.beyond_target_length()},
                  {"keys_replayed", r.sum(&Streamed::keys_replayed)},
                  {"latency", json_of(latencies.source)},
                  {"computation_aware", json_of(latencies.computation)}};
  if (const auto time = speech_time(r))
    summary.update({{"speech_seconds", time->speech},
                    {"computing_seconds", time->computing},
                    {"real_time_factor", time->real_time_factor()}});
  if (r.have_references())
    summary.update(
        {{"exact_match", static_cast<double>(r.exact()) / static_cast<double>(r.all.size())}, {"bleu", r.bleu}});
  json["summary"] = summary;
  return json;
}

std::string latency_table(const Latencies& all, const StreamResults& results) {
  Table table({results.speech ? "latency in ms" : "latency in source words", ">AL", ">LAAL", ">DAL"});
  const auto row = [&](const char* name, const std::optional<stream::Latency>& l) {
    const auto text = [](double value) { return fmt::format("{:.3f}", value); };
    if (l) table.add({name, text(l->al), text(l->laal), text(l->dal)});
  };
  row("read", all.source);
  row("and computed", all.computation);
  return table.text() + (results.have_references() ? "" : "without references, AL goes by the outputs' own lengths\n");
}

std::string text_of(const StreamResults& r) {
  std::string out = mechanisms_text(r);
  out +=
      fmt::format("{}, {} in {} {}s, {} out in {}\n", r.setup.policy->name(), counted_text(r.all.size(), "input"),
                  r.sum(&Streamed::reads), r.unit_name(), counted_text(r.tokens(), "token"), seconds_text(r.seconds));
  const uint64_t again = r.sum(&Streamed::encoded_again), replayed = r.sum(&Streamed::keys_replayed),
                 predicted = r.sum(&Streamed::predicted_again);
  if (again + replayed + predicted > 0)
    out += fmt::format(
        "run anew because the source grew: {} in the encoder, {} in cross attention{}\n",
        counted_text(again, r.speech ? "row" : "token"), counted_text(replayed, "key"),
        predicted > 0 ? fmt::format(", {} in the prediction of lengths", counted_text(predicted, "row")) : "");
  out += remarks_text(r, speech_time(r));
  if (r.have_references()) out += fmt::format("{}, BLEU {:.2f}\n", exact_text(r), r.bleu);
  const Latencies latencies = latencies_of(r);
  return latencies.source ? out + latency_table(latencies, r) : out;
}

}  // namespace

Exit stream_command(const Arguments& arguments) {
  StreamResults results;
  results.setup = read_setup(arguments);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_stream_model(runtime, arguments, results.setup);
  EventLines events(arguments.text("events"));
  const Facts facts = facts_of(model);
  results.speech = facts.speech.has_value();
  results.inputs = inputs_of(model, facts, arguments, LiveAudio::left);
  results.streamed.resize(results.inputs.size());
  Outputs outputs(arguments, results.inputs.size(), events.on_standard_output());
  run_inputs(model, results, outputs, [&](const Give& give) {
    Streamer streamer{model, facts, results.setup, events, outputs};
    for (size_t i = 0; i < results.inputs.size(); ++i) give(i, streamer.run(i, results.inputs[i], results.streamed[i]));
  });
  if (results.have_references()) results.bleu = bleu_of(model, results);
  events.finish();
  return outputs.finish(json_of(results), text_of(results));
}

}  // namespace attnkit::cli
