// Every key of [search], right and wrong.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/core/manifest/manifest_support.hpp"

namespace attnkit::core {
namespace {

using Json = nlohmann::ordered_json;

const std::string space = "space = { \"encoder.self\" = [\"fake_plain\"] }\n";

// model.toml with a [search] in line 34 and these lines from line 35 on.
Read search(const std::string& lines) { return read(edited(0, "", "[search]\n" + lines)); }

TEST(Search, IsAbsentUnlessGiven) { EXPECT_FALSE(read(edited(0, "")).manifest.search); }

TEST(Search, HasDefaults) {
  const Read found = search(space);
  EXPECT_EQ(report(found.diagnostics), "");
  EXPECT_EQ(found.manifest.search->dump(),
            "{\"space\":{\"encoder.self\":[{\"label\":\"fake_plain\",\"toml\":\"\\\"fake_plain\\\"\","
            "\"mechanism\":\"fake_plain\"}]},\"strategy\":\"grid\",\"per_layer\":false,\"metric\":null,\"data\":null,"
            "\"test\":null,\"rank\":\"rcp_mem\",\"length\":512,\"lengths\":[64,512,4096],\"baseline\":null,"
            "\"trials\":64,\"seed\":1,\"limits\":{\"min_quality_ratio\":null,\"max_state\":null,\"max_latency\":null},"
            "\"exponents\":{\"throughput\":1.0,\"quality\":1.0,\"memory\":1.0},\"quality_weight\":1.0}");
}

TEST(Search, SaysWhatTheFileSays) {
  const Read found = search(
      space +
      "strategy = \"pareto\"\nper_layer = true\nmetric = \"bleu\"\ndata = \"lists/dev.tsv\"\ntest = \"/t/../x.tsv\"\n"
      "rank = \"quality\"\nlength = 64\nlengths = [64, 8]\nbaseline = { use = \"fake_picky\", size = 2 }\ntrials = 7\n"
      "seed = 0\nlimits = { min_quality_ratio = 0.97, max_state = \"64KiB\", max_latency = \"800us\" }\n"
      "exponents = { quality = 2, memory = 0.5 }\nquality_weight = 3\n");
  EXPECT_EQ(report(found.diagnostics), "");
  const Json& s = *found.manifest.search;
  EXPECT_EQ(s["strategy"], "pareto");
  EXPECT_EQ(s["metric"], "bleu");
  EXPECT_EQ(s["rank"], "quality");
  EXPECT_EQ(s["per_layer"], true);
  EXPECT_EQ(s["data"], data_folder + "/lists/dev.tsv");
  EXPECT_EQ(s["test"], "/x.tsv");
  EXPECT_EQ(s["length"], 64);
  EXPECT_EQ(s["lengths"], Json({64, 8}));
  EXPECT_EQ(s["baseline"]["toml"], "{ use = \"fake_picky\", size = 2 }");
  EXPECT_EQ(s["trials"], 7);
  EXPECT_EQ(s["seed"], 0);
  EXPECT_EQ(s["limits"]["min_quality_ratio"], 0.97);
  EXPECT_EQ(s["limits"]["max_state"], 65536);
  EXPECT_DOUBLE_EQ(s["limits"]["max_latency"], 0.0008);
  EXPECT_EQ(s["exponents"], Json({{"throughput", 1.0}, {"quality", 2.0}, {"memory", 0.5}}));
  EXPECT_EQ(s["quality_weight"], 3);
}

TEST(Search, NamesChoicesByWhatWasGivenInTheOrderOfTheSchema) {
  const Read found = search(
      "space = { \"decoder.cross\" = [\"fake_plain\", { use = \"fake_picky\" }, { use = \"fake_picky\", any = 2, "
      "mode = \"none\", size = 3, past = true, label = \"a \\\"b\\\" \\n\" }], \"encoder.self\" = [\"fake_plain\"] "
      "}\n");
  EXPECT_EQ(report(found.diagnostics), "");
  std::string text;
  for (const auto& [role, choices] : found.manifest.search->at("space").items())
    for (const Json& c : choices)
      text += fmt::format("{} | {} | {} | {}\n", role, c["mechanism"].get<std::string>(), c["label"].get<std::string>(),
                          c["toml"].get<std::string>());
  const std::string options = "size = 3, past = true, mode = \"none\", label = \"a \\\"b\\\" \\n\", any = 2.0";
  EXPECT_EQ(text,
            "encoder.self | fake_plain | fake_plain | \"fake_plain\"\n"
            "decoder.cross | fake_plain | fake_plain | \"fake_plain\"\n"
            "decoder.cross | fake_picky | fake_picky | \"fake_picky\"\n"
            "decoder.cross | fake_picky | fake_picky{" +
                options + "} | { use = \"fake_picky\", " + options + " }\n");
}

TEST(Search, ChoicesMeanTheSameAsInAttention) {
  const Read first = search(
      "space = { \"encoder.self\" = [{ use = \"fake_picky\", mode = \"none\", eps = 0.1, label = \"\u00e4\\\\\" }] "
      "}\n");
  ASSERT_EQ(report(first.diagnostics), "");
  const std::string toml = first.manifest.search->at("space")["encoder.self"][0]["toml"];
  EXPECT_EQ(toml, "{ use = \"fake_picky\", eps = 0.1, mode = \"none\", label = \"\u00e4\\\\\" }");
  const Read second = read(edited(23, "\"encoder.self\" = " + toml));
  EXPECT_EQ(report(second.diagnostics), "");
  EXPECT_EQ(second.manifest.blocks[0].options[1].f, 0.1);
  EXPECT_EQ(second.manifest.blocks[0].options[3].s, "none");
  EXPECT_EQ(second.manifest.blocks[0].options[4].s, "\u00e4\\");
}

TEST(Search,
     AsksNoMechanism) {  // encoder.self refuses such an option when it is created, decoder.self has no causal form
  const Read found = search(
      "space = { \"encoder.self\" = [{ use = \"fake_picky\", size = 64 }, \"fake_thrower\"], \"decoder.self\" = "
      "[\"fake_picky\"] }\n");
  EXPECT_EQ(report(found.diagnostics), "");
}

TEST(Search, KeepsChoicesWhoseMechanismIsNotThere) {
  const Read found = search(
      "space = { \"encoder.self\" = [\"fake_plain\", { use = \"x\", n = 2, on = true, r = 0.5, s = \"a\" }] "
      "}\nbaseline = "
      "\"y\"\n");
  const Json& s = *found.manifest.search;
  EXPECT_EQ(s["space"]["encoder.self"][1]["label"], "x{n = 2, on = true, r = 0.5, s = \"a\"}");
  EXPECT_EQ(s["space"]["encoder.self"][1]["toml"], "{ use = \"x\", n = 2, on = true, r = 0.5, s = \"a\" }");
  EXPECT_EQ(s["baseline"]["mechanism"], "y");
}

TEST(Search, KnowsUnits) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"1", 1}, {"\"7B\"", 7}, {"\"1.5KiB\"", 1536}, {"\"2MiB\"", 2 << 20}, {"\"3GiB\"", int64_t{3} << 30}};
  for (const auto& [text, bytes] : sizes)
    EXPECT_EQ(search(fmt::format("{}limits.max_state = {}\n", space, text)).manifest.search->at("limits")["max_state"],
              bytes)
        << text;
  const std::pair<const char*, double> times[] = {{"1us", 1e-6}, {"2.5ms", 2.5e-3}, {"3s", 3}};
  for (const auto& [text, seconds] : times)
    EXPECT_DOUBLE_EQ(search(fmt::format("{}limits.max_latency = \"{}\"\n", space, text))
                         .manifest.search->at("limits")["max_latency"],
                     seconds);
}

