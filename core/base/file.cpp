#include "core/base/file.hpp"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

[[noreturn]] void fail_with_errno(const std::string& path, const char* what) {
  fail(ATTN_INVALID, "{}: {}: {}", path, what, std::generic_category().message(errno));
}

struct stat status_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_with_errno(path, "cannot be examined");
  if (!S_ISREG(status.st_mode)) fail(ATTN_INVALID, "{}: is no regular file", path);
  return status;
}

Descriptor open_to_read(const std::string& path) {
  if (path.empty()) fail(ATTN_INVALID, "\"\" is no name of a file");
  if (path.find('\0') != std::string::npos) fail(ATTN_INVALID, "{}: holds a NUL byte", path.c_str());
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) fail_with_errno(path, "cannot be opened");
  return file;
}

}  // namespace

std::vector<std::byte> read_file(const std::string& path, uint64_t limit) {
  const Descriptor file = open_to_read(path);
  const auto size = static_cast<uint64_t>(status_of(file.get(), path).st_size);
  if (size > limit) fail(ATTN_INVALID, "{}: holds {} bytes; at most {} are allowed", path, size, limit);
  std::vector<std::byte> bytes(size);
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_with_errno(path, "cannot be read");
    if (n == 0) fail(ATTN_INVALID, "{}: became shorter while it was read", path);
    done += static_cast<size_t>(n);
  }
  return bytes;
}

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file = open_to_read(path);
  const struct stat status = status_of(file.get(), path);
  const auto made = std::shared_ptr<MappedFile>(new MappedFile());
  // ctime, which no program can set, changes with every write and when another file takes the name.
  made->identity_ =
      fmt::format("{}:{}:{}:{}.{:09}:{}.{:09}", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                  status.st_mtim.tv_nsec, status.st_ctim.tv_sec, status.st_ctim.tv_nsec);
  made->own_ = status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return made;
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (at == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();
  if (at == MAP_FAILED) fail_with_errno(path, "cannot be mapped into memory");
  made->bytes_ = {static_cast<const std::byte*>(at), size};
  return made;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::release() const {
  if (!bytes_.empty()) ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

std::string cache_folder() {
  if (getauxval(AT_SECURE) != 0) return {};
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/attnkit/";
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/attnkit/";
  return {};
}

std::string join_path(const std::string& dir, const std::string& path) {
  if (path.empty() || path.front() == '/' || dir.empty()) return path;
  return dir.back() == '/' ? dir + path : dir + "/" + path;
}

std::string own_file() {
  const auto here = reinterpret_cast<uintptr_t>(&own_file);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2 || here < begin || here >= end) continue;
    const auto path = line.find('/');
    return path == std::string::npos ? std::string() : line.substr(path);
  }
  return {};
}

}  // namespace attnkit::core
