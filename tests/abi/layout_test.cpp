// The public headers only ever append to what layout.txt says.
#include "layout.hpp"

#include <attnkit/plugin.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>

#include "core/base/sha256.hpp"

namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::string headers = ATTNKIT_SOURCE_DIR "/abi/include/attnkit/";
const std::string golden = ATTNKIT_SOURCE_DIR "/tests/abi/layout.txt";

bool mentions(const std::vector<std::string>& found, const std::string& what) {
  return std::any_of(found.begin(), found.end(), [&](const auto& text) { return text.find(what) != text.npos; });
}

// A small layout with a replacement, to see what breaks() says of it.
const std::string sample =
    "constant ATTN_ABI_MINOR 0\n"
    "constant ATTN_OK 0\n"
    "callback attn_task void (*)(uintptr_t)\n"
    "function attnkit_version const char*(void)\n"
    "struct grower 24 grows\n"
    "  0 4 struct_size uint32_t\n"
    "  4 4 flags uint32_t\n"
    "  8 8 bytes uint64_t\n"
    "  16 8 name const char*\n"
    "struct tensor 8 frozen\n"
    "  0 8 data void*\n";

std::vector<std::string> after(const std::string& from, const std::string& to) {
  std::string changed = sample;
  const auto at = changed.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return breaks(sample, changed.replace(at, from.size(), to));
}

TEST(Layout, CommittedFileStillHolds) {
  const std::string committed = read(golden), now = current_layout();
  ASSERT_FALSE(committed.empty());
  EXPECT_EQ(breaks(committed, now), std::vector<std::string>());
  // Appended fields are frozen with the next release, and noted at once so that nobody moves it meanwhile.
  EXPECT_EQ(committed, now) << "appended to: run build/tests/abi/abi_layout > tests/abi/layout.txt";
}

TEST(Layout, KnowsEveryPublicStruct) {
  const std::string now = current_layout();
  for (const char* name : {"attn_error", "attn_tensor", "attn_value", "attn_option", "attn_port", "attn_block",
                           "attn_request", "attn_info", "attn_exec", "attn_run", "attn_grad", "attn_plugin",
                           "attn_host", "attnkit_runtime_options", "attnkit_diagnostic", "attnkit_model_info"}) {
    EXPECT_NE(now.find(std::string("struct ") + name + " "), std::string::npos) << name;
  }
  EXPECT_NE(now.find("struct attn_tensor 88 frozen"), std::string::npos);
  EXPECT_NE(now.find(" run int32_t (*)(const attn_plan*, const attn_run*, attn_error*)\n"), std::string::npos);
  EXPECT_NE(now.find(" stride int64_t[4]\n"), std::string::npos);
  EXPECT_NE(now.find(" k_len const int32_t*\n"), std::string::npos);
  EXPECT_NE(now.find("function attnkit_text_destroy void(attnkit_text*)\n"), std::string::npos);
}

TEST(Layout, BothHeadersStayShort) {
  const std::string both = read(headers + "plugin.h") + read(headers + "attnkit.h");
  EXPECT_LT(std::count(both.begin(), both.end(), '\n'), 600 + 50 * static_cast<int>(ATTN_ABI_MINOR));
}

TEST(Layout, TheHeaderOfVersion1IsNeverTouchedAgain) {
  const std::string copy = read(ATTNKIT_SOURCE_DIR "/tests/abi/v1/attnkit/plugin.h");
  EXPECT_EQ(attnkit::core::sha256_hex(std::as_bytes(std::span(copy))),
            "30b0c43f7b5eb7933bdba687fc1ac1f144cff1628d735777e5fb13ee991dd7cd")
      << "plugins of the first release were built from it: change abi/include/attnkit/plugin.h, by appending";
}

TEST(LayoutRule, NothingIsNoBreak) { EXPECT_TRUE(breaks(sample, sample).empty()); }

TEST(LayoutRule, AppendingWithANewMinorIsAllowed) {
  std::string grown = sample;
  grown.replace(grown.find("MINOR 0"), 7, "MINOR 1");
  grown.replace(grown.find("grower 24"), 9, "grower 32");
  grown.insert(grown.find("struct tensor"), "  24 8 more uint64_t\n");
  EXPECT_EQ(breaks(sample, grown), std::vector<std::string>());
}

TEST(LayoutRule, AppendingWithoutANewMinorIsABreak) {
  EXPECT_TRUE(mentions(after("constant ATTN_OK 0\n", "constant ATTN_OK 0\nconstant ATTN_NEW 1\n"), "was not raised"));
  EXPECT_TRUE(mentions(breaks(sample + "struct other 8 grows\n", sample), "struct other was removed"));
  EXPECT_TRUE(
      mentions(breaks(sample, sample + "struct other 4 grows\n  0 4 struct_size uint32_t\n"), "was not raised"));
}

TEST(LayoutRule, ReorderIsABreak) {
  EXPECT_TRUE(mentions(
      after("  8 8 bytes uint64_t\n  16 8 name const char*\n", "  8 8 name const char*\n  16 8 bytes uint64_t\n"),
      "\"bytes uint64_t\" moved"));
}

TEST(LayoutRule, RemovalIsABreak) {
  EXPECT_TRUE(mentions(after("  16 8 name const char*\n", ""), "\"name const char*\" moved, changed or went"));
  EXPECT_TRUE(mentions(after("constant ATTN_OK 0\n", ""), "constant ATTN_OK was removed"));
  EXPECT_TRUE(mentions(after("function attnkit_version const char*(void)\n", ""), "was removed"));
}

TEST(LayoutRule, TypeChangeIsABreak) {
  EXPECT_TRUE(mentions(after("bytes uint64_t", "bytes int64_t"), "\"bytes uint64_t\" moved, changed"));
  EXPECT_TRUE(mentions(after("(uintptr_t)", "(void*)"), "callback attn_task changed"));
  EXPECT_TRUE(mentions(after("ATTN_OK 0", "ATTN_OK 1"), "constant ATTN_OK changed"));
  EXPECT_TRUE(mentions(after("24 grows", "24 frozen"), "went from grows to frozen"));
}

TEST(LayoutRule, InsertionIsABreak) {
  EXPECT_TRUE(
      mentions(after("  8 8 bytes uint64_t\n  16 8 name", "  8 8 new uint64_t\n  16 8 bytes uint64_t\n  24 8 name"),
               "\"bytes uint64_t\" moved"));
}

TEST(LayoutRule, AppendInTailPaddingIsABreak) {
  const std::string padded =
      "constant ATTN_ABI_MINOR 0\nstruct s 24 grows\n  0 4 struct_size uint32_t\n  8 8 a uint64_t\n  16 4 b uint32_t\n";
  const std::string filled =
      "constant ATTN_ABI_MINOR 1\nstruct s 24 grows\n  0 4 struct_size uint32_t\n  8 8 a uint64_t\n  16 4 b uint32_t\n"
      "  20 4 c uint32_t\n";
  EXPECT_TRUE(mentions(breaks(padded, padded), "ends in padding"));
  EXPECT_TRUE(mentions(breaks(padded, filled), "\"c uint32_t\" hides in what was padding"));
}

TEST(LayoutRule, GrowthOfAFrozenStructIsABreak) {
  EXPECT_TRUE(mentions(after("8 frozen\n  0 8 data void*\n", "16 frozen\n  0 8 data void*\n  8 8 more uint64_t\n"),
                       "struct tensor is frozen but grew"));
}

}  // namespace
