// The weights of a model in fewer bits.
#pragma once

#include <string>
#include <vector>

namespace attnkit::cli {

// The error of a dense layer or an embedding: RMS(w - w') / RMS(w), w' the weights as they are kept.
struct LayerLoss {
  std::string name;
  std::vector<int64_t> shape;
  double error;
};

struct QuantisedWeights {
  std::string bytes;  // of a safetensors file
  std::vector<LayerLoss> layers;
  size_t whole = 0;  // layers that stay as they are and are rounded when the model opens
};

// safetensors: the bytes of a file of a model's tensors.  type: "bf16", "int8" or "int4".  Dense layers and embeddings
// become
//   bf16: the nearest number with 8 significant bits
//   int8: per output round(w / s) from -127 to 127 (type I8), s = max |w| / 127 in f32 beside it ("<name>.scale")
//   int4: per output and 32 inputs core/base/int4.hpp (type U8, two numbers and 8 each in a byte, the first in its low
//         half), with scales in the same way; convolutions stay
// which is how [weights] type rounds them while it loads: the same bits either way.  Everything else stays, as do
// projections that an adapter scales, which are rounded with it.  Throws std::out_of_range and
// nlohmann::json::exception: no safetensors.
QuantisedWeights quantised(const std::string& safetensors, const std::string& type);

}  // namespace attnkit::cli
