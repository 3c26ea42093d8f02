// A session as bytes, to be continued by any process that has the same model.
//
//   8 bytes "ATTNKITS"
//   u32 version, u32 the oldest version of a reader that understands it, u64 bytes of the whole blob
//   sections: 4 letters, u32 0, u64 bytes, content
//   32 bytes SHA-256 of everything before
//
// All numbers are little-endian.  A later version may add sections, which older readers skip, and fields at the end of
// sections, which they do not look at; where that would not do it raises the oldest version.  The sections:
//
//   MODL  what the model is, as pairs of texts: dimensions, per block the mechanism with its options, the revision of
//         its state, its heads and number type, and a digest of all weights
//   ROWS  per row its position and whether it ended; TARG  the target's length; LAST  the logits after the last tokens
//   SRCE  the source's length and what is kept of it; AUXS  sequences that the encoder gave out
//   SPCH  of a model that takes speech: what was read, how much of it, and what of it makes no row of the encoder yet
//   STAT  per block and row the state's bytes, as many as the mechanism declares for that position
//
// The digest tells damage, not malice: a blob is to be trusted like the process that wrote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace attnkit::core {

class BlobWriter {
 public:
  BlobWriter();
  // Begins a section of this name (4 letters).
  void section(std::string_view name);
  void u32(uint32_t value) { number(value); }
  void u64(uint64_t value) { number(value); }
  void f64(double value) { number(value); }
  void text(std::string_view text);
  void bytes(const void* data, uint64_t n);  // without their number
  template <class T>
  void numbers(const std::vector<T>& values) {  // with their number
    u64(values.size());
    bytes(values.data(), values.size() * sizeof(T));
  }
  std::vector<std::byte> finish();

 private:
  template <class T>
  void number(T value) {
    bytes(&value, sizeof value);
  }
  void end_section();
  std::vector<std::byte> out_;
  size_t section_ = 0;  // where the open section's size stands; 0: none is open
};

class BlobReader {
 public:
  // Throws Error (ATTN_INVALID) unless the frame and the digest are right.  bytes must outlive the reader.
  explicit BlobReader(std::span<const std::byte> bytes);
  // Goes to the beginning of that section.  Throws Error when there is none.
  void section(std::string_view name);
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  double f64() { return number<double>(); }
  std::string text();
  bool at_end() const { return rest_.empty(); }  // of the section
  std::span<const std::byte> bytes(uint64_t n);
  template <class T>
  std::vector<T> numbers() {
    const uint64_t n = u64();
    if (n > rest_.size() / sizeof(T)) malformed();
    std::vector<T> values(static_cast<size_t>(n));
    copy(values.data(), n * sizeof(T));
    return values;
  }

 private:
  [[noreturn]] void malformed() const;
  void copy(void* to, uint64_t n);
  template <class T>
  T number() {
    T value;
    copy(&value, sizeof value);
    return value;
  }
  std::vector<std::pair<std::string, std::span<const std::byte>>> sections_;
  std::string name_;
  std::span<const std::byte> rest_;
};

}  // namespace attnkit::core
