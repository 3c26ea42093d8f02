#include "core/search/space.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/search/failure.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two layers on each side; the manifest's own choice in every block is a.
SpaceRequest request(json search = nullptr) {
  SpaceRequest r;
  r.description = {{"search", std::move(search)}, {"blocks", json::array()}};
  for (int layer : {1, 2})
    for (const char* role : {"encoder.self", "decoder.self", "decoder.cross"})
      r.description["blocks"].push_back(
          {{"role", role}, {"layer", layer}, {"mechanism", "a"}, {"given", {{"label", "a"}, {"toml", "\"a\""}}}});
  r.mechanisms = {"a", "b", "c"};
  return r;
}

json space_json() {
  return {{"space",
           {{"decoder.self",
             {{{"label", "a"}, {"toml", "\"a\""}}, {{"label", "c{n = 2}"}, {"toml", "{ use = \"c\", n = 2 }"}}}}}}};
}

std::string failure_of(const SpaceRequest& r) {
  try {
    make_space(r);
  } catch (const Failure& e) {
    EXPECT_EQ(e.fault(), Fault::usage);
    return e.what();
  }
  return "";
}

TEST(Space, RolesOutsideItKeepWhatTheManifestHas) {
  const Space space = make_space(request(space_json()));
  ASSERT_EQ(space.blocks.size(), 6u);
  EXPECT_EQ(space.blocks.front(), (BlockId{ATTN_ENCODER_SELF, 1}));
  EXPECT_EQ(space.blocks.back(), (BlockId{ATTN_DECODER_CROSS, 2}));
  EXPECT_EQ(size_of(space, false), 2u);
  EXPECT_EQ(id_of(space, space.baseline), "encoder.self=a decoder.self=a decoder.cross=a");
  EXPECT_EQ(space.choices[1].toml, "{ use = \"c\", n = 2 }");
}

TEST(Space, TheCommandLineReplacesARole) {
  SpaceRequest r = request(space_json());
  r.roles = {{"decoder.self", {"b", "c"}}, {"encoder.self", {"a", "b", "c"}}};
  const Space space = make_space(r);
  EXPECT_EQ(size_of(space, false), 6u);
  EXPECT_EQ(id_of(space, space.baseline), "encoder.self=a decoder.self=b decoder.cross=a");
}

TEST(Space, TheBaselineNeedNotBeInIt) {
  SpaceRequest r = request(space_json());
  r.baseline = "b";
  EXPECT_EQ(id_of(make_space(r), make_space(r).baseline), "encoder.self=b decoder.self=b decoder.cross=b");
}

TEST(Space, TheManifestsBaselineCounts) {
  json search = space_json();
  search["baseline"] = {{"label", "c"}, {"toml", "\"c\""}};
  const Space space = make_space(request(search));
  EXPECT_EQ(id_of(space, space.baseline), "encoder.self=c decoder.self=c decoder.cross=c");
}

TEST(Space, ChoicesWithOptionsOfTheManifestAreTheirOwn) {
  SpaceRequest r = request(space_json());
  for (json& block : r.description["blocks"])
    if (block["role"] == "encoder.self") block["given"] = {{"label", "a{x = 1}"}, {"toml", "{ use = \"a\", x = 1 }"}};
  const Space space = make_space(r);
  EXPECT_EQ(space.choices[static_cast<size_t>(space.allowed[0][0])].toml, "{ use = \"a\", x = 1 }");
  EXPECT_EQ(space.choices[static_cast<size_t>(space.allowed[0][0])].label, "a{x = 1}");
  EXPECT_NE(space.allowed[0][0], space.allowed[4][0]);
}

