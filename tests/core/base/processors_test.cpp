#include "core/base/processors.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

using namespace attnkit::core;

namespace {

// As Linux shows control groups of version 2 and 1; this process is in a group below the root or in the root itself.
TEST(Processors, AreAsManyAsAControlGroupGivesTimeFor) {
  namespace fs = std::filesystem;
  const fs::path cgroups = fs::path(testing::TempDir()) / ("cgroups" + std::to_string(getpid()));
  const auto with = [&](const fs::path& file, const std::string& text) {
    fs::remove_all(cgroups);
    fs::create_directories((cgroups / file).parent_path());
    std::ofstream(cgroups / file) << text;
    return usable_processors(cgroups);
  };
  const uint32_t all = usable_processors(cgroups / "none");
  EXPECT_GE(all, 1u);
  EXPECT_EQ(with("cpu.max", "max 100000\n"), all);
  EXPECT_EQ(with("cpu.max", "50000 100000\n"), 1u);
  EXPECT_EQ(with("cpu.max", "100001 100000\n"), std::min(all, 2u));
  EXPECT_EQ(with("cpu.max", "99900000 100000\n"), all);
  EXPECT_EQ(with("cpu.max", "nonsense\n"), all);
  std::ifstream lines("/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);)
    if (line.rfind("0::/", 0) == 0) {
      EXPECT_EQ(with(fs::path(line.substr(4)) / "cpu.max", "1000 100000\n"), 1u) << line;
    } else if (line.find(":cpu:") != std::string::npos || line.find(":cpu,") != std::string::npos) {
      with("cpu/cpu.cfs_period_us", "100000\n");
      std::ofstream(cgroups / "cpu/cpu.cfs_quota_us") << "30000\n";
      EXPECT_EQ(usable_processors(cgroups), 1u) << line;
      std::ofstream(cgroups / "cpu/cpu.cfs_quota_us") << "-1\n";
      EXPECT_EQ(usable_processors(cgroups), all) << line;
    }
  fs::remove_all(cgroups);
}

}  // namespace
