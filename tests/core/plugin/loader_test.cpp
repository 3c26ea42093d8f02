// Tables are taken in this build's size, and every way in which one can be wrong has its sentence.
#include "core/plugin/loader.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "core/base/error.hpp"

using namespace attnkit::core;

namespace {

attn_plugin good() {
  attn_plugin table{};
  table.struct_size = sizeof(table);
  table.device_type = 1;
  table.name = "some_name2";
  table.summary = table.citation = table.state_revision = "";
  table.create = [](auto...) -> int32_t { return ATTN_OK; };
  table.destroy = [](attn_mech*) {};
  table.plan = [](auto...) -> int32_t { return ATTN_OK; };
  table.plan_free = [](attn_plan*) {};
  table.run = [](auto...) -> int32_t { return ATTN_OK; };
  return table;
}

std::string refusal(const attn_plugin& table, const attn_host& host = this_host()) {
  try {
    check_table(&table, host);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string refusal_of(const attn_option& option) {
  const attn_option* options[] = {&option};
  attn_plugin table = good();
  table.options = options;
  table.n_options = 1;
  return refusal(table);
}

attn_option number(uint32_t type, double value, double min, double max) {
  attn_option option{};
  option.struct_size = sizeof(option);
  option.name = "rank";
  option.doc = "";
  option.fallback.type = type;
  option.fallback.i = type == ATTN_INT || type == ATTN_BOOL ? static_cast<int64_t>(value) : 0;
  option.fallback.f = value;
  option.min = min;
  option.max = max;
  return option;
}

attn_option text(const char* value, const char* const* choices, uint32_t n) {
  attn_option option = number(ATTN_TEXT, 0, 0, 0);
  option.fallback.s = value;
  option.choices = choices;
  option.n_choices = n;
  return option;
}

bool has(const std::string& sentence, const std::string& part) { return sentence.find(part) != std::string::npos; }

TEST(PluginTable, GoodOneIsTaken) { EXPECT_EQ(refusal(good()), ""); }

TEST(PluginTable, LongerOneIsCutToThisBuildsSize) {
  struct {
    attn_plugin table;
    char more[64];
  } future{good(), {}};
  future.table.struct_size = sizeof(future);
  EXPECT_EQ(check_table(&future.table, this_host()).struct_size, sizeof(attn_plugin));
}

TEST(PluginTable, ShorterOneIsReadNoFurtherThanItGoes) {
  attn_plugin table = good();
  table.struct_size = 4;
  EXPECT_TRUE(has(refusal(table), "its table has 4 bytes"));
}

TEST(PluginTable, WindowsMustMeet) {
  attn_plugin table = good();
  table.abi_minor = 5;
  table.oldest_host_minor = 3;
  EXPECT_EQ(refusal(table, {16, 3, 0, 0}), "");
  EXPECT_EQ(refusal(table, {16, 2, 0, 0}), "needs minor 3 of the plugin interface, this attnkit has 2; update attnkit");
  EXPECT_EQ(refusal(table, {16, 9, 5, 0}), "");
  EXPECT_EQ(refusal(table, {16, 9, 6, 0}),
            "is built for minor 5 of the plugin interface, this attnkit accepts 6 and newer; update the plugin");
}

TEST(PluginTable, EveryFunctionThatCoreCallsIsNeeded) {
  const auto expect_needed = [](const char* name, auto function) {
    attn_plugin table = good();
    table.*function = nullptr;
    EXPECT_EQ(refusal(table), fmt::format("is broken: its function {} is NULL", name));
  };
  expect_needed("create", &attn_plugin::create);
  expect_needed("destroy", &attn_plugin::destroy);
  expect_needed("plan", &attn_plugin::plan);
  expect_needed("plan_free", &attn_plugin::plan_free);
  attn_plugin table = good();
  table.fill = nullptr;
  table.backward = nullptr;
  EXPECT_EQ(refusal(table), "");
}

TEST(PluginTable, TextsAreNeeded) {
  attn_plugin table = good();
  table.state_revision = nullptr;
  EXPECT_EQ(refusal(table), "is broken: its state_revision is NULL");
  table = good();
  const std::string endless(1000, 'a');
  table.name = endless.c_str();
  EXPECT_TRUE(has(refusal(table), "at most 64 bytes"));
}

TEST(PluginTable, Names) {
  for (const char* name : {"a", "relu", "rope_linear", "s4d", "x_"}) EXPECT_TRUE(is_name(name)) << name;
  for (const char* name : {"", "4d", "_a", "A", "a-b", "a.b", "\xc3\xa4", "a b"}) EXPECT_FALSE(is_name(name)) << name;
}

TEST(PluginTable, OptionsAreCounted) {
  attn_plugin table = good();
  table.n_options = 4'000'000'000u;
  const attn_option* options[] = {nullptr};
  table.options = options;
  EXPECT_TRUE(has(refusal(table), "at most 256"));
  table.n_options = 1;
  EXPECT_EQ(refusal(table), "is broken: its option 0 is NULL");
}

TEST(PluginTable, OptionNamesAreUniqueAndUsable) {
  attn_option option = number(ATTN_INT, 1, 0, 0);
  const attn_option* twice[] = {&option, &option};
  attn_plugin table = good();
  table.options = twice;
  table.n_options = 2;
  EXPECT_EQ(refusal(table), "is broken: it has two options \"rank\"");
  option.name = "use";
  EXPECT_TRUE(has(refusal_of(option), "cannot be called \"use\""));
  option.name = "Rank";
  EXPECT_TRUE(has(refusal_of(option), "is not of the form"));
  option.name = nullptr;
  EXPECT_TRUE(has(refusal_of(option), "is not of the form"));
  option = number(ATTN_INT, 1, 0, 0);
  option.doc = nullptr;
  EXPECT_TRUE(has(refusal_of(option), "has no description"));
  option = number(ATTN_INT, 1, 0, 0);
  option.struct_size = 16;
  EXPECT_TRUE(has(refusal_of(option), "is shorter than v1.0's"));
}

TEST(PluginTable, DefaultsAreWithinBounds) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  EXPECT_EQ(refusal_of(number(ATTN_INT, 3, 1, 3)), "");
  EXPECT_EQ(refusal_of(number(ATTN_FLOAT, 1e30, 0, 0)), "");
  EXPECT_TRUE(has(refusal_of(number(ATTN_INT, 4, 1, 3)), "outside its bounds 1 to 3"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_FLOAT, -0.5, 0, 1)), "outside its bounds 0 to 1"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_FLOAT, nan, 0, 0)), "outside its bounds"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_FLOAT, inf, 0, 0)), "outside its bounds"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_FLOAT, 1, 3, 2)), "allow nothing"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_FLOAT, 1, nan, 2)), "allow nothing"));
  EXPECT_TRUE(has(refusal_of(number(ATTN_BOOL, 2, 0, 0)), "is no boolean"));
  EXPECT_TRUE(has(refusal_of(number(9, 2, 0, 0)), "has the unknown type 9"));
}

TEST(PluginTable, ChoicesHoldTheDefault) {
  const char* const choices[] = {"none", "add"};
  const char* const holes[] = {"none", nullptr};
  EXPECT_EQ(refusal_of(text("add", choices, 2)), "");
  EXPECT_EQ(refusal_of(text("anything", nullptr, 0)), "");
  EXPECT_TRUE(has(refusal_of(text("clamp", choices, 2)), "\"clamp\" of option \"rank\" is none of its choices"));
  EXPECT_TRUE(has(refusal_of(text("none", holes, 2)), "a choice of option \"rank\" is NULL"));
  EXPECT_TRUE(has(refusal_of(text("none", nullptr, 2)), "states 2 choices but lists none"));
  EXPECT_TRUE(has(refusal_of(text("none", choices, 4'000'000'000u)), "states 4000000000 choices"));
  EXPECT_TRUE(has(refusal_of(text(nullptr, nullptr, 0)), "the default of option \"rank\" is NULL"));
  attn_option counted = number(ATTN_INT, 1, 0, 0);
  counted.n_choices = 2;
  counted.choices = choices;
  EXPECT_TRUE(has(refusal_of(counted), "has choices but is no text"));
}

}  // namespace
