#include "hosts/cli/bench/limits.hpp"

#include <algorithm>
#include <attnkit/kernels/simd.hpp>
#include <barrier>
#include <thread>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/clock.hpp"

namespace attnkit::cli {
namespace {

using namespace core;

constexpr int rounds = 15;
constexpr double round_seconds = 2e-3;

// Keeps a result that nobody needs.
template <class V>
ATTNKIT_INLINE void keep(const V& value) {
  asm volatile("" : : "m"(value) : "memory");
}

// Enough independent chains for the latency of a multiply-add, few enough for the registers.
template <class Isa>
constexpr int chains = simd::is_pair<simd::Vec<Isa>> ? 5 : 12;

struct MultiplyAdds {
  int64_t steps;
  double* operations;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    simd::Vec<Isa> sums[chains<Isa>];
    for (int c = 0; c < chains<Isa>; ++c)
      sums[c] = simd::Vec<Isa>{} + (static_cast<float>(c) + 2.5f);  // none the same, none stays
    const simd::Vec<Isa> factor = simd::Vec<Isa>{} + 0.999f, summand = simd::Vec<Isa>{} + 2e-3f;
    for (int64_t i = 0; i < steps; ++i)
      for (auto& sum : sums) sum = sum * factor + summand;
    for (int c = 1; c < chains<Isa>; ++c) sums[0] += sums[c];
    keep(sums[0]);
    *operations = 2.0 * static_cast<double>(steps * chains<Isa> * simd::kLanes);
  }
};

struct Reads {
  const float* from;
  int64_t n, times;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    simd::Vec<Isa> sums[4] = {};
    for (int64_t t = 0; t < times; ++t) {
      for (int64_t i = 0; i + 4 * simd::kLanes <= n; i += 4 * simd::kLanes)
        for (int64_t c = 0; c < 4; ++c) sums[c] += simd::at<Isa>(from + i + c * simd::kLanes);
      for (int64_t c = 1; c < 4; ++c) sums[0] += sums[c];
      keep(sums[0]);
    }
  }
};

// work(thread) returns how much it did; all threads begin a round together.  The best round counts.
template <class Work>
double best_rate(uint32_t threads, const Work& work) {
  std::vector<double> rates(static_cast<size_t>(rounds) * threads);
  std::barrier begin(threads);
  const auto run = [&](uint32_t thread) {
    for (size_t round = 0; round < rounds; ++round) {
      begin.arrive_and_wait();
      const Clock::time_point start = Clock::now();
      double done = 0;
      do done += work(thread);
      while (seconds_since(start) < round_seconds);
      rates[round * threads + thread] = done / seconds_since(start);
    }
  };
  std::vector<std::thread> others;
  for (uint32_t t = 1; t < threads; ++t) others.emplace_back(run, t);
  run(0);
  for (std::thread& other : others) other.join();
  double best = 0;
  for (size_t round = 0; round < rounds; ++round) {
    double all = 0;
    for (uint32_t t = 0; t < threads; ++t) all += rates[round * threads + t];
    best = std::max(best, all);
  }
  return best;
}

}  // namespace

double arithmetic_limit(uint32_t threads) {
  return best_rate(threads, [](uint32_t) {
    double operations = 0;
    simd::dispatch(MultiplyAdds{20000, &operations});
    return operations;
  });
}

double reading_limit(uint32_t threads, uint64_t bytes) {
  // Whole vectors for every thread.
  const int64_t n = std::max<int64_t>(256, static_cast<int64_t>(bytes / sizeof(float) / threads)) / 64 * 64;
  const int64_t times = 1 + (int64_t{1} << 16) / n;
  std::vector<Buffer> memory(threads);
  for (Buffer& part : memory) std::fill_n(part.get<float>(n), n, 1.0f);
  return best_rate(threads, [&](uint32_t thread) {
    simd::dispatch(Reads{memory[thread].get<float>(n), n, times});
    return static_cast<double>(times * n) * sizeof(float);
  });
}

}  // namespace attnkit::cli
