// attnkit bench: a whole model's speed and memory against the length, many sessions of it at once, or what one more
// token costs one mechanism.
#include "hosts/cli/commands/bench.hpp"

#include <algorithm>
#include <thread>

#include "core/base/roles.hpp"
#include "hosts/cli/bench/model.hpp"
#include "hosts/cli/bench/sessions.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

const char* const exact = "softmax";  // what mechanisms are timed beside unless --against says otherwise

Arguments::Options options() {
  Arguments::Options o;
  o.add_options()("block", value("MECHANISM"), "the mechanism, timed on one thread unless --threads says more");
  o.add_options()("role", value("ROLE"), "decoder.self (default), decoder.cross or encoder.self, which then is causal");
  o.add_options()("options", value("TOML"), "its options, such as \"guard = 'add', eps = 1e-6\"");
  o.add_options()("heads", value("N"), "heads (default 8)");
  o.add_options()("width", value("N"), "width of a head (default 64)");
  o.add_options()("context", value("N,N,..."), "tokens seen before the one that is timed (default 64,512,4096)");
  o.add_options()("length", value("N,N,..."), "of a model: tokens of source and target (default 64,512)");
  o.add_options()("batch", value("N"), "of a model: sequences at a time (default 1)");
  o.add_options()("against", value("MANIFEST|MECHANISM"),
                  "another one, timed in turns with it; of a block: softmax unless said otherwise, or none");
  o.add_options()("sessions", value("N"),
                  "of a model: decode this many sessions at once, by one thread and by --threads");
  return o;
}

BenchSetup setup_of(const Arguments& arguments) {
  if (!arguments.has("block"))
    fail(Exit::usage, "a manifest, or --block MECHANISM, is missing; see \"attnkit bench --help\"");
  BenchSetup s;
  s.mechanism = arguments.text("block");
  s.options = arguments.text("options");
  const std::vector<std::string> roles(std::begin(role_names), std::end(role_names));
  s.role = all_roles[arguments.choice("role", 1, roles)];
  s.heads = static_cast<uint32_t>(arguments.integer("heads", 8, 1, 1024));
  s.width = static_cast<int32_t>(arguments.integer("width", 64, 1, 4096));
  s.contexts = arguments.integers("context", {64, 512, 4096}, 1, int64_t{1} << 24);
  s.threads = static_cast<uint32_t>(arguments.integer("threads", 1, 1, 1024));
  return s;
}

// One more token of a mechanism, and of another one beside it where there is one.
struct BlockResult {
  const BenchSetup& setup;
  std::string against;
  std::vector<Timing> own, other;
};

Json json_of(const BlockResult& r) {
  const BenchSetup& s = r.setup;
  Json json = {
      {"schema", "attnkit.bench/1"}, {"part", "block"},         {"mechanism", s.mechanism}, {"role", role_name(s.role)},
      {"options", s.options},        {"heads", s.heads},        {"width", s.width},         {"dtype", "f32"},
      {"threads", s.threads},        {"results", Json::array()}};
  for (const Timing& t : r.own)
    json["results"].push_back({{"context", t.context},
                               {"median_seconds", t.median},
                               {"first_quartile_seconds", t.first_quartile},
                               {"third_quartile_seconds", t.third_quartile},
                               {"repetitions", t.repetitions},
                               {"state_bytes", t.state_bytes},
                               {"flops", t.flops}});
  if (r.other.empty()) return json;
  for (size_t i = 0; i < r.other.size(); ++i) json["results"][i]["against_median_seconds"] = r.other[i].median;
  const Crossover c = crossover_of(r.own, r.other);
  const char* const places[] = {"below", "between", "beyond"};
  json["against"] = r.against;
  json["crossover"] = {{"place", places[c.place]}, {"context", c.context}, {"text", text_of(c)}};
  return json;
}

std::string text_of(const BlockResult& r) {
  const BenchSetup& s = r.setup;
  const bool beside = !r.other.empty();
  std::string out =
      fmt::format("{} in {}, {} heads of width {}, f32, {}: one more token{}\n", s.mechanism, role_name(s.role),
                  s.heads, s.width, counted_text(s.threads, "thread"), beside ? ", in turns with " + r.against : "");
  std::vector<std::string> head = {">context", ">median", ">quartiles", ">repetitions", ">state", ">flops"};
  if (beside) head.push_back(">" + r.against);
  Table table(head);
  for (size_t i = 0; i < r.own.size(); ++i) {
    const Timing& t = r.own[i];
    std::vector<std::string> row = {std::to_string(t.context),
                                    seconds_text(t.median),
                                    seconds_text(t.first_quartile) + " .. " + seconds_text(t.third_quartile),
                                    std::to_string(t.repetitions),
                                    bytes_text(t.state_bytes),
                                    count_text(static_cast<double>(t.flops))};
    if (beside) row.push_back(seconds_text(r.other[i].median));
    table.add(row);
  }
  out += table.text();
  if (beside)
    out += fmt::format("a token costs less than with {} from a context of: {}\n", r.against,
                       text_of(crossover_of(r.own, r.other)));
  return out;
}

Json json_of(const Arguments& arguments, const ModelBench& s, const std::vector<ModelTiming>& timings) {
  Json json = {{"schema", "attnkit.bench/1"},
               {"part", "model"},
               {"manifest", arguments.text("MANIFEST")},
               {"batch", s.batch},
               {"results", Json::array()}};
  if (arguments.has("against")) json["against"] = arguments.text("against");
  for (const ModelTiming& t : timings) {
    Json result = {{"length", t.length},
                   {"median_seconds", t.median},
                   {"first_quartile_seconds", t.first_quartile},
                   {"third_quartile_seconds", t.third_quartile},
                   {"repetitions", t.repetitions},
                   {"tokens_per_second", static_cast<double>(s.batch * t.length) / t.median}};
    if (t.peak_memory) result["peak_memory_bytes"] = *t.peak_memory;
    if (t.speed) result["speed"] = *t.speed;
    json["results"].push_back(result);
  }
  return json;
}

