// attnkit bench --block: what one more token costs a mechanism, against how many it has seen.
#include "bench.hpp"

#include "command.hpp"
#include "open.hpp"
#include "output.hpp"
#include "table.hpp"
#include "text.hpp"

namespace attnkit::cli {
namespace {

const std::vector<std::string> roles = {"encoder.self", "decoder.self", "decoder.cross"};

Arguments::Options options() {
  Arguments::Options o;
  o.add_options()("block", value("MECHANISM"), "the mechanism, timed on one thread unless --threads says more");
  o.add_options()("role", value("ROLE"), "decoder.self (default), decoder.cross or encoder.self, which then is causal");
  o.add_options()("options", value("TOML"), "its options, such as \"guard = 'add', eps = 1e-6\"");
  o.add_options()("heads", value("N"), "heads (default 8)");
  o.add_options()("width", value("N"), "width of a head (default 64)");
  o.add_options()("context", value("N,N,..."), "tokens seen before the one that is timed (default 64,512,4096)");
  return o;
}

BenchSetup setup_of(const Arguments& arguments) {
  if (arguments.has("MANIFEST"))
    throw Failure(Exit::usage, "benchmarks of whole models are designed but not in this version",
                  "attnkit bench --block MECHANISM times one block");
  if (!arguments.has("block")) fail(Exit::usage, "--block MECHANISM is missing; see \"attnkit bench --help\"");
  BenchSetup s;
  s.mechanism = arguments.text("block");
  s.options = arguments.text("options");
  s.role = static_cast<uint32_t>(arguments.choice("role", 1, roles)) + 1;
  s.heads = static_cast<uint32_t>(arguments.integer("heads", 8, 1, 1024));
  s.width = static_cast<int32_t>(arguments.integer("width", 64, 1, 4096));
  s.contexts = arguments.integers("context", {64, 512, 4096}, 1, int64_t{1} << 24);
  s.threads = static_cast<uint32_t>(arguments.integer("threads", 1, 1, 1024));
  return s;
}

Json json_of(const BenchSetup& s, const std::vector<Timing>& timings) {
  Json json = {
      {"schema", "attnkit.bench/1"}, {"part", "block"},         {"mechanism", s.mechanism}, {"role", roles[s.role - 1]},
      {"options", s.options},        {"heads", s.heads},        {"width", s.width},         {"dtype", "f32"},
      {"threads", s.threads},        {"results", Json::array()}};
  for (const Timing& t : timings)
    json["results"].push_back({{"context", t.context},
                               {"median_seconds", t.median},
                               {"first_quartile_seconds", t.first_quartile},
                               {"third_quartile_seconds", t.third_quartile},
                               {"repetitions", t.repetitions},
                               {"state_bytes", t.state_bytes},
                               {"flops", t.flops}});
  return json;
}

std::string text_of(const BenchSetup& s, const std::vector<Timing>& timings) {
  std::string out = fmt::format("{} in {}, {} heads of width {}, f32, {} thread{}: one more token\n", s.mechanism,
                                roles[s.role - 1], s.heads, s.width, s.threads, s.threads == 1 ? "" : "s");
  Table table({">context", ">median", ">quartiles", ">repetitions", ">state", ">flops"});
  for (const Timing& t : timings)
    table.add({std::to_string(t.context), seconds_text(t.median),
               seconds_text(t.first_quartile) + " .. " + seconds_text(t.third_quartile), std::to_string(t.repetitions),
               bytes_text(t.state_bytes), count_text(static_cast<double>(t.flops))});
  return out + table.text();
}

Exit run(const Arguments& arguments) {
  const BenchSetup setup = setup_of(arguments);
  const Runtime runtime = open_runtime(arguments, setup.threads);
  const std::vector<Timing> timings = time_block(runtime, setup);
  if (arguments.json())
    print_json(json_of(setup, timings));
  else
    print(text_of(setup, timings));
  return Exit::success;
}

}  // namespace

const Command bench_command = {"bench",
                               "bench --block MECHANISM [OPTION ...]",
                               "what one more token costs a mechanism, against the context (the block part of bench)",
                               "MANIFEST",
                               false,
                               options,
                               run};

}  // namespace attnkit::cli
