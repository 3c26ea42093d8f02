// A safetensors file, read strictly: exact coverage of the data, no overlaps, holes, duplicates or overflows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", "F64", "I32", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

// The bytes of a safetensors file of these tensors.
std::vector<std::byte> to_safetensors(std::span<const StoredTensor> tensors);

// "2x3", "scalar": for messages.
std::string shape_text(const std::vector<int64_t>& shape);

class Weights {
 public:
  // Reads the whole file (so that later changes of it cannot be seen) and verifies sha256 (lower-case hex; empty: not
  // given). Throws Error (ATTN_INVALID) naming the file, the tensor and the rule that is broken.
  static Weights open(const std::string& path, const std::string& sha256);

  const StoredTensor* find(std::string_view name) const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by name
  const std::string& path() const { return path_; }

  // Values as f32 (from F32, F16, BF16, F64).  Throws Error: no such tensor, another shape, a type that is no float.
  std::vector<float> f32(std::string_view name, const std::vector<int64_t>& shape) const;

 private:
  std::string path_;
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace attnkit
