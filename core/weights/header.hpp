// The JSON header of a safetensors file as a list of tensors, before anything is known about the data behind it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit {

struct HeaderTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::array<uint64_t, 2> offsets{};  // begin and end, in bytes of the data
};

// Throws Error (ATTN_INVALID) opened by path: no JSON, a key twice on any level, unknown or missing fields, wrong
// types.
std::vector<HeaderTensor> read_header(std::string_view json, const std::string& path);

}  // namespace attnkit
