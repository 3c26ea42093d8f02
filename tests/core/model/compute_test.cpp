#include "core/model/compute.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "noise.hpp"

namespace attnkit::core {
namespace {

constexpr int64_t inputs = 8, width = 4096;  // inner values of 64 rows fill what a worker takes at a time

Dense layer(int64_t from, int64_t to, unsigned seed) { return {from, to, noise(from * to, seed), noise(to, seed + 1)}; }

// What rows add depends neither on how many there are, nor on the workers, nor on whether y is x; and it is what three
// layers by themselves give.
TEST(HostCompute, FeedsRowsForwardInAnyNumber) {
  const Dense gate = layer(inputs, width, 1), in = layer(inputs, width, 3), out = layer(width, inputs, 5);
  Threads one(1), two(2);
  constexpr int64_t most = 300;
  const std::vector<float> x = noise(most * inputs, 7), before = noise(most * inputs, 8);
  for (const Dense* by : {static_cast<const Dense*>(nullptr), &gate}) {
    std::vector<float> inner(most * width), plain(most * width), apart = before, of_x = x;
    (by ? *by : in).apply(one, x.data(), inputs, inner.data(), width, most, Activation::silu);
    if (by) {
      in.apply(one, x.data(), inputs, plain.data(), width, most);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] *= plain[i];
    }
    out.add(one, inner.data(), width, apart.data(), inputs, most);
    out.add(one, inner.data(), width, of_x.data(), inputs, most);
    for (Threads* threads : {&one, &two})
      for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{129}, most}) {
        HostCompute compute(*threads);
        Buffer room;
        std::vector<float> y = before, in_place = x;
        compute.feed_forward(by, in, out, x.data(), DeviceType::f32, y.data(), rows, Activation::silu, room);
        compute.feed_forward(by, in, out, in_place.data(), DeviceType::f32, in_place.data(), rows, Activation::silu,
                             room);
        const int64_t n = rows * inputs;
        EXPECT_TRUE(std::equal(y.begin(), y.begin() + n, apart.begin())) << rows;
        EXPECT_TRUE(std::equal(y.begin() + n, y.end(), before.begin() + n)) << rows;
        EXPECT_TRUE(std::equal(in_place.begin(), in_place.begin() + n, of_x.begin())) << rows;
      }
  }
}

}  // namespace
}  // namespace attnkit::core
