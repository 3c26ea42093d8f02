// The runtime's document is complete, valid, and survives every plugin that misbehaves.
#include "core/api/describe.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "tests/abi/temp_folder.hpp"

using namespace attnkit::core;
using Json = nlohmann::json;

namespace {

Json describe(const std::vector<std::string>& folders) {
  return Json::parse(describe_runtime(Registry(folders), Threads(2), 1));
}

Json plugin_of(const Json& runtime, const std::string& name, const std::string& device = "cpu") {
  for (const auto& plugin : runtime.at("plugins")) {
    if (plugin.at("name") == name && plugin.at("device") == device) return plugin;
  }
  ADD_FAILURE() << name << " is not listed";
  return {};
}

Json place_of(const Json& plugin, const std::string& role, bool causal) {
  for (const auto& place : plugin.at("places")) {
    if (place.at("role") == role && place.at("causal") == causal) return place;
  }
  ADD_FAILURE() << role << " is not listed";
  return {};
}

TEST(DescribeRuntime, HasTheFactsOfTheRuntime) {
  const Json runtime = describe({"/missing"});
  EXPECT_EQ(runtime.at("schema"), "attnkit.runtime/1");
  EXPECT_TRUE(std::regex_match(runtime.at("version").get<std::string>(), std::regex(R"(\d+\.\d+\.\d+)")));
  EXPECT_EQ(runtime.at("abi").at("major"), 1);
  EXPECT_EQ(runtime.at("abi").at("minor"), ATTN_ABI_MINOR);
  EXPECT_EQ(runtime.at("threads"), 2);
  EXPECT_EQ(runtime.at("device"), "cpu");
  EXPECT_EQ(runtime.at("search_path"), Json::array({"/missing"}));
  EXPECT_TRUE(runtime.at("cpu_features").is_array());
  EXPECT_TRUE(runtime.at("plugins").empty());
  EXPECT_EQ(runtime.at("skipped")[0].at("path"), "/missing");
  EXPECT_EQ(runtime.at("skipped")[0].at("reason"), "does not exist");
}

TEST(DescribeRuntime, AsksEveryPlaceOfAPlugin) {
  const Json mean = plugin_of(describe({ABI_PLUGINS}), "mean");
  EXPECT_EQ(mean.at("summary"), "the mean of all values");
  EXPECT_EQ(mean.at("file"), ABI_PLUGINS "/mean.so");
  ASSERT_EQ(mean.at("places").size(), 4u);
  const Json cross = place_of(mean, "decoder.cross", false);
  EXPECT_EQ(cross.at("fits"), true);
  EXPECT_EQ(cross.at("lengths"), Json::array());
  EXPECT_EQ(cross.at("flops"), 512 * 128);
  EXPECT_EQ(cross.at("stream").at("fits"), false);
  EXPECT_EQ(cross.at("stream").at("refusal"), "mean: the mean keeps no state");
  const Json self = place_of(mean, "decoder.self", true);
  EXPECT_EQ(self.at("fits"), false);
  EXPECT_EQ(self.at("refusal"), "mean: the mean of the past is not implemented");
}

TEST(DescribeRuntime, ListsOptions) {
  const Json option = plugin_of(describe({ABI_PLUGINS}), "future").at("options").at(0);
  EXPECT_EQ(option.at("name"), "mode");
  EXPECT_EQ(option.at("type"), "text");
  EXPECT_EQ(option.at("default"), "plain");
  EXPECT_EQ(option.at("choices"), Json::array({"plain", "other"}));
  EXPECT_FALSE(option.contains("min"));
}

TEST(DescribeRuntime, ListsStreamsAndTensors) {
  const Json runtime = describe({ATTNKIT_PLUGIN_FOLDER});
  const Json performer = place_of(plugin_of(runtime, "performer"), "decoder.self", true);
  EXPECT_EQ(performer.at("stream").at("fits"), true);
  EXPECT_EQ(performer.at("stream").at("state_bytes").at("512"), 4 * 128 * 34 * 4);
  EXPECT_EQ(performer.at("stream").at("state_bytes").at("4096"), performer.at("stream").at("state_bytes").at("512"));
  const Json omega = performer.at("tensors").at(0);
  EXPECT_EQ(omega.at("name"), "omega");
  EXPECT_EQ(omega.at("kind"), "table");
  EXPECT_EQ(omega.at("dtype"), "f32");
  EXPECT_EQ(omega.at("shape"), Json::array({128, 32}));
  EXPECT_EQ(omega.at("per_model"), false);
  const Json luna = place_of(plugin_of(runtime, "luna"), "encoder.self", false);
  const auto start = std::find_if(luna.at("tensors").begin(), luna.at("tensors").end(),
                                  [](const Json& t) { return t.at("name") == "p_start"; });
  ASSERT_NE(start, luna.at("tensors").end());
  EXPECT_EQ(start->at("per_model"), true);
  const Json order = plugin_of(runtime, "s4d").at("options").at(0);
  EXPECT_EQ(order.at("type"), "int");
  EXPECT_EQ(order.at("default"), 64);
  EXPECT_EQ(order.at("min"), 2);
  EXPECT_EQ(order.at("max"), 1024);
}

TEST(DescribeRuntime, SurvivesPluginsThatMisbehave) {
  const Json runtime = describe({ABI_PLUGINS});
  for (const char* name : {"create_77", "create_nothing", "absurd_ports", "no_output"}) {
    const Json cross = place_of(plugin_of(runtime, name), "decoder.cross", false);
    EXPECT_EQ(cross.at("fits"), false) << name;
    EXPECT_TRUE(cross.at("refusal").get<std::string>().starts_with(std::string(name) + ": ")) << name;
    EXPECT_EQ(cross.at("faulty"), true) << name;
  }
  for (const char* name : {"throws_plan", "plan_nothing"}) {
    const Json cross = place_of(plugin_of(runtime, name), "decoder.cross", false);
    EXPECT_EQ(cross.at("fits"), false) << name;
    EXPECT_EQ(cross.at("faulty"), true) << name;
  }
  EXPECT_FALSE(place_of(plugin_of(runtime, "mean"), "decoder.self", true).contains("faulty")) << "a refusal is none";
  EXPECT_GE(runtime.at("skipped").size(), 15u);
}

TEST(DescribeRuntime, IsValidEvenWhenFileNamesAreNoText) {
  const TempFolder folder;
  folder.write("\xff\xfe.so", "");
  const Json runtime = describe({folder.path()});
  EXPECT_EQ(runtime.at("skipped").size(), 1u);
}

}  // namespace
