// CTranslate2's model.bin: what model it is of, its settings, and where its tensors lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

struct Ctranslate2Tensor {
  std::string name;
  std::string type;  // "F32", "F16", "BF16", "I8", "I16", "I32"
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  // Of I8 and I16: f32, little-endian, one for each row or for all; a number is what is stored divided by its scale.
  std::span<const std::byte> scales = {};
  bool alias = false;  // another name of a tensor that is there as well
};

struct Ctranslate2 {
  // "spec": "WhisperSpec"; settings by name; "decoder/embeddings/weight[0]": the size of a tensor;
  // "encoder/layer_*": how many there are.
  nlohmann::json metadata;
  std::vector<Ctranslate2Tensor> tensors;

  // Of version 6, little-endian.  Tensors refer to the bytes.  Throws Error (ATTN_INVALID) naming the file, the
  // variable, and what is wrong or not supported.
  static Ctranslate2 read(std::span<const std::byte> bytes, const std::string& path);
};

// Whether a file begins as one does, of whatever version.
bool is_ctranslate2(std::span<const std::byte> bytes);

}  // namespace attnkit::core
