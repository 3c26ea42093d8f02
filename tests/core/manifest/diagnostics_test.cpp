// Problems come out in order of place.
#include "core/manifest/diagnostics.hpp"

#include <gtest/gtest.h>

using namespace attnkit::core;

namespace {

TEST(Diagnostics, SortsByPlaceAndKeepsOrderWithin) {
  Diagnostics all;
  all.add(ak::unused_entry, {4, 2}, "third");
  all.add(ak::refused, {4, 1}, "first", "help", ATTNKIT_AREA_PLUGIN);
  all.add(ak::unknown_key, {4, 2}, "fourth, same place as third");
  all.add(ak::bad_vocabulary, {}, "without place");
  const auto sorted = all.sorted();
  ASSERT_EQ(sorted.size(), 4u);
  EXPECT_EQ(sorted[0].message, "without place");
  EXPECT_EQ(sorted[1].message, "first");
  EXPECT_EQ(sorted[1].help, "help");
  EXPECT_EQ(sorted[1].area, ATTNKIT_AREA_PLUGIN);
  EXPECT_EQ(sorted[2].message, "third");
  EXPECT_EQ(sorted[2].severity, ATTNKIT_WARNING);
  EXPECT_EQ(sorted[0].area, ATTNKIT_AREA_DATA);
  EXPECT_EQ(sorted[3].code, ak::unknown_key);
  EXPECT_EQ(sorted[3].area, ATTNKIT_AREA_MANIFEST);
}

TEST(Diagnostics, FailsByErrorsOnly) {
  Diagnostics all;
  EXPECT_FALSE(all.failed());
  all.add(ak::no_adapters, {}, "careful");
  EXPECT_FALSE(all.failed());
  all.add(ak::no_toml, {}, "wrong");
  EXPECT_TRUE(all.failed());
}

}  // namespace
