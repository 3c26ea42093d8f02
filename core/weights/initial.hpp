// What a stored tensor holds before training: how models without a weights file are made, from a seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace attnkit {

// Fills the tensor, the same for the same seed on every machine.
using Initial = std::function<void(uint64_t seed, std::vector<float>& values)>;

Initial constant(float value);
Initial normal(double deviation);
// Uniform in +-gain sqrt(6 / (in + out)) (Glorot and Bengio, AISTATS 2010).
Initial xavier(int64_t in, int64_t out, double gain = 1);

// A seed of its own for each name.
uint64_t seed_of(uint64_t seed, const std::string& name);

}  // namespace attnkit
