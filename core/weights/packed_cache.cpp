// The file: 64 bytes, "attnkit packed 1", the length of a header and that of the whole file in 8 bytes each, the sum of
// all behind them in 8; then the header, a line for what it is of and one for each layer, "offset bytes name"; then the
// layers at multiples of 64.
#include "core/weights/packed_cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view magic = "attnkit packed 1";
constexpr uint64_t line = 64;

struct Head {
  char magic[16];
  uint64_t header_bytes, file_bytes, sum;
  char reserved[24];
};
static_assert(sizeof(Head) == line);

uint64_t rounded_up(uint64_t n) { return (n + line - 1) / line * line; }

// Against damage, not malice; fast enough to look at all weights while a model opens.  Bytes in any pieces of whole
// lines.
class Sum {
 public:
  void add(std::span<const std::byte> bytes) {
    for (size_t i = 0; i + line <= bytes.size(); i += line)
      for (size_t l = 0; l < lanes; ++l) {
        uint64_t word;
        std::memcpy(&word, bytes.data() + i + l * sizeof word, sizeof word);
        lanes_[l] = (lanes_[l] ^ word) * 0x9E3779B97F4A7C15u;
      }
    if (const size_t rest = bytes.size() % line) {
      std::byte last[line] = {};
      std::copy(bytes.end() - static_cast<std::ptrdiff_t>(rest), bytes.end(), last);
      add(last);
    }
  }
  uint64_t value() const {
    uint64_t all = 0;
    for (const uint64_t lane : lanes_) all = (all ^ lane ^ lane >> 29) * 0xBF58476D1CE4E5B9u;
    return all;
  }

 private:
  static constexpr size_t lanes = line / sizeof(uint64_t);
  uint64_t lanes_[lanes] = {1, 2, 3, 4, 5, 6, 7, 8};
};

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view take_line(std::string_view& text) {
  const std::string_view taken = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), taken.size() + 1));
  return taken;
}

}  // namespace

PackedCache::PackedCache(std::string path, std::string of) : path_(std::move(path)), of_(std::move(of)) {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) return;
  try {
    if (!S_ISREG(status.st_mode)) fail(ATTN_INVALID, "{}: is no regular file", path_);
    file_ = MappedFile::open(path_);
    read();
  } catch (const Error& e) {
    problem_ = e.what();
    found_.clear();
    file_.reset();
  }
}

void PackedCache::read() {
  const std::span<const std::byte> bytes = file_->bytes();
  if (!file_->own()) fail(ATTN_INVALID, "{}: is another user's, or others may write it", path_);
  Head head{};
  if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
  if (std::string_view(head.magic, sizeof head.magic) != magic)
    fail(ATTN_INVALID, "{}: is no file of packed weights", path_);
  if (head.file_bytes != bytes.size() || head.header_bytes > bytes.size() - sizeof head)
    fail(ATTN_INVALID, "{}: has {} bytes in place of {}: it is cut off", path_, bytes.size(), head.file_bytes);
  std::string_view text = as_text(bytes.subspan(sizeof head, head.header_bytes));
  if (take_line(text) != of_) fail(ATTN_INVALID, "{}: is of other weights, or was made by another version", path_);
  Sum sum;
  sum.add(bytes.subspan(sizeof head));
  if (sum.value() != head.sum) fail(ATTN_INVALID, "{}: is damaged", path_);
  while (!text.empty()) {
    std::string_view entry = take_line(text);
    std::optional<uint64_t> numbers[2];
    for (auto& number : numbers) {
      const size_t end = std::min(entry.find(' '), entry.size());
      number = parse_number<uint64_t>(entry.substr(0, end));
      entry.remove_prefix(std::min(entry.size(), end + 1));
    }
    const auto [offset, size] = numbers;
    if (!offset || !size || *offset % line != 0 || *offset > bytes.size() || *size > bytes.size() - *offset)
      fail(ATTN_INVALID, "{}: is damaged", path_);
    found_[std::string(entry)] = {bytes.subspan(*offset, *size), file_};
  }
}

std::span<const std::byte> PackedCache::find(const std::string& layer) const {
  const auto at = found_.find(layer);
  return at == found_.end() ? std::span<const std::byte>() : at->second.bytes;
}

void PackedCache::drop(const std::string& layer) { found_.erase(layer); }

std::shared_ptr<const void> PackedCache::owner() const { return file_; }

void PackedCache::add(const std::string& layer, std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  added_[layer] = {bytes, std::move(owner)};
}

// Another placement of the same weights lacks a few layers; a file is not written anew for these.
bool PackedCache::wants_writing() const {
  uint64_t found = 0, added = 0;
  for (const auto& [name, layer] : found_) found += layer.bytes.size();
  for (const auto& [name, layer] : added_) added += layer.bytes.size();
  return added > 0 && added >= found / 8;
}

std::string PackedCache::write() const {
  std::map<std::string, Layer> all = found_;
  all.insert(added_.begin(), added_.end());
  const auto reason = [](int error) { return std::generic_category().message(error); };
  // Offsets have 20 digits, so that they do not change the length of what says them.
  std::string header = of_ + "\n";
  uint64_t header_bytes = header.size();
  for (const auto& [name, layer] : all) header_bytes += 20 + 1 + 20 + 1 + name.size() + 1;
  uint64_t end = rounded_up(sizeof(Head) + header_bytes);
  for (const auto& [name, layer] : all) {
    header += fmt::format("{:020} {:020} {}\n", end, layer.bytes.size(), name);
    end = rounded_up(end + layer.bytes.size());
  }
  Head head{};
  std::copy(magic.begin(), magic.end(), head.magic);
  head.header_bytes = header.size();
  head.file_bytes = end;
  header.resize(rounded_up(sizeof head + header.size()) - sizeof head, '\0');

  Sum sum;
  sum.add(std::as_bytes(std::span(header)));
  for (const auto& [name, layer] : all) sum.add(layer.bytes);
  head.sum = sum.value();
  std::error_code failed;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  std::filesystem::create_directories(folder, failed);
  // One writer; a killed one leaves the name to the next.
  const std::string part = path_ + ".part";
  Descriptor file(::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return fmt::format("{}: {}", part, reason(errno));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return {};
  struct stat ours {
  }, named{};
  if (::fstat(file.get(), &ours) != 0 || ::stat(part.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
      ours.st_uid != ::geteuid() || !S_ISREG(ours.st_mode) || ours.st_nlink != 1)
    return {};  // another one has renamed it meanwhile, or it is not ours alone

  const char zeros[line] = {};
  int error = ::ftruncate(file.get(), 0) == 0 ? 0 : errno;
  const auto put = [&](std::string_view bytes) {
    if (error == 0) error = write_all(file.get(), bytes);
  };
  put({reinterpret_cast<const char*>(&head), sizeof head});
  put(header);
  for (const auto& [name, layer] : all) {
    put(as_text(layer.bytes));
    put({zeros, rounded_up(layer.bytes.size()) - layer.bytes.size()});
  }
  if (error == 0 && ::rename(part.c_str(), path_.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(part.c_str());
  return fmt::format("{}: {}", part, reason(error));
}

}  // namespace attnkit::core
