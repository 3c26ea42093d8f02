#include <gtest/gtest.h>

#include "tests/core/search/strategy_support.hpp"

namespace attnkit::search {
namespace {

Placement encoder_of(const Space& space, const Placement& placement) {
  const auto [first, last] = sites_of(space, ATTN_ENCODER_SELF);
  return Placement(placement.begin() + static_cast<long>(first), placement.begin() + static_cast<long>(last));
}

TEST(Grid, IsEveryPlacementByRole) {
  Space space = space_of(2, 4);
  space.allowed[2] = space.allowed[3] = {1, 3};
  const History done = run(make_grid(space), separable);
  ASSERT_EQ(done.batches.size(), 1u);
  // The baseline is not among the 4 * 2 * 4 since the decoder does not allow its choice.
  EXPECT_EQ(done.finished.size(), size_of(space, false) + 1);
  for (const Outcome& outcome : done.finished) EXPECT_TRUE(is_per_role(space, outcome.placement));
}

TEST(Grid, BeginsWithTheBaselineAndTheHomogeneous) {
  Space space = space_of(3, 3);
  space.baseline = {2, 2, 2, 0, 1, 0, 2, 2, 2};
  const std::vector<Placement> all = make_grid(space)->next({});
  EXPECT_EQ(all[0], space.baseline);
  EXPECT_EQ(all[1], Placement(9, 0));
  EXPECT_EQ(all[2], Placement(9, 1));
  EXPECT_EQ(all[3], Placement(9, 2));
}

TEST(Grid, KeepsEqualEncodersTogether) {
  const Space space = space_of(2, 4);
  const std::vector<Placement> all = make_grid(space)->next({});
  std::vector<Placement> encoders;
  for (size_t i = 4; i < all.size(); ++i)
    if (encoders.empty() || encoders.back() != encoder_of(space, all[i])) encoders.push_back(encoder_of(space, all[i]));
  EXPECT_EQ(encoders.size(), 4u);
}

TEST(Grid, LeavesOutWhatIsFinished) {
  const Space space = space_of(2, 3);
  const std::vector<Placement> left = make_grid(space)->next(std::vector<Outcome>{separable(Placement(6, 1))});
  EXPECT_EQ(left.size(), 26u);
  EXPECT_FALSE(contains(left, Placement(6, 1)));
}

TEST(Grid, WorksWithoutAnEncoder) {
  Space space = space_of(2, 3);
  space.sites.erase(space.sites.begin(), space.sites.begin() + 2);
  space.allowed.resize(4);
  space.baseline.resize(4);
  EXPECT_EQ(make_grid(space)->next({}).size(), 9u);
}

}  // namespace
}  // namespace attnkit::search
