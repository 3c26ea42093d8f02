// Files that are read, and the things that are no files.
#include "core/base/file.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <new>

#include "core/base/error.hpp"
#include "tests/core/base/temporary_file.hpp"
#include "tests/support/sanitized.hpp"

namespace attnkit::core {
namespace {

TEST(File, IsReadWhole) {
  const TemporaryFile file(std::string("a\0b", 3));
  EXPECT_EQ(read_file(file.path(), 3).size(), 3u);
  EXPECT_THROW(read_file(file.path(), 2), Error);
  EXPECT_TRUE(read_file(TemporaryFile("").path(), 0).empty());
}

TEST(File, OnlyRegularFilesAreRead) {
  EXPECT_THROW(read_file("/nowhere/at/all", 9), Error);
  EXPECT_THROW(read_file(testing::TempDir(), 9), Error);
  EXPECT_THROW(read_file("/dev/zero", 9), Error);
  EXPECT_THROW(read_file(std::string("/etc/passwd\0x", 13), 1 << 20), Error);
  const std::string pipe = testing::TempDir() + "attnkit-pipe-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(read_file(pipe, 9), Error);  // and does not wait for a writer
  ::unlink(pipe.c_str());
}

TEST(File, WithoutRoomToMapItMemoryIsOut) {
  if (sanitized) GTEST_SKIP() << "sanitizers reserve address space of their own";
  const TemporaryFile file("");
  std::filesystem::resize_file(file.path(), uintmax_t{1} << 40);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{rlim_t{1} << 39, rlim_t{1} << 39};
    setrlimit(RLIMIT_AS, &limit);
    try {
      MappedFile::open(file.path());
    } catch (const std::bad_alloc&) {
      _exit(0);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(File, RelativePathsStartFromTheFolder) {
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
  EXPECT_EQ(join_path("/a/", "b"), "/a/b");
  EXPECT_EQ(join_path("/a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace attnkit::core
