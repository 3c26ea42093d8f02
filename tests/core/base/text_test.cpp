// What counts as UTF-8, and how strange text is quoted.
#include "core/base/text.hpp"

#include <gtest/gtest.h>

namespace attnkit {
namespace {

TEST(Utf8, EndsBeforeTheFirstFault) {
  EXPECT_EQ(valid_utf8(""), 0u);
  EXPECT_EQ(valid_utf8("a\u00e4\u2581\U0001f600"), 10u);
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xff", "\xc3", "\xe2\x96", "\xf0\x9f\x98", "\xc3x", "\xe2\x96x"})
    EXPECT_EQ(valid_utf8(std::string("ok") + bad), 2u) << bad;
}

TEST(Quote, KeepsMessagesOnOneLine) {
  EXPECT_EQ(quote("a\u00e4"), "\"a\u00e4\"");
  EXPECT_EQ(quote("a\nb\tc\x01\x7f\xff"), "\"a\\nb\\tc\\x01\\x7f\\xff\"");
  EXPECT_EQ(quote(std::string(100, 'x')), "\"" + std::string(60, 'x') + "...\"");
}

}  // namespace
}  // namespace attnkit
