// GGUF files: their metadata, and where their tensors lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

struct GgufTensor {
  std::string name;
  std::string type;            // "F32", "Q4_K"
  std::vector<int64_t> shape;  // the outermost first, the other way round than in the file
  std::span<const std::byte> data;
};

struct Gguf {
  nlohmann::json metadata;  // an object of keys and their values
  std::vector<GgufTensor> tensors;

  // Of version 2 or 3, little-endian.  Tensors refer to the bytes.  Throws Error (ATTN_INVALID) naming the file, the
  // key or tensor, and what is wrong or not supported.
  static Gguf read(std::span<const std::byte> bytes, const std::string& path);
};

// Whether a file begins as one does.
bool is_gguf(std::span<const std::byte> bytes);

// A file of the same metadata without tensors: a vocabulary by itself.  Throws as Gguf::read does.
std::string without_tensors(std::span<const std::byte> gguf, const std::string& path);

// Of a row of that type: so many numbers in so many bytes; nothing: not supported.
struct GgufBlock {
  const char* type;
  uint32_t id;  // in the file
  int64_t numbers;
  size_t bytes;
};
constexpr GgufBlock gguf_blocks[] = {
    {"F32", 0, 1, 4},    {"F16", 1, 1, 2},       {"Q4_0", 2, 32, 18},    {"Q4_1", 3, 32, 20},
    {"Q8_0", 8, 32, 34}, {"Q4_K", 12, 256, 144}, {"Q6_K", 14, 256, 210}, {"BF16", 30, 1, 2},
};

}  // namespace attnkit::core
