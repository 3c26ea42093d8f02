// Safetensors, GGUF, CTranslate2 and npz files, read strictly: no overlaps, duplicates or overflows; of safetensors no
// holes either.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/import/names.hpp"

namespace attnkit::core {

class MappedFile;

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", "F64", "I32", "Q4_K", ...
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
  std::string origin = {};                 // what the file calls it, where that is not its name
  const NameRule* layout = nullptr;        // how it lies there, where that is not as its shape says
  std::shared_ptr<const void> owner = {};  // of the data, mapped or unpacked; NULL: it goes with the weights
  std::span<const std::byte> scales = {};  // of CTranslate2's I8 and I16
  bool alias = false;         // another name of a tensor that is there as well, or one that a model may leave
  NameMap::Share share = {};  // which part of a tensor that has a layout
};

// The numbers of a tensor, in a mapped file or in memory of their own.
struct Numbers {
  std::shared_ptr<const void> owner;
  std::span<const float> values;
  explicit Numbers(std::vector<float> own = {});
  Numbers(std::shared_ptr<const void> owner, std::span<const float> values) : owner(std::move(owner)), values(values) {}
  const float* data() const { return values.data(); }
  size_t size() const { return values.size(); }
  bool empty() const { return values.empty(); }
};

// The bytes of a safetensors file of these tensors.
std::vector<std::byte> to_safetensors(std::span<const StoredTensor> tensors);

// The names of the scales of a tensor of type I8, or U8 with two numbers in a byte, and of the offsets that the latter
// may have.
std::string scale_of(const std::string& name);
std::string offset_of(const std::string& name);

// "2x3", "scalar": for messages.
std::string shape_text(const std::vector<int64_t>& shape);

class Weights {
 public:
  // With sha256 (lower-case hex) the whole file is read and verified, so that later changes of it cannot be seen;
  // without (empty) it is mapped.  path may be an index (.json) of several files.  names: what they call the tensors,
  // which go by our names then; NULL: by their own.  Throws Error (ATTN_INVALID) naming the file, the tensor and the
  // rule that is broken.
  static Weights open(const std::string& path, const std::string& sha256,
                      std::shared_ptr<const NameMap> names = nullptr);

  const StoredTensor* find(std::string_view name) const;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by name
  const std::string& path() const { return path_; }

  // Values as f32: from F32, F16, BF16, F64, what GGUF and CTranslate2 quantise, and I8, whose row o is multiplied by
  // entry o of the F32 tensor scale_of(name).  Throws Error: no such tensor, another shape, another type, no scales.
  std::vector<float> f32(std::string_view name, const std::vector<int64_t>& shape) const;
  // The same where they lie in a mapped file, if they lie there as f32.
  Numbers numbers(std::string_view name, const std::vector<int64_t>& shape) const;
  // Names the mapped file, or those of an index, and the names in it, in one line that another file or a change of
  // it does not have.
  std::string identity() const;
  // Gives back the memory of all that was read from mapped files.
  void release() const;

 private:
  void add_file(const std::string& path, const std::string& sha256);
  void add_index();
  void rename();
  const StoredTensor& checked(std::string_view name, const std::vector<int64_t>& shape) const;
  std::vector<float> scaled(const StoredTensor& t, const std::vector<int64_t>& shape) const;

  std::string path_;
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  std::vector<std::shared_ptr<const MappedFile>> mapped_;
  std::shared_ptr<const NameMap> names_;
  std::vector<StoredTensor> tensors_;
};

}  // namespace attnkit::core
