// Plugins of other versions work or are refused with a sentence, and broken ones cannot get past core.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "core/plugin/loader.hpp"
#include "tests/abi/compute.hpp"

using namespace attnkit::core;

namespace {

const Registry& plugins() {
  static const Registry registry({ABI_PLUGINS});
  return registry;
}

std::string refusal(const std::string& name) {
  for (const auto& file : plugins().skipped()) {
    if (file.path == ABI_PLUGINS "/" + name + ".so") return file.reason;
  }
  return plugins().find(name, 1) != nullptr ? "works" : "not looked at";
}

// Every plugin that must be refused when it is loaded, with its sentence.
const std::map<std::string, std::string> refusals = {
    {"needs_newer_host", "needs minor 2 of the plugin interface, this attnkit has 1; update attnkit"},
    {"refuses", "does not start: this host is of the wrong kind; update the plugin"},
    {"wrong_major", "is built for major 2 of the plugin interface, this attnkit has major 1; update attnkit"},
    {"old_major", "is built for major 0 of the plugin interface, this attnkit has major 1; update the plugin"},
    {"no_entry", "is no attnkit plugin: it does not export attn_plugin_main_v1"},
    {"entry_is_data", "is no attnkit plugin: it does not export attn_plugin_main_v1"},
    {"missing_symbol", "cannot be loaded: undefined symbol: function_of_a_library_that_is_not_installed"},
    {"code_77", "does not start: returned code 77, which plugin.h does not have; report it to the plugin's author"},
    {"null_table", "is broken: attn_plugin_main_v1 succeeded but returned no table"},
    {"short_table", "is broken: its table has 64 bytes, the shortest one of v1 has 120; build it against plugin.h"},
    {"null_slot", "is broken: its function run is NULL"},
    {"null_text", "is broken: its summary is NULL"},
    {"wrong_name", "holds mechanism \"right_name\" for the CPU, so its name must be right_name.so"},
    {"bad_name", "is broken: its name \"../Mean\" is not of the form [a-z][a-z0-9_]* (at most 64 bytes)"},
    {"unknown_device", "computes on device type 10, this attnkit knows 1 (CPU) and 2 (CUDA)"},
    {"bad_default", "is broken: the default 9 of option \"size\" is outside its bounds 1 to 8"},
    {"null_options", "is broken: it states 2 options but lists none"},
    {"throws_main", "is broken: attn_plugin_main_v1 threw an exception: thrown by main"},
    {"throws_create",
     "is not loaded: tried in a process of its own, it threw an exception when it was created in encoder.self: thrown "
     "by create; attnkit doctor --rescan tries it again"},
};

const char* const working[] = {"mean",        "v1",           "future",    "fast_math",      "asked_once",
                               "throws_plan", "throws_run",   "create_77", "create_nothing", "absurd_ports",
                               "no_output",   "plan_nothing", "run_77"};

std::vector<float> compute(const std::string& name) {
  const Plugin* plugin = plugins().find(name, 1);
  if (plugin == nullptr) throw std::runtime_error(name + ": " + refusal(name));
  return ::compute(*plugin);
}

std::string failure(const std::string& name, int32_t code) {
  try {
    compute(name);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << name;
    return e.what();
  }
  return "nothing was thrown";
}

TEST(Skew, EveryPluginIsLoadedOrRefusedAsItMustBe) {
  for (const auto& [name, sentence] : refusals) EXPECT_EQ(refusal(name), sentence) << name;
  for (const char* name : working) EXPECT_EQ(refusal(name), "works") << name;
  // Nothing else is in the folder, so no plugin goes untested.
  EXPECT_EQ(plugins().skipped().size(), refusals.size());
  EXPECT_EQ(plugins().plugins().size(), std::size(working) + 1);
}

TEST(Skew, PluginOfTheFirstHeaderWorks) { EXPECT_EQ(compute("v1"), means); }

// It asks for repeated heads by having `heads` of them, and makes its D from d_model, as before there was a width.
TEST(Skew, PluginOfTheFirstHeaderGetsRepeatedHeads) {
  attn_block block = cross_block();
  block.kv_heads = 1;
  block.key_width = 5;
  const auto first = Mechanism::create(*plugins().find("v1", 1), block, {});
  EXPECT_EQ(plugins().find("v1", 1)->table.abi_minor, 0u);
  EXPECT_EQ(first->ports()[0]->shape[1], 2);
  EXPECT_EQ(first->key_heads(), 2);
  EXPECT_EQ(first->block().d_model, 10);
  EXPECT_EQ(Mechanism::create(*plugins().find("mean", 1), block, {})->block().d_model, 8);
}

TEST(Skew, PluginOfThisHeaderWorks) { EXPECT_EQ(compute("mean"), means); }

TEST(Skew, PluginOfTheNextMinorWorks) {
  EXPECT_EQ(compute("future"), means);
  const Plugin& future = *plugins().find("future", 1);
  EXPECT_EQ(future.table.abi_minor, ATTN_ABI_MINOR + 1);
  EXPECT_EQ(future.table.struct_size, sizeof(attn_plugin));
  EXPECT_GT(future.table.options[0]->struct_size, sizeof(attn_option));
}

TEST(Skew, VariantsOfOneNameStandSideBySide) {
  ASSERT_NE(plugins().find("mean", 2), nullptr);
  EXPECT_EQ(plugins().find("mean", 2)->path, ABI_PLUGINS "/mean-cuda.so");
  EXPECT_EQ(plugins().names(2), std::vector<std::string>{"mean"});
}

TEST(Skew, ExceptionsBecomeErrors) {
  // Of a host that cannot try files before it loads them.
  const std::string path = ABI_PLUGINS "/throws_create.so";
  const Plugin untried{"throws_create", path, load_plugin(read_plugin_file(path))};
  try {
    ::compute(untried);
    FAIL() << "create threw nothing";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INTERNAL);
    EXPECT_NE(std::string(e.what()).find("thrown by create"), std::string::npos);
  }
  EXPECT_NE(failure("throws_plan", ATTN_INTERNAL).find("thrown by plan"), std::string::npos);
  EXPECT_NE(failure("throws_run", ATTN_INTERNAL).find("threw an exception"), std::string::npos);
}

TEST(Skew, NonsenseBecomesErrors) {
  EXPECT_EQ(failure("create_77", ATTN_INTERNAL),
            "create_77: returned code 77, which plugin.h does not have; report it to the plugin's author");
  EXPECT_NE(failure("create_nothing", ATTN_INTERNAL).find("without a mechanism"), std::string::npos);
  EXPECT_NE(failure("absurd_ports", ATTN_INTERNAL).find("4294967295 ports"), std::string::npos);
  EXPECT_NE(failure("no_output", ATTN_INTERNAL).find("0 outputs"), std::string::npos);
  EXPECT_NE(failure("plan_nothing", ATTN_INTERNAL).find("without a plan"), std::string::npos);
  const std::string endless = failure("run_77", ATTN_INTERNAL);
  EXPECT_NE(endless.find("returned code 77"), std::string::npos);
  EXPECT_LT(endless.size(), 1000u);
}

TEST(Skew, RefusalsOfAWorkingPluginAreItsOwnWords) {
  attn_block block = cross_block();
  block.role = ATTN_DECODER_SELF;
  block.causal = 1;
  try {
    Mechanism::create(*plugins().find("mean", 1), block, {});
    FAIL() << "was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_UNSUPPORTED);
    EXPECT_STREQ(e.what(), "mean: the mean of the past is not implemented");
  }
}

}  // namespace
