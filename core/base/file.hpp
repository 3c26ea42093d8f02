// Whole files, read at once or mapped; paths; the file that this code lies in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

// Returns all bytes of a regular file (or a link to one); pipes, devices and folders are refused without waiting for
// them. Throws Error (ATTN_INVALID) naming the file and the reason; also when it holds more than limit bytes.
std::vector<std::byte> read_file(const std::string& path, uint64_t limit);

// A regular file's bytes where the kernel keeps them: nothing is read before it is looked at, and processes share it.
// Whoever shortens the file meanwhile ends the process that looks there (SIGBUS); renaming another over it does not.
class MappedFile {
 public:
  // Throws Error as read_file does.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Which file it was when it was opened: device, inode, size and when it was changed.
  const std::string& identity() const { return identity_; }
  // Whether it is this user's, and nobody else may write it.
  bool own() const { return own_; }
  // Gives back the memory of all that was looked at so far; it can be looked at again.
  void release() const;

 private:
  MappedFile() = default;
  std::span<const std::byte> bytes_;
  std::string identity_;
  bool own_ = false;
};

// Returns attnkit/ in the user's folder for caches.  Empty where there is no such folder, or the program runs with more
// rights than its user.
std::string cache_folder();

// Returns path behind dir, or path itself when it is absolute.
std::string join_path(const std::string& dir, const std::string& path);

// Returns the absolute path of the file this code was mapped from: libattnkit, or the program it is linked into.  Empty
// if unknown.  Asks the kernel: the dynamic linker may only know a path relative to a working directory that has
// changed since.
std::string own_file();

}  // namespace attnkit::core
