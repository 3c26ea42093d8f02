// NumPy's npz files: arrays in a ZIP archive, as Marian saves its models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

struct NpzTensor {
  std::string name;            // without .npy
  std::string type;            // "F32", "F16", "F64", "I8", "U8", "I16", "I32", "I64", ...
  std::vector<int64_t> shape;  // rows first
  std::span<const std::byte> data;
  std::shared_ptr<const void> owner = {};  // of data that was compressed; NULL: it lies in the file
};

// Stored or deflated entries of one disk, little-endian arrays in C's order.  Tensors refer to the bytes or own theirs.
// Throws Error (ATTN_INVALID) naming the file, the entry, and what is wrong or not supported.
std::vector<NpzTensor> read_npz(std::span<const std::byte> bytes, const std::string& path);

// Whether a file begins as one does.
bool is_npz(std::span<const std::byte> bytes);

}  // namespace attnkit::core
