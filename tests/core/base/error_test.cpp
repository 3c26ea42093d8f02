// Errors cross the C boundary whole, cut cleanly, and never overflow what the caller gave.
#include "core/base/error.hpp"

#include <gtest/gtest.h>

#include <cstring>

using namespace attnkit::core;

namespace {

TEST(FillError, WritesEverythingAndReturnsTheCode) {
  attn_error err = empty_error();
  EXPECT_EQ(fill_error(&err, ATTN_INVALID, "heads is 3", 2), ATTN_INVALID);
  EXPECT_EQ(err.code, ATTN_INVALID);
  EXPECT_EQ(err.where, 2);
  EXPECT_STREQ(err.message, "heads is 3");
}

TEST(FillError, TakesNull) {
  EXPECT_EQ(fill_error(nullptr, ATTN_DEVICE, "x"), ATTN_DEVICE);
  attn_error err = empty_error();
  fill_error(&err, ATTN_DEVICE, nullptr);
  EXPECT_STREQ(err.message, "");
}

TEST(FillError, IsOneLine) {
  attn_error err = empty_error();
  fill_error(&err, ATTN_INVALID, "a\nb\tc\r\x7f");
  EXPECT_STREQ(err.message, "a b c  ");
}

TEST(FillError, CutsAtACharacter) {
  attn_error err = empty_error();
  // 2-byte characters: the last one that fits ends at byte 498, since 499 is odd.
  std::string text;
  for (int i = 0; i < 400; ++i) text += "\u00e4";
  fill_error(&err, ATTN_INVALID, text.c_str());
  EXPECT_EQ(std::strlen(err.message), 498u);
  EXPECT_EQ(std::string(err.message), text.substr(0, 498));
}

// A stray byte costs itself and nothing before it.
TEST(FillError, ShowsBytesThatAreNoText) {
  attn_error err = empty_error();
  fill_error(&err, ATTN_INVALID, "x\xffy\x1b[31mz\xc2\x9bz");
  EXPECT_STREQ(err.message, "x\uFFFDy [31mz z");
  fill_error(&err, ATTN_INVALID, ("why: " + std::string(600, '\x80')).c_str());
  EXPECT_EQ(std::string(err.message).substr(0, 8), "why: \uFFFD");
  EXPECT_GT(std::strlen(err.message), 490u);
}

TEST(FillError, RespectsTheCallersSize) {
  for (const uint32_t size : {0u, 4u, 8u, 12u, 13u, 20u, 511u, 512u}) {
    attn_error err;
    std::memset(&err, 0x5A, sizeof(err));
    err.struct_size = size;
    fill_error(&err, ATTN_UNSUPPORTED, "a message that is longer than twenty bytes");
    const auto* bytes = reinterpret_cast<const unsigned char*>(&err);
    for (size_t i = std::max(size, 4u); i < sizeof(err); ++i) ASSERT_EQ(bytes[i], 0x5A) << size << " " << i;
    if (size > 12) {
      EXPECT_LT(strnlen(err.message, size - 12), size - 12);
    }
  }
}

TEST(FillError, WritesNoMoreIntoALongerStruct) {
  struct {
    attn_error err;
    char more[32];
  } future;
  std::memset(&future, 0x5A, sizeof(future));
  future.err.struct_size = sizeof(future);
  fill_error(&future.err, ATTN_INVALID, std::string(600, 'x').c_str());
  EXPECT_EQ(std::strlen(future.err.message), 499u);
  EXPECT_EQ(future.more[0], 0x5A);
}

std::string check(int32_t code, const char* message, int32_t expected) {
  attn_error err = empty_error();
  std::strncpy(err.message, message, sizeof(err.message) - 1);
  err.where = 4;
  try {
    check_plugin(code, err, "leap");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), expected);
    EXPECT_EQ(e.where(), expected == code ? 4 : -1);
    return e.what();
  }
  return "";
}

TEST(CheckPlugin, CleansTheMessage) {
  EXPECT_EQ(check(ATTN_INVALID, "\x1b]0;title\x07 \xe4 \xc2\x9bm", ATTN_INVALID), "leap:  ]0;title  \uFFFD  m");
}

TEST(CheckPlugin, PassesCodeAndPlaceOn) {
  EXPECT_EQ(check(ATTN_OK, "ignored", ATTN_OK), "");
  EXPECT_EQ(check(ATTN_UNSUPPORTED, "needs q_total", ATTN_UNSUPPORTED), "leap: needs q_total");
  EXPECT_EQ(check(ATTN_DEVICE, "", ATTN_DEVICE), "leap: failed with code 4 and gave no reason");
}

TEST(CheckPlugin, NamesUnknownCodes) {
  EXPECT_EQ(check(77, "why", ATTN_INTERNAL),
            "leap: returned code 77, which plugin.h does not have; report it to the plugin's author: why");
  EXPECT_EQ(check(-1, "", ATTN_INTERNAL),
            "leap: returned code -1, which plugin.h does not have; report it to the plugin's author");
}

TEST(CheckPlugin, SurvivesAMessageWithoutEnd) {
  attn_error err = empty_error();
  std::memset(err.message, 'x', sizeof(err.message));
  try {
    check_plugin(ATTN_INVALID, err, "leap");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::strlen(e.what()), 6 + sizeof(err.message));
  }
}

TEST(Guard, TurnsExceptionsIntoCodes) {
  attn_error err = empty_error();
  EXPECT_EQ(guard(&err, [] {}), ATTN_OK);
  EXPECT_EQ(err.code, 0);
  EXPECT_EQ(guard(&err, [] { fail(ATTN_UNSUPPORTED, "{} is {}", "rank", 3); }), ATTN_UNSUPPORTED);
  EXPECT_STREQ(err.message, "rank is 3");
  EXPECT_EQ(guard(&err, [] { throw std::bad_alloc(); }), ATTN_NO_MEMORY);
  EXPECT_EQ(guard(&err, [] { throw std::out_of_range("far"); }), ATTN_INTERNAL);
  EXPECT_STREQ(err.message, "far");
  EXPECT_EQ(guard(&err, [] { throw 3; }), ATTN_INTERNAL);
  EXPECT_EQ(guard(nullptr, [] { throw 3; }), ATTN_INTERNAL);
}

}  // namespace
