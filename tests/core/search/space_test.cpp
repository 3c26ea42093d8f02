#include "core/search/space.hpp"

#include <gmock/gmock.h>

#include "core/search/failure.hpp"

namespace attnkit::search {
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
          {{"role", role}, {"layer", layer}, {"given", {{"label", "a"}, {"toml", "\"a\""}}}});
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
  ASSERT_EQ(space.sites.size(), 6u);
  EXPECT_EQ(space.sites.front(), (Site{ATTN_ENCODER_SELF, 1}));
  EXPECT_EQ(space.sites.back(), (Site{ATTN_DECODER_CROSS, 2}));
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

TEST(Space, WhatCannotBeASpaceIsRefused) {
  EXPECT_THAT(failure_of(request()), HasSubstr("nothing to choose from"));
  SpaceRequest r = request(space_json());
  r.roles = {{"decoder.elbow", {"a"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("decoder.elbow"));
  r.roles = {{"decoder.self", {"a", "z"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("no mechanism \"z\" is loaded; there are a, b, c"));
  r.roles = {{"decoder.self", {"a", "a"}}};
  EXPECT_THAT(failure_of(r), HasSubstr("named twice"));
  r.roles = {};
  r.baseline = "z";
  EXPECT_THAT(failure_of(r), HasSubstr("--baseline"));
  r = request(space_json());
  r.description["blocks"][0]["given"] = {{"label", "b"}, {"toml", "\"b\""}};
  EXPECT_THAT(failure_of(r), HasSubstr("layers differ"));
}

}  // namespace
}  // namespace attnkit::search
