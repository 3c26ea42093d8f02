// attnkit bench: a whole model's speed and memory against the length, many sessions of it at once, or the cost of one
// mechanism: of one more token, or of whole sequences.
#include "hosts/cli/bench/bench.hpp"

#include <random>

#include "core/search/statistics.hpp"
#include "hosts/cli/command.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options bench_options = {
    {"block", "MECHANISM", "the mechanism, timed on one thread unless --threads says more"},
    {"role", "ROLE", "decoder.self (default), decoder.cross or encoder.self, which is causal for one more token"},
    {"options", "TOML", "its options, such as \"guard = 'add', eps = 1e-6\""},
    {"heads", "N", "heads (default 8)"},
    {"width", "N", "width of a head (default 64)"},
    {"context", "N,N,...", "tokens seen before the one that is timed (default 64,512,4096)"},
    {"length", "N,N,...",
     "of a model: tokens of source and target (default 64,512); of a block: whole sequences in place of one more "
     "token"},
    {"batch", "N", "of a model: sequences at a time (default 1)"},
    {"against", "MANIFEST|MECHANISM",
     "another one, timed in turns with it; of a block: softmax unless said otherwise, or none"},
    {"sessions", "N", "of a model: decode this many sessions at once, by one thread and by --threads"},
};

Exit bench_command(const Arguments& arguments) {
  if (!arguments.has("MANIFEST")) return bench_block(arguments);
  for (const char* option : {"block", "role", "options", "heads", "width", "context"})
    if (arguments.has(option)) fail(Exit::usage, "--{} is for one block; a manifest says what its blocks are", option);
  return arguments.has("sessions") ? bench_sessions(arguments) : bench_model(arguments);
}

Timing timing_of(const std::vector<double>& seconds) {
  return {search::median(seconds), search::quantile(seconds, 0.25), search::quantile(seconds, 0.75), seconds.size()};
}

void add_timing(const Timing& timing, Json& to) {
  to.update({{"median_seconds", timing.median},
             {"first_quartile_seconds", timing.first_quartile},
             {"third_quartile_seconds", timing.third_quartile},
             {"repetitions", timing.repetitions}});
}

std::string quartiles_text(const Timing& timing) {
  return seconds_text(timing.first_quartile) + " .. " + seconds_text(timing.third_quartile);
}

Ids random_ids(const attnkit_model_info& info, int32_t vocabulary, int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  Ids ids(static_cast<size_t>(n));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    if (id == info.end_id) id = (id + 1) % vocabulary;  // a target that has ended takes no more under [stream]
  }
  return ids;
}

std::vector<std::vector<float>> random_frames(const Facts& facts, int64_t batch, int64_t length) {
  std::mt19937 random(1);
  std::normal_distribution<float> draw(10, 3);  // about what logarithms of energies are
  std::vector<std::vector<float>> rows(static_cast<size_t>(batch), std::vector<float>(facts.speech_numbers(length)));
  for (std::vector<float>& row : rows)
    for (float& x : row) x = draw(random);
  return rows;
}

}  // namespace attnkit::cli
