#include "core/tokenizer/base64.hpp"

#include <gtest/gtest.h>

namespace attnkit::core {
namespace {

TEST(Base64, ThereAndBack) {
  const std::pair<std::string, std::string> pairs[] = {{"", ""},        {"f", "Zg=="},        {"fo", "Zm8="},
                                                       {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}, {"\xff\xfe\xfb", "//77"}};
  for (const auto& [bytes, text] : pairs) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
  const std::string nothing(3, '\0');
  EXPECT_EQ(from_base64(to_base64(nothing)), nothing);
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* text : {"abc", "ab=c", "a===", "=", "====", "%%%%", "ab c", "abc\n", "abc\x80"})
    EXPECT_FALSE(from_base64(text).has_value()) << text;
}

}  // namespace
}  // namespace attnkit::core
