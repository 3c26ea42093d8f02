// Dense layers by Google Benchmark: every type of weights, from one row to many, with their share of what the machine
// can multiply and add in f32, measured in this process; int8 and int4, whose products are of bytes, may be above 1,
// and are there by each of the instructions that multiply bytes.
//   dense_bench [--benchmark_filter=REGEX] [--benchmark_out=FILE ...]      ATTNKIT_INSTRUCTIONS=avx2: with fewer
#include <benchmark/benchmark.h>

#include <random>
#include <tuple>

#include "core/base/clock.hpp"
#include "core/model/dense/dense.hpp"
#include "hosts/cli/bench/limits.hpp"

namespace {

using attnkit::core::ByteKernel, attnkit::core::DenseSource, attnkit::core::Threads;
using Weights = std::shared_ptr<const attnkit::core::DenseWeights> (*)(const DenseSource&, ByteKernel);

void time_dense(benchmark::State& state, Threads& threads, Weights make, ByteKernel kernel, int64_t inputs,
                int64_t outputs, double limit) {
  const int64_t rows = state.range(0);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weight(static_cast<size_t>(inputs * outputs)), x(static_cast<size_t>(rows * inputs)),
      y(static_cast<size_t>(rows * outputs));
  for (auto* numbers : {&weight, &x})
    for (float& v : *numbers) v = normal(random);
  const auto layer = make({inputs, outputs, weight, {}}, kernel);
  const auto run = [&] { layer->run(threads, {x.data(), inputs, y.data(), outputs, rows}, {}); };
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
    std::vector<std::tuple<std::string, Weights, ByteKernel>> types = {
        {"f32", [](const DenseSource& from, ByteKernel) { return attnkit::core::f32_weights(from); }, {}},
        {"bf16", [](const DenseSource& from, ByteKernel) { return attnkit::core::bf16_weights(from); }, {}}};
    for (const auto& [kernel, by] : {std::pair{ByteKernel::amx, "amx"},
                                     {ByteKernel::vnni, "vnni"},
                                     {ByteKernel::avx_vnni, "avx_vnni"},
                                     {ByteKernel::avx2, "avx2"},
                                     {ByteKernel::dot, "dot"},
                                     {ByteKernel::neon, "neon"}})
      if (attnkit::core::has(kernel)) {
        types.emplace_back(std::string("int8/") + by, attnkit::core::int8_weights, kernel);
        types.emplace_back(std::string("int4/") + by, attnkit::core::int4_weights, kernel);
      }
    for (const auto& [name, make, kernel] : types)
      for (const auto& [inputs, outputs] : {std::pair{256, 256}, {384, 1536}, {1536, 384}, {512, 2048}, {512, 32000}})
        benchmark::RegisterBenchmark((name + "/" + std::to_string(inputs) + "x" + std::to_string(outputs) +
                                      "/threads:" + std::to_string(threads.workers()))
                                         .c_str(),
                                     time_dense, std::ref(threads), make, kernel, inputs, outputs, limit)
            ->ArgName("rows")
            ->ArgsProduct({{1, 4, 8, 16, 64, 128}})
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
