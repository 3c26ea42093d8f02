#include "core/stream/words.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace attnkit::stream {
namespace {

// '_' marks the beginning of a word, "" is a special token.
std::vector<WordSpan> spans(const std::vector<std::string>& tokens) {
  std::vector<int32_t> ids(tokens.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return words_of(ids, [&](std::span<const int32_t> some) {
    std::string text;
    for (const int32_t id : some)
      for (const char c : tokens[static_cast<size_t>(id)]) text += c == '_' ? ' ' : c;
    const size_t first = text.find_first_not_of(' ');
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
  });
}

using Spans = std::vector<WordSpan>;

TEST(Words, WholeAndInPieces) {
  EXPECT_EQ(spans({"_one", "_two"}), (Spans{{0, 0}, {1, 1}}));
  EXPECT_EQ(spans({"_two", "hun", "dred", "_and", "_one"}), (Spans{{0, 2}, {3, 3}, {4, 4}}));
  EXPECT_EQ(spans({"one"}), (Spans{{0, 0}})) << "a text that begins without a mark";
}

TEST(Words, ALoneMarkBelongsToNone) {
  EXPECT_EQ(spans({"_", "x", "y", "_", "z"}), (Spans{{1, 2}, {4, 4}}));
  EXPECT_EQ(spans({"_one", "_", "_", "_two", "_"}), (Spans{{0, 0}, {3, 3}}));
}

TEST(Words, SpecialsBelongToNone) {
  EXPECT_EQ(spans({"", "_one", "", "s", "_two", ""}), (Spans{{1, 3}, {4, 4}}));
  EXPECT_EQ(spans({"_one", "_", "", "s"}), (Spans{{0, 0}, {3, 3}}));
}

TEST(Words, TokensThatSpanWords) {
  EXPECT_EQ(spans({"_of_the", "_house"}), (Spans{{0, 0}, {0, 0}, {1, 1}}));
  EXPECT_EQ(spans({"_a", "b_c", "d_e_f", "g"}), (Spans{{0, 1}, {1, 2}, {2, 2}, {2, 3}}));
  EXPECT_EQ(spans({"_a_", "b"}), (Spans{{0, 0}, {1, 1}}));
}

TEST(Words, Nothing) {
  EXPECT_TRUE(spans({}).empty());
  EXPECT_TRUE(spans({"", "_", ""}).empty());
}

}  // namespace
}  // namespace attnkit::stream
