// Dense layers by Google Benchmark: every type of weights, from one row to many, with their share of what the machine
// can multiply and add in f32, measured in this process; int8 and int4, whose products are of bytes, may be above 1.
//   dense_bench [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]      ATTNKIT_INSTRUCTIONS=avx2: with fewer
#include <benchmark/benchmark.h>

#include <random>
#include <tuple>

#include "core/base/clock.hpp"
#include "core/model/dense/dense.hpp"
#include "hosts/cli/bench/limits.hpp"

namespace {

using attnkit::core::Dense, attnkit::core::Threads, attnkit::core::WeightType;

void time_dense(benchmark::State& state, Threads& threads, WeightType type, int64_t inputs, int64_t outputs,
                double limit) {
  const int64_t rows = state.range(0);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weight(static_cast<size_t>(inputs * outputs)), x(static_cast<size_t>(rows * inputs)),
      y(static_cast<size_t>(rows * outputs));
  for (auto* numbers : {&weight, &x})
    for (float& v : *numbers) v = normal(random);
  const Dense layer(inputs, outputs, weight, {}, type);
  const auto run = [&] { layer.apply(threads, x.data(), inputs, y.data(), outputs, rows); };
  run();
  const auto begin = attnkit::core::Clock::now();
  for (auto _ : state) run();
  const double flops = 2.0 * static_cast<double>(state.iterations() * rows * inputs * outputs);
  state.counters["of_limit"] = flops / attnkit::core::seconds_since(begin) / limit;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  Threads pools[] = {Threads(1), Threads(2)};
  for (Threads& threads : pools) {
    const double limit = attnkit::cli::arithmetic_limit(threads.workers());
    for (const auto& [name, type] : {std::pair{"f32", WeightType::f32},
                                     {"bf16", WeightType::bf16},
                                     {"int8", WeightType::int8},
                                     {"int4", WeightType::int4}})
      for (const auto& [inputs, outputs] : {std::pair{256, 256}, {384, 1536}, {1536, 384}, {512, 2048}, {512, 32000}})
        benchmark::RegisterBenchmark((std::string(name) + "/" + std::to_string(inputs) + "x" + std::to_string(outputs) +
                                      "/threads:" + std::to_string(threads.workers()))
                                         .c_str(),
                                     time_dense, std::ref(threads), type, inputs, outputs, limit)
            ->ArgName("rows")
            ->Arg(1)
            ->Arg(4)
            ->Arg(16)
            ->Arg(128)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
