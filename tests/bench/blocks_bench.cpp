// Blocks by Google Benchmark: every mechanism, whole sequences, causal and not, their gradients, and a token behind so
// many, with their share of what the machine can multiply and add, measured in this process.
//   blocks_bench [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]
#include <benchmark/benchmark.h>

#include <sstream>
#include <tuple>

#include "core/base/clock.hpp"
#include "hosts/cli/bench/limits.hpp"
#include "tests/support/timed_block.hpp"

namespace {

using attnkit::TimedBlock;

void time_block(benchmark::State& state, const attnkit::Runtime& runtime, const std::string& mechanism,
                TimedBlock::Form form, bool causal, double limit, uint32_t threads) {
  try {
    const bool step = form == TimedBlock::Form::step;
    TimedBlock block(runtime, mechanism, form, state.range(0), 8, threads, causal);
    block();
    const auto begin = attnkit::core::Clock::now();
    for (auto _ : state) block();
    const double runs = static_cast<double>(state.iterations()), seconds = attnkit::core::seconds_since(begin);
    state.counters["tokens/s"] = runs * (step ? 1.0 : static_cast<double>(state.range(0))) / seconds;
    if (form != TimedBlock::Form::backward)  // whose operations no mechanism declares
      state.counters["of_limit"] = runs * block.flops() / seconds / limit;
  } catch (const attnkit::Error& error) {
    state.SkipWithError(error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  std::vector<attnkit::Runtime> runtimes;
  for (const uint32_t threads : {1u, 2u}) runtimes.emplace_back(threads);
  for (size_t i = 0; i < runtimes.size(); ++i) {
    const auto threads = static_cast<uint32_t>(i + 1);
    const double limit = attnkit::cli::arithmetic_limit(threads);
    std::istringstream mechanisms(ATTNKIT_MECHANISMS);
    for (std::string name; mechanisms >> name;)
      for (const auto& [what, form, causal] : {std::tuple{"causal", TimedBlock::Form::whole, true},
                                               {"full", TimedBlock::Form::whole, false},
                                               {"backward", TimedBlock::Form::backward, true},
                                               {"step", TimedBlock::Form::step, true}})
        benchmark::RegisterBenchmark((name + "/" + what + "/threads:" + std::to_string(threads)).c_str(), time_block,
                                     std::cref(runtimes[i]), name, form, causal, limit, threads)
            ->RangeMultiplier(4)
            ->Range(256, 4096)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