TEST(Space, AllIsTheModelsOwnWithItsOptionsThenTheOthers) {
  SpaceRequest r = request();
  r.roles = {{"decoder.self", {"all"}}};
  json& first = r.description["blocks"][1];
  first["mechanism"] = "b";
  first["given"] = {{"label", "b{x = 1}"}, {"toml", "{ use = \"b\", x = 1 }"}};
  const Space space = make_space(r);
  EXPECT_EQ(id_of(space, space.baseline), "encoder.self=a decoder.self=b{x = 1} decoder.cross=a");
  std::vector<std::string> found;
  for (const int c : space.allowed[2]) found.push_back(space.choice(c).toml);
  EXPECT_THAT(found, ElementsAre("{ use = \"b\", x = 1 }", "\"a\"", "\"c\""));
}

TEST(Space, WhatCannotBeASpaceIsRefused) {
  EXPECT_THAT(failure_of(request()), HasSubstr("nothing to choose from"));
  SpaceRequest r = request(space_json());
  r.roles = {{"decoder.elbow", {"a"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("decoder.elbow"));
  r.roles = {{"decoder.self", {"a", "z"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("no mechanism \"z\" is loaded; there are a, b, c"));
  r.roles = {{"decoder.self", {"a", "a"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("named twice"));
  r.roles = {{"decoder.self", {"a", "all"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("no mechanism \"all\" is loaded"));
  r.roles = {};
  r.baseline = "z";
  EXPECT_THAT(failure_of(r), HasSubstr("--baseline"));
  r = request(space_json());
  r.description["blocks"][0]["given"] = {{"label", "b"}, {"toml", "\"b\""}};
  EXPECT_THAT(failure_of(r), HasSubstr("layers differ"));
}

Space two_layers() {
  Space space;
  for (uint32_t role : {ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS})
    for (int layer : {1, 2}) space.blocks.push_back({role, layer});
  space.choices = {{"a", "\"a\""}, {"b", "\"b\""}, {"c{n = 2}", "{ use = \"c\", n = 2 }"}};
  space.allowed = {{0, 1}, {0, 1}, {0, 1, 2}, {0, 1, 2}, {1, 0}, {1, 0}};
  space.baseline = {0, 0, 0, 0, 0, 0};
  return space;
}

TEST(Placement, IdsListLayersOnlyWhereTheyDiffer) {
  const Space space = two_layers();
  EXPECT_EQ(id_of(space, {0, 0, 2, 2, 1, 1}), "encoder.self=a decoder.self=c{n = 2} decoder.cross=b");
  EXPECT_EQ(id_of(space, {0, 1, 2, 2, 1, 0}), "encoder.self=a,b decoder.self=c{n = 2} decoder.cross=b,a");
  EXPECT_TRUE(is_uniform({0, 0, 2, 2, 1, 1}, {2, 4}));
  EXPECT_FALSE(is_uniform({0, 1, 2, 2, 1, 1}, {0, 2}));
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
  while (space.blocks.size() < 100) {
    space.blocks.push_back({ATTN_DECODER_CROSS, static_cast<int>(space.blocks.size())});
    space.allowed.push_back({0, 1});
  }
  EXPECT_EQ(size_of(space, true), UINT64_MAX);
}

TEST(Placement, RolesAndTheirSites) {
  const Space space = two_layers();
  EXPECT_EQ(roles_of(space), (std::vector<uint32_t>{ATTN_ENCODER_SELF, ATTN_DECODER_SELF, ATTN_DECODER_CROSS}));
  EXPECT_EQ(blocks_of(space, ATTN_DECODER_SELF), (Unit{2, 4}));
}

TEST(Declared, SumsDoNotWrap) {
  const Space space = make_space(request(space_json()));
  json description = request().description;
  for (json& block : description["blocks"])
    block["costs"] = {{{"length", 8}, {"state_bytes", 64}, {"flops", uint64_t{1} << 62}, {"step_flops", 2}}};
  const Placement everywhere(space.blocks.size(), 0);
  Declared declared;
  declared.add(space, everywhere, description);
  EXPECT_EQ(6 * 64u, declared.of(everywhere, 8).state_bytes);
  EXPECT_EQ(UINT64_MAX, declared.of(everywhere, 8).flops);
  EXPECT_EQ(12u, declared.of(everywhere, 8).step_flops);
}

}  // namespace
}  // namespace attnkit::core::search
