// The tensors that a model uses, out of a weights file that may serve other placements as well.
#pragma once

#include <attnkit/attnkit.hpp>
#include <string>

namespace attnkit::cli {

struct UsedWeights {
  std::string bytes;             // of a safetensors file
  std::string digest;            // SHA-256 of the file that they come from; empty: there is none
  size_t tensors = 0, left = 0;  // written; in the file, but of no use to the model
};

// Whether the file is a safetensors file, not an index of several or of another format that the library reads.
bool is_safetensors(const std::string& file);

// A vocabulary's file as a bundle has it: of a GGUF file the metadata alone, since the tensors are in the new weights.
std::string vocabulary_bytes(const std::string& file);

// file: the model's, of safetensors; empty: there is none such, and all is f32.  Tensors keep the type they have there;
// what a seed made is f32.  Throws Failure (weights): the file was changed since the model was opened.
UsedWeights used_weights(const Model& model, const std::string& file);

}  // namespace attnkit::cli
