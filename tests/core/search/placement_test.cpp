#include "core/search/placement.hpp"

#include <gtest/gtest.h>

namespace attnkit::search {
namespace {

Space two_layers() {
  Space space;
  for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS})
    for (int layer : {1, 2}) space.sites.push_back({role, layer});
  space.choices = {{"a", "\"a\""}, {"b", "\"b\""}, {"c{n = 2}", "{ use = \"c\", n = 2 }"}};
  space.allowed = {{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}, {1, 0}, {1, 0}};
  space.baseline = {0, 0, 0, 0, 0, 0};
  return space;
}

TEST(Placement, IdsListLayersOnlyWhereTheyDiffer) {
  const Space space = two_layers();
  EXPECT_EQ(id_of(space, {0, 0, 2, 2, 1, 1}), "encoder.self=a decoder.self=c{n = 2} decoder.cross=b");
  EXPECT_EQ(id_of(space, {0, 1, 2, 2, 1, 0}), "encoder.self=a,b decoder.self=c{n = 2} decoder.cross=b,a");
  EXPECT_TRUE(is_per_role(space, {0, 0, 2, 2, 1, 1}));
  EXPECT_FALSE(is_per_role(space, {0, 1, 2, 2, 1, 1}));
}

TEST(Placement, HomogeneousOnesNeedEverySitesConsent) {
  const std::vector<Placement> found = homogeneous(two_layers());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], Placement(6, 0));
  EXPECT_EQ(found[1], Placement(6, 1));
}

TEST(Placement, SizeCountsRolesOrSitesAndSaturates) {
  Space space = two_layers();
  EXPECT_EQ(size_of(space, false), 12u);
  EXPECT_EQ(size_of(space, true), 144u);
  while (space.sites.size() < 100) {
    space.sites.push_back({ATTN_DECODER_CROSS, static_cast<int>(space.sites.size())});
    space.allowed.push_back({0, 1});
  }
  EXPECT_EQ(size_of(space, true), UINT64_MAX);
}

TEST(Placement, RolesAndTheirSites) {
  const Space space = two_layers();
  EXPECT_EQ(roles_of(space), (std::vector<uint32_t>{ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS}));
  EXPECT_EQ(sites_of(space, ATTN_DECODER_SELF), (std::pair<size_t, size_t>{2, 4}));
}

}  // namespace
}  // namespace attnkit::search
