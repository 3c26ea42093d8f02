// The registry finds what it may use, in order, once per process, and says why it left the rest.
#include "core/plugin/registry.hpp"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <thread>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "core/base/file.hpp"
#include "tests/abi/temp_folder.hpp"

using namespace attnkit::core;

namespace {

const std::string mean = ABI_PLUGINS "/mean.so";

TEST(Registry, SortsByNameThenDevice) {
  const Registry registry({ABI_PLUGINS});
  ASSERT_GE(registry.plugins().size(), 3u);
  for (size_t i = 1; i < registry.plugins().size(); ++i) {
    const auto &before = registry.plugins()[i - 1], &now = registry.plugins()[i];
    EXPECT_TRUE(before->name < now->name ||
                (before->name == now->name && before->table.device_type < now->table.device_type));
  }
  EXPECT_EQ(registry.find("mean", 1)->table.device_type, 1);
  EXPECT_EQ(registry.find("mean", 2)->table.device_type, 2);
  EXPECT_EQ(registry.find("mean", 3), nullptr);
  EXPECT_EQ(registry.find("banana", 1), nullptr);
}

TEST(Registry, FirstFolderWinsAndLaterOnesAreNamed) {
  const TempFolder first, second;
  first.copy(mean, "mean.so");
  second.copy(mean, "mean.so");
  const Registry registry({first.path(), second.path()});
  ASSERT_EQ(registry.plugins().size(), 1u);
  EXPECT_EQ(registry.plugins()[0]->path, first / "mean.so");
  ASSERT_EQ(registry.skipped().size(), 1u);
  EXPECT_EQ(registry.skipped()[0].path, second / "mean.so");
  EXPECT_EQ(registry.skipped()[0].reason,
            "is not used: \"mean\" for the CPU was found before, in " + (first / "mean.so"));
}

TEST(Registry, ABrokenFirstFileLeavesRoomForTheNext) {
  const TempFolder first, second;
  first.write("mean.so", "text");
  second.copy(mean, "mean.so");
  const Registry registry({first.path(), second.path()});
  ASSERT_NE(registry.find("mean", 1), nullptr);
  EXPECT_EQ(registry.find("mean", 1)->path, second / "mean.so");
}

TEST(Registry, ReportsFoldersItCannotUse) {
  const TempFolder folder;
  const std::string file = folder.write("file", "");
  const Registry registry({folder / "missing", "relative/folder", file, folder.path(), folder.path()});
  EXPECT_TRUE(registry.plugins().empty());
  ASSERT_EQ(registry.skipped().size(), 3u);
  EXPECT_EQ(registry.skipped()[0].reason, "does not exist");
  EXPECT_EQ(registry.skipped()[1].reason,
            "is a relative path, and plugins are never searched in the working directory; give it whole");
  EXPECT_EQ(registry.skipped()[2].reason, "is no folder");
  EXPECT_EQ(registry.folders().size(), 4u);
}

TEST(Registry, IgnoresFilesOfOtherNames) {
  const TempFolder folder;
  folder.copy(mean, "mean.so.1");
  folder.copy(mean, "mean.txt");
  folder.write(".so", "");
  const Registry registry({folder.path()});
  EXPECT_TRUE(registry.plugins().empty());
  EXPECT_TRUE(registry.skipped().empty());
}

TEST(Registry, AsksAFileOncePerProcess) {
  const TempFolder folder;
  const std::string path = folder.copy(ABI_PLUGINS "/asked_once.so", "asked_once.so");
  const TempFolder links;
  std::filesystem::create_symlink(path, links / "asked_once.so");
  std::filesystem::create_hard_link(path, links / "other.so");
  for (int trial = 0; trial < 3; ++trial) {
    const Registry direct({folder.path()}), linked({links.path()});
    ASSERT_NE(direct.find("asked_once", 1), nullptr) << direct.skipped().at(0).reason;
    ASSERT_NE(linked.find("asked_once", 1), nullptr) << linked.skipped().at(0).reason;
    EXPECT_EQ(direct.find("asked_once", 1)->table.run, linked.find("asked_once", 1)->table.run);
    ASSERT_EQ(linked.skipped().size(), 1u);
    EXPECT_EQ(linked.skipped()[0].reason,
              "holds mechanism \"asked_once\" for the CPU, so its name must be asked_once.so");
  }
}

TEST(Registry, IsMadeOnManyThreadsAtOnce) {
  const TempFolder folder;
  folder.copy(ABI_PLUGINS "/asked_once.so", "asked_once.so");
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int trial = 0; trial < 20; ++trial) EXPECT_NE(Registry({folder.path()}).find("asked_once", 1), nullptr);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Registry, RefusesAFileThatChangedAfterItWasLoaded) {
  const TempFolder folder;
  folder.copy(mean, "mean.so");
  const Registry before({folder.path()});
  ASSERT_NE(before.find("mean", 1), nullptr);
  std::filesystem::remove(folder / "mean.so");
  folder.copy(mean, "mean.so");
  const Registry after({folder.path()});
  EXPECT_EQ(after.find("mean", 1), nullptr);
  ASSERT_EQ(after.skipped().size(), 1u);
  EXPECT_EQ(after.skipped()[0].reason,
            "has changed since this process loaded it; start the program again to use the new one");
}

TEST(Registry, KeepsTheFloatingPointEnvironment) {
  const TempFolder folder;
  folder.copy(ABI_PLUGINS "/fast_math.so", "fast_math.so");
  std::fesetround(FE_UPWARD);
  const Registry registry({folder.path()});
  ASSERT_NE(registry.find("fast_math", 1), nullptr);
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0u) << "denormals are switched off";
#elif defined(__aarch64__)
  uint64_t modes;
  asm volatile("mrs %0, fpcr" : "=r"(modes));
  EXPECT_EQ(modes & 1u << 24, 0u) << "denormals are switched off";
#endif
}

class SearchPath : public testing::Test {
 protected:
  void SetUp() override { unsetenv("ATTNKIT_PLUGIN_PATH"); }
  void TearDown() override { unsetenv("ATTNKIT_PLUGIN_PATH"); }
  const std::string own_ = std::filesystem::path(own_file()).parent_path() / "attnkit" / "1";
};

TEST_F(SearchPath, EndsBesideTheLibrary) {
  EXPECT_TRUE(std::filesystem::path(own_).is_absolute());
  EXPECT_TRUE(std::filesystem::equivalent(own_file(), "/proc/self/exe")) << own_file();
  EXPECT_EQ(default_search_path(nullptr), std::vector<std::string>{own_});
}

TEST_F(SearchPath, PutsTheArgumentFirstThenTheEnvironment) {
  setenv("ATTNKIT_PLUGIN_PATH", "/env::/more:", 1);
  EXPECT_EQ(default_search_path(":/a:/b"), (std::vector<std::string>{"/a", "/b", "/env", "/more", own_}));
  EXPECT_EQ(default_search_path(""), (std::vector<std::string>{"/env", "/more", own_}));
}

TEST_F(SearchPath, DoesNotDependOnTheWorkingDirectory) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path("/");
  EXPECT_EQ(default_search_path(nullptr), std::vector<std::string>{own_});
  std::filesystem::current_path(before);
}

}  // namespace
