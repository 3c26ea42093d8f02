// UTF-8 validity, quotes around strange text, and suggestions for misspelt words.
#include "core/base/text.hpp"

#include <gtest/gtest.h>

namespace attnkit::core {
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
  EXPECT_EQ(quote("a\nb\tc\rd\x01\x7f\xff"), "\"a\\nb\\tc\\rd\\x01\\x7f\\xff\"");
  EXPECT_EQ(quote("\x1b[31m\x1f "), "\"\\x1b[31m\\x1f \"");
  EXPECT_EQ(quote("a\u009b31m"), "\"a\\xc2\\x9b31m\"");
  EXPECT_EQ(quote(std::string(100, 'x')), "\"" + std::string(60, 'x') + "...\"");
}

const std::vector<std::string> words = {"softmax", "relu", "cosformer", "leap", "d_model", "encoder.self", "use"};

TEST(Nearest, FindsTypingErrors) {
  EXPECT_EQ(nearest("sofmax", words), "softmax");
  EXPECT_EQ(nearest("sotfmax", words), "softmax");
  EXPECT_EQ(nearest("Softmax", words), "softmax");
  EXPECT_EQ(nearest("relo", words), "relu");
  EXPECT_EQ(nearest("cosfromer", words), "cosformer");
  EXPECT_EQ(nearest("dmodel", words), "d_model");
  EXPECT_EQ(nearest("encoder.slef", words), "encoder.self");
  EXPECT_EQ(nearest("leap", words), "leap");
}

TEST(Nearest, LeavesStrangersAlone) {
  EXPECT_EQ(nearest("ham", words), "");
  EXPECT_EQ(nearest("banana", words), "");
  EXPECT_EQ(nearest("", words), "");
  EXPECT_EQ(nearest("x", {"y"}), "");
  EXPECT_EQ(nearest(std::string(5000, 'a'), words), "");
  EXPECT_EQ(nearest("softmax", {}), "");
}

TEST(Nearest, CompletesABeginning) {
  EXPECT_EQ(nearest("cos", words), "cosformer");
  EXPECT_EQ(nearest("ENC", words), "encoder.self");
  EXPECT_EQ(nearest("c", words), "");
  EXPECT_EQ(nearest("layer", {"players", "layers_of_a_stack"}), "layers_of_a_stack");
}

TEST(Nearest, PrefersTheNearer) {
  EXPECT_EQ(nearest("layerz", {"layout", "layers"}), "layers");
  EXPECT_EQ(nearest("abcdef", {"abcdxy", "abcdex"}), "abcdex");
}

TEST(DidYouMean, IsAPhraseOrNothing) {
  EXPECT_EQ(did_you_mean("sofmax", words), "; did you mean \"softmax\"?");
  EXPECT_EQ(did_you_mean("banana", words), "");
}

TEST(Text, OneLineIsShownAndNotObeyed) {
  EXPECT_EQ(clean_line("Grüße, 日本"), "Grüße, 日本");
  EXPECT_EQ(clean_line("x\ny\x1b[2J\x7f\xc2\x85\xc2\x9b"), "x y [2J   ");
  EXPECT_EQ(clean_line("x\xff\xe2\x82y"), "x\uFFFD\uFFFD\uFFFDy");
  EXPECT_EQ(clean_line(""), "");
}

}  // namespace
}  // namespace attnkit::core
