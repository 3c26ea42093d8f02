#include "core/session/blob.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"

namespace attnkit::core {
namespace {

static_assert(std::endian::native == std::endian::little, "blobs are written as memory has the numbers");

constexpr char magic[] = "ATTNKITS";
constexpr uint32_t version = 1;
constexpr size_t magic_bytes = 8, oldest_at = 12, size_at = 16, header = 24, section_header = 16;
constexpr size_t digest_bytes = sizeof(Digest);

template <class T>
T number_at(std::span<const std::byte> bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

BlobWriter::BlobWriter() {
  bytes(magic, magic_bytes);
  u32(version);
  u32(version);
  u64(0);
}

void BlobWriter::bytes(const void* data, uint64_t n) {
  const size_t before = out_.size();
  out_.resize(before + static_cast<size_t>(n));
  if (n > 0) std::memcpy(out_.data() + before, data, static_cast<size_t>(n));
}

void BlobWriter::text(std::string_view text) {
  u32(static_cast<uint32_t>(text.size()));
  bytes(text.data(), text.size());
}

void BlobWriter::section(std::string_view name) {
  end_section();
  bytes(name.data(), 4);
  u32(0);
  section_ = out_.size();
  u64(0);
}

void BlobWriter::end_section() {
  if (section_ == 0) return;
  const uint64_t size = out_.size() - section_ - sizeof(uint64_t);
  std::memcpy(out_.data() + section_, &size, sizeof size);
}

std::vector<std::byte> BlobWriter::finish() {
  end_section();
  const uint64_t size = out_.size() + digest_bytes;
  std::memcpy(out_.data() + size_at, &size, sizeof size);
  const Digest digest = sha256(out_);
  bytes(digest.data(), digest.size());
  return std::move(out_);
}

BlobReader::BlobReader(std::span<const std::byte> bytes) {
  if (bytes.size() < magic_bytes || std::memcmp(bytes.data(), magic, magic_bytes) != 0)
    fail(ATTN_INVALID, "these {} bytes are no saved session: they do not begin with \"{}\"", bytes.size(), magic);
  if (bytes.size() < header + digest_bytes)
    fail(ATTN_INVALID, "the saved session is truncated: it has {} bytes, its frame alone {}", bytes.size(),
         header + digest_bytes);
  if (const auto oldest = number_at<uint32_t>(bytes, oldest_at); oldest > version)
    fail(ATTN_INVALID,
         "the saved session needs a reader of version {}, this attnkit reads versions up to {}: update attnkit", oldest,
         version);
  if (const auto size = number_at<uint64_t>(bytes, size_at); size != bytes.size())
    fail(ATTN_INVALID, "the saved session is {}: it has {} bytes and says {}",
         size > bytes.size() ? "truncated" : "damaged", bytes.size(), size);
  const auto content = bytes.first(bytes.size() - digest_bytes);
  if (const Digest digest = sha256(content); std::memcmp(digest.data(), content.data() + content.size(), digest_bytes))
    fail(ATTN_INVALID, "the saved session is damaged: its checksum does not match its content");
  for (auto rest = content.subspan(header); !rest.empty();) {
    name_ = "frame";
    if (rest.size() < section_header) malformed();
    const auto size = number_at<uint64_t>(rest, 8);
    if (size > rest.size() - section_header) malformed();
    sections_.emplace_back(std::string(reinterpret_cast<const char*>(rest.data()), 4),
                           rest.subspan(section_header, static_cast<size_t>(size)));
    rest = rest.subspan(section_header + static_cast<size_t>(size));
  }
}

void BlobReader::section(std::string_view name) {
  const auto at = std::find_if(sections_.begin(), sections_.end(), [&](const auto& s) { return s.first == name; });
  name_ = name;
  if (at == sections_.end()) malformed();
  rest_ = at->second;
}

void BlobReader::malformed() const { fail(ATTN_INVALID, "the saved session is malformed in its section {}", name_); }

void BlobReader::copy(void* to, uint64_t n) {
  const auto from = bytes(n);
  if (n > 0) std::memcpy(to, from.data(), from.size());
}

std::span<const std::byte> BlobReader::bytes(uint64_t n) {
  if (n > rest_.size()) malformed();
  const auto taken = rest_.first(static_cast<size_t>(n));
  rest_ = rest_.subspan(static_cast<size_t>(n));
  return taken;
}

std::string BlobReader::text() {
  const auto taken = bytes(u32());
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

}  // namespace attnkit::core
