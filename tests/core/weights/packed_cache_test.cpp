// The file of packed layers by itself: what is kept, what is not believed, and what happens when it cannot be written.
#include "core/weights/packed_cache.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <fstream>

#include "core/base/file.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> some_bytes(size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>((i * 2654435761u + seed) >> 13);
  return bytes;
}

class PackedFile : public testing::Test {
 protected:
  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/cache/one/x";
  const std::vector<std::byte> big_ = some_bytes(3'000'001, 1), small_ = some_bytes(77, 2);

  std::string make(const std::string& of = "these") const {
    PackedCache cache(path_, of);
    cache.add("big", big_, nullptr);
    cache.add("a small one", small_, nullptr);
    EXPECT_TRUE(cache.wants_writing());
    return cache.write();
  }
  std::string problem(const std::string& of = "these") const {
    const PackedCache cache(path_, of);
    EXPECT_EQ(cache.find("big").empty(), !cache.problem().empty() || !fs::exists(path_));
    return cache.problem();
  }
  void expect_problem(const std::string& part, const std::string& of = "these") const {
    const std::string said = problem(of);
    EXPECT_NE(said.find(part), std::string::npos) << said;
    EXPECT_NE(said.find(path_), std::string::npos) << said;
  }
  void change(size_t at, char by) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const char c = static_cast<char>(file.get() ^ by);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(c);
  }
};

TEST_F(PackedFile, GivesBackWhatWasAdded) {
  EXPECT_EQ(problem(), "") << "none is there";
  ASSERT_EQ(make(), "");
  const PackedCache cache(path_, "these");
  EXPECT_EQ(cache.problem(), "");
  for (const auto& [name, bytes] : {std::pair("big", &big_), std::pair("a small one", &small_)}) {
    const auto found = cache.find(name);
    EXPECT_TRUE(std::ranges::equal(found, *bytes)) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(found.data()) % 64, 0u);
  }
  EXPECT_TRUE(cache.find("another").empty());
  EXPECT_FALSE(cache.wants_writing());
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path() + "/cache/one"), {}), 1) << "nothing beside it";
}

TEST_F(PackedFile, GrowsByWhatAnotherPlacementPacks) {
  ASSERT_EQ(make(), "");
  PackedCache cache(path_, "these");
  cache.add("few", small_, nullptr);
  EXPECT_FALSE(cache.wants_writing()) << "not worth a new file";
  const std::vector<std::byte> more = some_bytes(2'000'000, 3);
  cache.add("more", more, nullptr);
  ASSERT_TRUE(cache.wants_writing());
  ASSERT_EQ(cache.write(), "");
  EXPECT_TRUE(std::ranges::equal(cache.find("big"), big_)) << "what is mapped stays";
  const PackedCache both(path_, "these");
  EXPECT_TRUE(std::ranges::equal(both.find("big"), big_));
  EXPECT_TRUE(std::ranges::equal(both.find("more"), more));
}

TEST_F(PackedFile, OfOtherWeightsIsNotUsedAndReplaced) {
  ASSERT_EQ(make("those"), "");
  expect_problem("is of other weights");
  ASSERT_EQ(make(), "");
  EXPECT_EQ(problem(), "");
}

TEST_F(PackedFile, CutOffAnywhereIsNotUsed) {
  ASSERT_EQ(make(), "");
  const auto size = fs::file_size(path_);
  for (const uintmax_t left :
       {size - 1, size - 64, size / 2, uintmax_t{100}, uintmax_t{64}, uintmax_t{63}, uintmax_t{0}}) {
    fs::resize_file(path_, left);
    expect_problem(left < 64 ? "is no file of packed weights" : "is cut off");
  }
  ASSERT_EQ(make(), "");
  fs::resize_file(path_, size + 1);
  expect_problem("has 3000");
}

TEST_F(PackedFile, NoByteMayFlip) {
  ASSERT_EQ(make(), "");
  const size_t size = fs::file_size(path_);
  for (size_t at = 0; at < size; at += at < 400 ? 1 : size / 37) {
    if (at >= 40 && at < 64) continue;  // reserved
    change(at, 0x20);
    EXPECT_NE(problem(), "") << at;
    change(at, 0x20);
  }
  EXPECT_EQ(problem(), "");
}

// Behind a right sum: a line of the caller's as if it were that of a layer.
TEST_F(PackedFile, LayersLieWithinTheFile) {
  for (const char* line : {"64 3000500 x", "3000512 64 x", "64 18446744073709551615 x", "1 1 x", "x"}) {
    ASSERT_EQ(make(std::string("these\n") + line), "");
    expect_problem("is damaged");
  }
}

TEST_F(PackedFile, WhatIsNotOursIsNotUsed) {
  fs::create_directories(fs::path(path_).parent_path());
  std::ofstream(path_) << "a letter to somebody, which is longer than 64 bytes and no cache of anything at all";
  expect_problem("is no file of packed weights");
  fs::remove(path_);
  fs::create_directory(path_);
  expect_problem("is no regular file");
  EXPECT_NE(make(), "") << "a folder cannot be replaced";
  fs::remove(path_);
  ASSERT_EQ(make(), "");
  fs::permissions(path_, fs::perms::group_write, fs::perm_options::add);
  expect_problem("others may write it");
  ASSERT_EQ(make(), "");
  EXPECT_EQ(problem(), "");
  fs::rename(path_, path_ + "2");
  fs::create_symlink(path_ + "2", path_);
  expect_problem("is no regular file");
}

TEST_F(PackedFile, AFullDiskLeavesNoHalfFile) {
  ASSERT_EQ(make("those"), "");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string said = make();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
  EXPECT_NE(said.find("too large"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(path_ + ".part"));
  EXPECT_EQ(problem("those"), "") << "the old one is still whole";
}

TEST_F(PackedFile, AFolderThatCannotBeMadeIsSaid) {
  std::ofstream(folder_.path() + "/cache") << "in the way";
  EXPECT_NE(make(), "");
  EXPECT_EQ(problem(), "");
}

TEST_F(PackedFile, AKilledWritersFileIsWrittenOver) {
  fs::create_directories(fs::path(path_).parent_path());
  std::ofstream(path_ + ".part") << std::string(5'000'000, 'x');
  ASSERT_EQ(make(), "");
  EXPECT_EQ(problem(), "");
}

}  // namespace
}  // namespace attnkit::test