std::string text_of(const Arguments& arguments, const ModelBench& s, const std::vector<ModelTiming>& timings) {
  const bool beside = arguments.has("against");
  std::string out = fmt::format("{}, batches of {}, whole sequences{}\n", arguments.text("MANIFEST"), s.batch,
                                beside ? ", in turns with " + arguments.text("against") : "");
  std::vector<std::string> head = {">length", ">median", ">quartiles", ">tokens/s", ">peak memory"};
  if (beside) head.push_back(">speed");
  Table table(head);
  for (const ModelTiming& t : timings) {
    std::vector<std::string> row = {std::to_string(t.length), seconds_text(t.median),
                                    seconds_text(t.first_quartile) + " .. " + seconds_text(t.third_quartile),
                                    count_text(static_cast<double>(s.batch * t.length) / t.median),
                                    t.peak_memory ? bytes_text(*t.peak_memory) : "?"};
    if (beside) row.push_back(fmt::format("{:.2f}x", *t.speed));
    table.add(row);
  }
  return out + table.text();
}

Exit run_sessions(const Arguments& arguments) {
  for (const char* option : {"batch", "against"})
    if (arguments.has(option)) fail(Exit::usage, "--{} does not go with --sessions", option);
  const std::vector<int64_t> lengths = arguments.integers("length", {64}, 1, 1 << 20);
  if (lengths.size() != 1) fail(Exit::usage, "--length: one length goes with --sessions, not {}", lengths.size());
  SessionsBench setup;
  setup.length = lengths.front();
  setup.sessions = arguments.integer("sessions", 1000, 1, 65536);
  setup.threads = static_cast<uint32_t>(arguments.integer("threads", 0, 0, 1024));
  if (setup.threads == 0) setup.threads = std::max(1u, std::thread::hardware_concurrency());
  open_model(open_runtime(arguments), arguments);  // says what is wrong with the manifest, once
  const auto open = [&](uint32_t threads) {
    std::vector<Diagnostic> said;
    return open_model_at(open_runtime_with(arguments, threads), arguments.text("MANIFEST"), &said);
  };
  const SessionsResult result = time_sessions(open, setup);
  if (arguments.json())
    print_json(json_of(arguments.text("MANIFEST"), setup, result));
  else
    print(text_of(arguments.text("MANIFEST"), setup, result));
  return Exit::success;
}

Exit run_model(const Arguments& arguments) {
  for (const char* option : {"block", "role", "options", "heads", "width", "context"})
    if (arguments.has(option)) fail(Exit::usage, "--{} is for one block; a manifest says what its blocks are", option);
  if (arguments.has("sessions")) return run_sessions(arguments);
  ModelBench setup;
  setup.batch = arguments.integer("batch", 1, 1, 4096);
  setup.lengths = arguments.integers("length", {64, 512}, 1, 1 << 20);
  const Runtime runtime = open_runtime(arguments, 1);
  open_model(runtime, arguments);  // says what is wrong with the manifest, once
  std::vector<Diagnostic> said;
  const auto opener = [&](const std::string& path) {
    return [&runtime, &said, path] { return open_model_at(runtime, path, &said); };
  };
  const std::vector<ModelTiming> timings =
      time_model(opener(arguments.text("MANIFEST")),
                 arguments.has("against") ? OpenModel(opener(arguments.text("against"))) : OpenModel(), setup);
  if (arguments.json())
    print_json(json_of(arguments, setup, timings));
  else
    print(text_of(arguments, setup, timings));
  return Exit::success;
}

BlockResult time_beside(const Runtime& runtime, const BenchSetup& setup, const Arguments& arguments) {
  BenchSetup other = setup;
  other.mechanism = arguments.text("against", setup.mechanism == exact ? "none" : exact);
  other.options.clear();
  if (other.mechanism != "none") {
    try {
      const auto timings = time_blocks(runtime, {setup, other});
      return {setup, other.mechanism, timings[0], timings[1]};
    } catch (const Failure& e) {
      // Nobody asked for it, and its state grows where the mechanism's own may not.
      if (arguments.has("against") || e.exit() == Exit::interrupted) throw;
      const BlockResult alone{setup, "", time_blocks(runtime, {setup})[0], {}};
      note(fmt::format("attnkit: not timed beside {}: {}\n", other.mechanism, e.what()));
      return alone;
    }
  }
  return {setup, "", time_blocks(runtime, {setup})[0], {}};
}

Exit run(const Arguments& arguments) {
  if (arguments.has("MANIFEST")) return run_model(arguments);
  for (const char* option : {"length", "batch", "sessions"})
    if (arguments.has(option)) fail(Exit::usage, "--{} is for a model: name its manifest first", option);
  const BenchSetup setup = setup_of(arguments);
  const Runtime runtime = open_runtime(arguments, setup.threads);
  const BlockResult result = time_beside(runtime, setup, arguments);
  if (arguments.json())
    print_json(json_of(result));
  else
    print(text_of(result));
  return Exit::success;
}

}  // namespace

const Command bench_command = {"bench",
                               "bench MANIFEST | --block MECHANISM [OPTION ...]",
                               "a model's speed and memory against the length, or one more token of one mechanism",
                               "MANIFEST",
                               false,
                               options,
                               run};

}  // namespace attnkit::cli
