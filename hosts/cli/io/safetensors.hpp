// Safetensors whose tensors a host takes over as they are.  The library has read these bytes strictly.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::cli {

struct HostTensor {
  std::string name;
  nlohmann::json fields;   // dtype, shape and, in the file it comes from, data_offsets
  std::string_view bytes;  // as long as the file's

  size_t alignment() const;
};

struct Safetensors {
  nlohmann::json metadata;
  std::vector<HostTensor> tensors;

  const HostTensor* find(const std::string& name) const;  // NULL: there is none
};

// Throws std::out_of_range and nlohmann::json::exception: no safetensors.
Safetensors parse_safetensors(std::string_view bytes);
std::string to_safetensors(const nlohmann::json& metadata, std::vector<HostTensor> tensors);

}  // namespace attnkit::cli