struct Case {
  const char* name;
  const char* lines;  // from line 35 on
  std::vector<const char*> expected;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class SearchMistake : public testing::TestWithParam<Case> {};

TEST_P(SearchMistake, IsReportedWhereItStands) {
  const Case& c = GetParam();
  std::string lines = c.lines;
  if (lines.find("space") == std::string::npos) lines += "\n" + space;
  const auto found = search(lines).diagnostics;
  ASSERT_EQ(found.size(), c.expected.size()) << report(found, true);
  std::istringstream rows(report(found));
  std::string row;
  for (const char* expected : c.expected) {
    std::getline(rows, row);
    EXPECT_EQ(row.substr(0, std::string(expected).size()), expected) << report(found, true);
  }
}

const Case spaces[] = {
    {"EmptySpace", "space = {}", {"35:9 error AK104 \"space\" is empty"}},
    {"SpaceIsNoTable", "space = [\"fake_plain\"]", {"35:9 error AK103 \"space\" must be a table, not an array"}},
    {"UnknownRole",
     "space = { \"encoder.slef\" = [\"fake_plain\"] }",
     {"35:11 error AK101 unknown key \"encoder.slef\"; did you mean \"encoder.self\"?"}},
    {"RoleWithoutQuotes", "space = { encoder.self = [\"fake_plain\"] }", {"35:11 error AK101 unknown key \"encoder\""}},
    {"EmptyRole", "space = { \"encoder.self\" = [] }", {"35:28 error AK104 \"encoder.self\" is empty"}},
    {"RoleIsNoArray",
     "space = { \"encoder.self\" = \"fake_plain\" }",
     {"35:28 error AK103 \"encoder.self\" must be an array of mechanisms' names or"}},
    {"EntryIsNoMechanism",
     "space = { \"encoder.self\" = [\"fake_plain\", 3] }",
     {"35:43 error AK103 an entry of \"encoder.self\" must be a mechanism's name or"}},
    {"NoUse",
     "space = { \"encoder.self\" = [{ size = 3 }] }",
     {"35:29 error AK102 \"encoder.self\" needs \"use\", a mechanism's name"}},
    {"UseIsNoText", "space = { \"encoder.self\" = [{ use = 3 }] }", {"35:37 error AK103 \"use\" must be"}},
    {"Twice",
     "space = { \"encoder.self\" = [\"fake_plain\", \"fake_picky\", \"fake_plain\"] }",
     {"35:57 error AK215 \"encoder.self\" lists \"fake_plain\" twice with the same options"}},
    {"TwiceInOtherWords",
     "space = { \"encoder.self\" = [\"fake_picky\", { use = \"fake_picky\", size = 4, mode = \"clamp\" }] }",
     {"35:43 error AK215 \"encoder.self\" lists \"fake_picky\""}},
    {"NotTwice", "space = { \"encoder.self\" = [\"fake_picky\", { use = \"fake_picky\", mode = \"add\" }] }", {}},
    {"UnknownMechanism",
     "space = { \"encoder.self\" = [\"fake_plane\"] }",
     {"35:29 warning AK209 no mechanism \"fake_plane\"; did you mean \"fake_plain\"?"}},
    {"UnusableMechanism",
     "space = { \"encoder.self\" = [\"fake_broken\"] }",
     {"35:29 warning AK209 mechanism \"fake_broken\" cannot be used"}},
    {"NoName", "space = { \"encoder.self\" = [\"\"] }", {"35:29 error AK201 no mechanism \"\""}},
    {"UnknownMechanismTwice",
     "space = { \"encoder.self\" = [{ use = \"x\", n = 1 }, { use = \"x\", n = 2 }, { use = \"x\", n = 1 }] }",
     {"35:37 warning AK209", "35:59 warning AK209", "35:73 error AK215 \"encoder.self\" lists \"x\" twice",
      "35:81 warning AK209"}},
    {"OptionOfAnUnknownMechanism",
     "space = { \"encoder.self\" = [{ use = \"x\", n = [1] }] }",
     {"35:37 warning AK209",
      "35:46 error AK205 an option must be a number, true, false or text, and \"n\" is an array"}},
    {"UnknownOption",
     "space = { \"encoder.self\" = [{ use = \"fake_picky\", siez = 3 }] }",
     {"35:51 error AK204 fake_picky has no option \"siez\"; did you mean \"size\"?"}},
    {"OptionType",
     "space = { \"encoder.self\" = [{ use = \"fake_picky\", size = 3.5 }] }",
     {"35:58 error AK205 fake_picky's option \"size\" must be an integer"}},
    {"OptionValue",
     "space = { \"encoder.self\" = [{ use = \"fake_picky\", size = 65 }] }",
     {"35:58 error AK206 fake_picky's option \"size\" is 65"}},
    {"Everything",
     "space = { \"encoder.self\" = [\"fake_plane\", { use = \"fake_picky\", eps = 2 }] }\nrank = \"rpc\"\nseeds = 1",
     {"35:29 warning AK209", "35:71 error AK206", "36:8 error AK104 \"rank\" cannot be \"rpc\"; did you mean \"rcp\"?",
      "37:1 error AK101 unknown key \"seeds\"; did you mean \"seed\"?"}},
};
INSTANTIATE_TEST_SUITE_P(Space, SearchMistake, testing::ValuesIn(spaces), [](const auto& i) { return i.param.name; });

const Case settings[] = {
    {"Strategy", "strategy = \"gird\"", {"35:12 error AK104 \"strategy\" cannot be \"gird\"; did you mean \"grid\"?"}},
    {"PerLayer", "per_layer = 1", {"35:13 error AK103 \"per_layer\" must be true or false, not an integer"}},
    {"Metric", "metric = \"blue\"", {"35:10 error AK104 \"metric\" cannot be \"blue\"; did you mean \"bleu\"?"}},
    {"Data", "data = 3", {"35:8 error AK103 \"data\" must be text"}},
    {"EmptyTest", "test = \"\"", {"35:8 error AK104 \"test\" must not be empty"}},
    {"Length", "length = 0", {"35:10 error AK104 \"length\" is 0; it must be an integer from 1 to 1048576"}},
    {"LengthsIsNoArray", "lengths = 64", {"35:11 error AK103 \"lengths\" must be an array of integers from 1 to"}},
    {"LengthsIsEmpty", "lengths = []", {"35:11 error AK104 \"lengths\" is empty"}},
    {"LengthsAreWrong",
     "lengths = [8, 0, 1048577, \"64\", 8]",
     {"35:15 error AK104 length 0 is out of bounds: 1 to 1048576 are possible", "35:18 error AK104 length 1048577",
      "35:27 error AK103 a length must be an integer, not text", "35:33 error AK215 \"lengths\" has 8 twice"}},
    {"Baseline", "baseline = \"fake_plane\"", {"35:12 warning AK209 no mechanism \"fake_plane\""}},
    {"BaselineOption", "baseline = { use = \"fake_picky\", size = 0 }", {"35:41 error AK206"}},
    {"BaselineIsNoMechanism",
     "baseline = [\"fake_plain\"]",
     {"35:12 error AK103 \"baseline\" must be a mechanism's name"}},
    {"Trials", "trials = 0", {"35:10 error AK104 \"trials\" is 0;"}},
    {"Seed", "seed = -1", {"35:8 error AK104 \"seed\" is -1; it must be an integer from 0 to 4294967295"}},
    {"Weight", "quality_weight = 101", {"35:18 error AK104 \"quality_weight\" is 101;"}},
    {"Ratio", "limits = { min_quality_ratio = 11 }", {"35:32 error AK104 \"min_quality_ratio\" is 11; it must be"}},
    {"UnknownLimit",
     "limits = { max_sate = 1 }",
     {"35:12 error AK101 unknown key \"max_sate\"; did you mean \"max_state\"?"}},
    {"StateUnit",
     "limits = { max_state = \"64KB\" }",
     {"35:24 error AK104 \"max_state\" cannot be \"64KB\"; did you mean \"KiB\"?"}},
    {"StateWithoutUnit", "limits = { max_state = \"64\" }", {"35:24 error AK104 \"max_state\" cannot be \"64\""}},
    {"StateIsNothing", "limits = { max_state = 0 }", {"35:24 error AK104 \"max_state\" cannot be 0"}},
    {"StateIsNegative", "limits = { max_state = \"-1KiB\" }", {"35:24 error AK104 \"max_state\" cannot be \"-1KiB\""}},
    {"StateIsHuge", "limits = { max_state = \"9999999999GiB\" }", {"35:24 error AK104 \"max_state\" cannot be"}},
    {"StateIsNoSize",
     "limits = { max_state = 1.5 }",
     {"35:24 error AK103 \"max_state\" must be an integer of bytes or"}},
    {"LatencyIsInfinite",
     "limits = { max_latency = \"infs\" }",
     {"35:26 error AK104 \"max_latency\" cannot be \"infs\""}},
    {"LatencyIsNoNumber", "limits = { max_latency = \"nans\" }", {"35:26 error AK104"}},
    {"LatencyUnit", "limits = { max_latency = \"5 ms\" }", {"35:26 error AK104 \"max_latency\" cannot be \"5 ms\""}},
    {"LatencyIsEmpty", "limits = { max_latency = \"\" }", {"35:26 error AK104 \"max_latency\" cannot be \"\""}},
    {"LatencyNeedsAUnit",
     "limits = { max_latency = 5 }",
     {"35:26 error AK103 \"max_latency\" must be text such as \"5ms\""}},
    {"Exponent",
     "exponents = { quality = -1 }",
     {"35:25 error AK104 \"quality\" is -1; it must be a number from 0 to 10"}},
    {"UnknownExponent",
     "exponents = { memroy = 1 }",
     {"35:15 error AK101 unknown key \"memroy\"; did you mean \"memory\"?"}},
};
INSTANTIATE_TEST_SUITE_P(Settings, SearchMistake, testing::ValuesIn(settings),
                         [](const auto& i) { return i.param.name; });

TEST(Search, SaysWhichUnitsThereAre) {
  const auto found = search(space + "limits = { max_state = \"64KB\", max_latency = \"5m\" }").diagnostics;
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].help.find("B, KiB, MiB, GiB"), std::string::npos) << found[0].help;
  EXPECT_NE(found[1].help.find("us, ms, s"), std::string::npos) << found[1].help;
}

TEST(Search, NeedsItsSpace) {
  const auto found = search("rank = \"rcp\"").diagnostics;
  EXPECT_EQ(report(found), "34:1 error AK102 [search] needs \"space\", a table\n");
}

TEST(Search, RefusesRolesThatTheModelLacks) {
  std::string text = edited(4, "kind = \"encoder\"", "[search]\nspace = { \"decoder.self\" = [\"fake_plain\"] }\n");
  const std::string found = report(read(text).diagnostics);
  EXPECT_NE(found.find("35:11 error AK210 a model of kind \"encoder\" has no decoder.self\n"), std::string::npos)
      << found;
}

}  // namespace
}  // namespace attnkit::core
