// Problems come out in order of place, and misspelt words find what was meant.
#include "core/manifest/diagnostics.hpp"

#include <gtest/gtest.h>

using namespace attnkit;

namespace {

TEST(Diagnostics, SortsByPlaceAndKeepsOrderWithin) {
  Diagnostics all;
  all.warn(3, {4, 2}, "third");
  all.error(1, {4, 1}, "first", "help", ATTNKIT_AREA_PLUGIN);
  all.error(2, {4, 2}, "fourth, same place as third");
  all.error(4, {}, "without place");
  const auto sorted = all.sorted();
  ASSERT_EQ(sorted.size(), 4u);
  EXPECT_EQ(sorted[0].message, "without place");
  EXPECT_EQ(sorted[1].message, "first");
  EXPECT_EQ(sorted[1].help, "help");
  EXPECT_EQ(sorted[1].area, ATTNKIT_AREA_PLUGIN);
  EXPECT_EQ(sorted[2].message, "third");
  EXPECT_EQ(sorted[2].severity, ATTNKIT_WARNING);
  EXPECT_EQ(sorted[3].code, 2);
  EXPECT_EQ(sorted[3].area, ATTNKIT_AREA_MANIFEST);
}

TEST(Diagnostics, FailsByErrorsOnly) {
  Diagnostics all;
  EXPECT_FALSE(all.failed());
  all.warn(1, {}, "careful");
  EXPECT_FALSE(all.failed());
  all.error(1, {}, "wrong");
  EXPECT_TRUE(all.failed());
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

TEST(Nearest, PrefersTheNearer) {
  EXPECT_EQ(nearest("layerz", {"layout", "layers"}), "layers");
  EXPECT_EQ(nearest("abcdef", {"abcdxy", "abcdex"}), "abcdex");
}

TEST(DidYouMean, IsAPhraseOrNothing) {
  EXPECT_EQ(did_you_mean("sofmax", words), "; did you mean \"softmax\"?");
  EXPECT_EQ(did_you_mean("banana", words), "");
}

}  // namespace
