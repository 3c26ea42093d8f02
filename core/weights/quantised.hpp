// Numbers in blocks with scales of their own, as GGUF has them, made f32.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

// Whether there are blocks of that type: "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K".
bool is_quantised(const std::string& type);
// The numbers of whole blocks of such a type.
std::vector<float> dequantised(const std::string& type, std::span<const std::byte> blocks);

}  // namespace attnkit::core
