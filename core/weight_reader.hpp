// Hands out a weights file's tensors by name, reporting every one that is missing or wrong, and at the end every one
// that nobody took.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/diagnostics.hpp"
#include "core/weights.hpp"

namespace attnkit {

// Thrown after the last diagnostic when it makes no sense to go on.
struct Stopped {};

class WeightReader {
 public:
  WeightReader(const Weights& weights, Diagnostics& diagnostics, Place place)
      : weights_(weights), diagnostics_(diagnostics), place_(place) {}

  bool has(const std::string& name) const { return weights_.find(name) != nullptr; }
  // Zeros of that shape, after a diagnostic, where the file has no such tensor.
  std::vector<float> f32(const std::string& name, const std::vector<int64_t>& shape);
  // The bytes of an integer tensor ("I32", "I64").
  std::vector<std::byte> integers(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape);
  void warn(std::string message, std::string help);
  // Reports tensors nobody took, unless ignorable(name).
  void finish(const std::function<bool(const std::string&)>& ignorable);

 private:
  void wrong(int code, const std::string& message, const std::string& help, size_t zeros);
  const Weights& weights_;
  Diagnostics& diagnostics_;
  Place place_;
  std::set<std::string> taken_;
  int problems_ = 0;
};

}  // namespace attnkit
