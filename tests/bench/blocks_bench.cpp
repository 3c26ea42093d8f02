// Blocks by Google Benchmark: every mechanism, whole causal sequences, their gradients, and a token behind so many,
// with their share of what the machine can multiply and add, measured in this process.
//   blocks_bench [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]
#include <benchmark/benchmark.h>

#include <sstream>
#include <utility>

#include "hosts/cli/bench/limits.hpp"
#include "tests/support/timed_block.hpp"

namespace {

using attnkit::TimedBlock;

void time_block(benchmark::State& state, const attnkit::Runtime& runtime, const std::string& mechanism,
                TimedBlock::Form form, double limit, uint32_t threads) {
  try {
    TimedBlock block(runtime, mechanism, form, state.range(0), 8, threads);
    block();
    for (auto _ : state) block();
    const double runs = static_cast<double>(state.iterations());
    state.counters["tokens"] =
        benchmark::Counter(runs * (form == TimedBlock::Form::step ? 1.0 : static_cast<double>(state.range(0))),
                           benchmark::Counter::kIsRate);
    if (form != TimedBlock::Form::backward)  // whose operations no mechanism declares
      state.counters["of_limit"] = benchmark::Counter(runs * block.flops() / limit, benchmark::Counter::kIsRate);
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
      for (const auto& [form, what] : {std::pair{TimedBlock::Form::whole, "whole"},
                                       {TimedBlock::Form::backward, "backward"},
                                       {TimedBlock::Form::step, "step"}})
        benchmark::RegisterBenchmark((name + "/" + what + "/threads:" + std::to_string(threads)).c_str(), time_block,
                                     std::cref(runtimes[i]), name, form, limit, threads)
            ->RangeMultiplier(4)
            ->Range(256, 4096)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
