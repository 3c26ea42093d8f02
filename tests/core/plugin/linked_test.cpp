// Plugins that are linked in come before files, and a broken one is skipped with its reason.
#include "core/plugin/linked.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "core/plugin/registry.hpp"

using namespace attnkit::core;

namespace {

int32_t refuse(const attn_host*, const attn_plugin**, attn_error*) { return ATTN_UNSUPPORTED; }

struct Linked : testing::Test {
  ~Linked() override { attn_link_plugins(nullptr, 0); }
};

TEST_F(Linked, ComeBeforeFilesAndWithoutThem) {
  void* const library = dlopen(ABI_PLUGINS "/mean.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const LinkedPlugin plugins[] = {
      {"mean", reinterpret_cast<attn_plugin_main_fn>(dlsym(library, "attn_plugin_main_v1"))}};
  attn_link_plugins(plugins, 1);
  const Registry alone({});
  ASSERT_NE(alone.find("mean", 1), nullptr);
  EXPECT_EQ(alone.find("mean", 1)->path, "(linked into the program)");
  EXPECT_EQ(default_search_path("/given"), std::vector<std::string>{"/given"});
  const Registry both({ABI_PLUGINS});
  EXPECT_EQ(both.find("mean", 1)->path, "(linked into the program)");
  EXPECT_GT(both.plugins().size(), alone.plugins().size());
}

TEST_F(Linked, ThatRefuseAreSkippedWithTheReason) {
  const LinkedPlugin plugins[] = {{"bad", refuse}};
  attn_link_plugins(plugins, 1);
  const Registry registry({});
  EXPECT_TRUE(registry.plugins().empty());
  ASSERT_EQ(registry.skipped().size(), 1u);
  EXPECT_EQ(registry.skipped()[0].path, "bad (linked into the program)");
  EXPECT_NE(registry.skipped()[0].reason.find("does not start"), std::string::npos) << registry.skipped()[0].reason;
}

}  // namespace
