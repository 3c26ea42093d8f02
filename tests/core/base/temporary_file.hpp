// A file that is there as long as the object.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace attnkit::core {

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& bytes)
      : path_(testing::TempDir() + "attnkit-" + std::to_string(::getpid()) + "-" + std::to_string(count_++)) {
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  inline static int count_ = 0;
  std::string path_;
};

}  // namespace attnkit::core
