#include "core/weights/initial.hpp"

#include <attnkit/kernels/random.hpp>
#include <cmath>

namespace attnkit {

Initial constant(float value) {
  return [value](uint64_t, std::vector<float>& values) { values.assign(values.size(), value); };
}

Initial normal(double deviation) {
  return [deviation](uint64_t seed, std::vector<float>& values) {
    Random random(seed);
    for (float& x : values) x = static_cast<float>(deviation * random.normal());
  };
}

Initial xavier(int64_t in, int64_t out, double gain) {
  const double bound = gain * std::sqrt(6.0 / static_cast<double>(in + out));
  return [bound](uint64_t seed, std::vector<float>& values) {
    Random random(seed);
    for (float& x : values) x = static_cast<float>(bound * (2 * random.uniform() - 1));
  };
}

// FNV-1a, 64 bits: names differ, so seeds do.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return seed ^ hash;
}

}  // namespace attnkit
