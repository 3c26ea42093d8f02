// Vocabularies that are sound or not, and text to ids and back.
#include "core/tokenizer/vocabulary.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core {
namespace {

#define W "\u2581"

Vocabulary open(const std::string& text, bool lowercase = false) {
  const TemporaryFile file(text);
  return Vocabulary::open(file.path(), lowercase);
}

const char* const sample = "<pad>\n<s>\n</s>\n" W "one\n" W "on\n" W "t\ne\nen\nthree\n" W "\nK\u00e4se\n" W "twelve\n";

using Ids = std::vector<int32_t>;

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    return e.what();
  }
  return "";
}

std::string refusal(const std::string& text) {
  const TemporaryFile file(text);
  const std::string message = message_of([&] { Vocabulary::open(file.path(), false); });
  return message.rfind(file.path() + ":", 0) == 0 ? message.substr(file.path().size() + 1) : message;
}

TEST(Vocabulary, TakesTheLongestToken) {
  const Vocabulary v = open(sample);
  EXPECT_EQ(v.size(), 12);
  EXPECT_EQ(v.begin_id(), 1);
  EXPECT_EQ(v.end_id(), 2);
  EXPECT_EQ(v.token(3), W "one");
  EXPECT_EQ(v.tokenize("one"), (Ids{3}));
  EXPECT_EQ(v.tokenize("oneen"), Ids({3, 7}));
  EXPECT_THROW(v.tokenize("onen"), Error);  // greedy: no way back to "on" and "en"
  EXPECT_EQ(v.tokenize("ten K\u00e4se"), Ids({5, 7, 9, 10}));
}

TEST(Vocabulary, SpacesOfAllKindsCollapse) {
  const Vocabulary v = open(sample);
  EXPECT_EQ(v.tokenize(" \t one\r\n\u00a0\u3000on  "), Ids({3, 4}));
  EXPECT_EQ(v.tokenize(""), Ids());
  EXPECT_EQ(v.tokenize(" \n"), Ids());
}

TEST(Vocabulary, LowersAsciiWhenAsked) {
  EXPECT_EQ(open(sample, true).tokenize("ONE oN"), Ids({3, 4}));
  EXPECT_THROW(open(sample).tokenize("ONE"), Error);
  EXPECT_THROW(open(sample, true).tokenize("K\u00c4SE"), Error);
}

TEST(Vocabulary, SpecialsAreNeverRead) {
  EXPECT_THROW(open(sample).tokenize("<s>"), Error);
  EXPECT_EQ(open("<s>\n</s>\n<\n>\n" W "\ns\n").tokenize("<s>"), Ids({4, 2, 5, 3}));
}

TEST(Vocabulary, NamesTheWordItCannotSpell) {
  const Vocabulary v = open(sample);
  EXPECT_EQ(message_of([&] { v.tokenize("one twelv on"); }),
            "the vocabulary cannot spell the word \"twelv\" at byte column 5; did you mean \"twelve\"?");
  EXPECT_EQ(message_of([&] { v.tokenize("three"); }),
            "the vocabulary cannot spell the word \"three\" at byte column 1");
  EXPECT_EQ(message_of([&] { v.tokenize("\u00e4 on"); }),
            "the vocabulary cannot spell the word \"\u00e4\" at byte column 1");
  EXPECT_EQ(message_of([&] { v.tokenize("on \xff"); }), "the text is not UTF-8 at byte column 4");
  EXPECT_LT(message_of([&] { v.tokenize(std::string(100000, 'x')); }).size(), 200u);
}

TEST(Vocabulary, LongTextsTakeLinearTime) {
  const Vocabulary v = open(sample);
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "one ";
  EXPECT_EQ(v.tokenize(text).size(), 200000u);
}

TEST(Vocabulary, GivesTextBack) {
  const Vocabulary v = open(sample);
  const Ids ids = {1, 3, 9, 10, 4, 7, 2, 0};
  EXPECT_EQ(v.detokenize(ids.data(), ids.size()), "one K\u00e4se onen");
  EXPECT_EQ(v.detokenize(nullptr, 0), "");
  const Ids mark = {9};
  EXPECT_EQ(v.detokenize(mark.data(), 1), "");
  for (const int32_t bad : {-1, 12})
    EXPECT_NE(message_of([&] { v.detokenize(&bad, 1); }).find("the vocabulary has ids 0 to 11"), std::string::npos);
}

TEST(Vocabulary, WindowsFilesAreTheSame) {
  const Vocabulary v = open("\ufeff<s>\r\n</s>\r\n" W "a\r\n");
  EXPECT_EQ(v.begin_id(), 0);
  EXPECT_EQ(v.tokenize("a"), Ids({2}));
}

TEST(Vocabulary, TheLastLineNeedsNoEnd) { EXPECT_EQ(open("<s>\n</s>\n" W "a").size(), 3); }

TEST(Vocabulary, MistakesInTheFileAreNamed) {
  EXPECT_EQ(refusal(""), " has no line <s>, which every vocabulary needs");
  EXPECT_EQ(refusal("<s>\na\n"), " has no line </s>, which every vocabulary needs");
  EXPECT_EQ(refusal("<s>\n\n</s>\n"), "2: the line is empty; every line is one token");
  EXPECT_EQ(refusal("<s>\n</s>\n\n"), "3: the line is empty; every line is one token");
  EXPECT_EQ(refusal("<s>\na\n</s>\na\n"), "4: token \"a\" is on line 2 already");
  EXPECT_EQ(refusal("<s>\n</s>\nab\xff\n"), "3:3: is not UTF-8");
  EXPECT_NE(
      message_of([] { Vocabulary::open("/nowhere/vocab.txt", false); }).find("/nowhere/vocab.txt: cannot be opened"),
      std::string::npos);
}

}  // namespace
}  // namespace attnkit::core
