#include "core/search/sampler.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "core/search/failure.hpp"
#include "tests/abi/temp_folder.hpp"
#include "tests/core/search/strategy_support.hpp"

namespace attnkit::core::search {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// Samplers that are a shell's: they say what they are given, a line for each request, and keep the requests.
class SamplerTest : public testing::Test {
 protected:
  SamplerTest() {
    settings_.trials = 100;
    settings_.trial_timeout = 20;
  }

  // answers: to requests after the first one; the last of them for ever.
  std::unique_ptr<Strategy> sampler(const std::vector<json>& answers, std::set<Placement> known = {}) {
    settings_.sampler = "id=1; next() { read -r line || exit 0; printf '%s\\n' \"$line\" >> '" + requests_path() +
                        "'; printf '{\"id\":%d,\"ok\":true,\"result\":%s}\\n' $id \"$1\"; id=$((id+1)); }; next '{}'";
    for (const json& answer : answers) settings_.sampler += "; next '" + answer.dump() + "'";
    settings_.sampler += "; while :; do next '" + answers.back().dump() + "'; done";
    return make(std::move(known));
  }

  std::unique_ptr<Strategy> make(std::set<Placement> known = {}) {
    return make_sampler(space_, settings_, std::move(known), folder_ / "log", [this] { return is_stopped_; });
  }

  static json placements(const std::vector<std::string>& letters) {
    json all = json::array();
    for (const std::string& l : letters)
      all.push_back(
          {{"encoder.self", l.substr(0, 1)}, {"decoder.self", l.substr(1, 1)}, {"decoder.cross", l.substr(2)}});
    return {{"placements", all}};
  }

  std::vector<json> requests() const {
    std::ifstream file(requests_path());
    std::vector<json> all;
    for (std::string line; std::getline(file, line);) all.push_back(json::parse(line));
    return all;
  }

  std::string requests_path() const { return folder_ / "requests"; }

  // Why the second batch cannot be had.
  std::string failure(const std::unique_ptr<Strategy>& strategy) {
    const std::vector<Placement> first = strategy->next({});
    try {
      strategy->next({});
    } catch (const Failure& e) {
      EXPECT_EQ(e.fault(), Fault::data);
      EXPECT_THAT(e.help(), HasSubstr("--resume goes on"));
      EXPECT_THAT(e.what(), testing::StartsWith("--sampler \"" + settings_.sampler + "\": "));
      return e.what();
    }
    return "";
  }

  const TempFolder folder_;
  Settings settings_;
  Space space_ = space_of(1, 3);
  bool is_stopped_ = false;
};

TEST_F(SamplerTest, IsToldOfWhatItProposedAfterBaselineAndHomogeneousPlacements) {
  const auto strategy =
      sampler({placements({"abc", "abc", "bbb"}), placements({"cba"}), {{"placements", json::array()}}});
  const History history = run(strategy, separable);
  ASSERT_EQ(history.batches.size(), 3u);
  EXPECT_THAT(history.batches[0], ElementsAre(Placement{0, 0, 0}, Placement{1, 1, 1}, Placement{2, 2, 2}));
  EXPECT_THAT(history.batches[1], ElementsAre(Placement{0, 1, 2}));
  EXPECT_THAT(history.batches[2], ElementsAre(Placement{2, 1, 0}));
  const std::vector<json> asked = requests();
  ASSERT_EQ(asked.size(), 4u);
  const json letters = {"a", "b", "c"};
  EXPECT_EQ(asked[0]["units"], json({{{"name", "encoder.self"}, {"choices", letters}},
                                     {{"name", "decoder.self"}, {"choices", letters}},
                                     {{"name", "decoder.cross"}, {"choices", letters}}}));
  EXPECT_EQ(asked[0]["seed"], 1);
  EXPECT_EQ(asked[1]["most"], 16);
  EXPECT_EQ(asked[1]["finished"].size(), 3u);
  const Outcome outcome = separable({0, 1, 2});
  const json told = {{"placement", placements({"abc"})["placements"][0]},
                     {"usable", true},
                     {"rank", *outcome.rank},
                     {"quality", outcome.quality},
                     {"throughput", outcome.throughput},
                     {"memory", outcome.memory}};
  ASSERT_EQ(asked[2]["finished"].size(), 2u) << "one of them it had heard of";
  EXPECT_EQ(asked[2]["finished"][0], told);
  EXPECT_EQ(strategy->seen().proposed, 5u);
  EXPECT_EQ(strategy->seen().space_size, 27u);
}

TEST_F(SamplerTest, NumbersThatWereNotMeasuredAreNull) {
  const auto strategy = sampler({placements({"abc"}), {{"placements", json::array()}}});
  run(strategy, [](const Placement& p) { return p[1] == p[0] ? separable(p) : Outcome{p}; });
  const json told = requests()[2]["finished"][0];
  EXPECT_EQ(told["usable"], false);
  for (const char* name : {"rank", "quality", "throughput", "memory"}) EXPECT_TRUE(told.at(name).is_null()) << name;
}

TEST_F(SamplerTest, RepeatsAreAnsweredAHundredTimes) {
  const History history = run(sampler({placements({"abc"})}), separable);
  EXPECT_EQ(history.finished.size(), 4u);
  const std::vector<json> asked = requests();
  EXPECT_EQ(asked.size(), 102u);
  EXPECT_EQ(asked.back()["finished"], asked[2]["finished"]);
}

TEST_F(SamplerTest, TrialsAndTheSpaceEndIt) {
  settings_.trials = 5;
  run(sampler({placements({"abc"}), placements({"acb"}), placements({"bca"})}), separable);
  EXPECT_EQ(requests().size(), 3u);
  EXPECT_EQ(requests()[1]["most"], 2);
  EXPECT_EQ(requests()[2]["most"], 1);
  settings_.trials = 2;
  EXPECT_EQ(run(make(), separable).finished.size(), 2u);
  // The baseline is none of the space, so the sampler does not hear of it.
  settings_.trials = 100;
  std::filesystem::remove(requests_path());
  for (auto& allowed : space_.allowed) allowed = {1, 2};
  EXPECT_EQ(
      run(sampler({placements({"bbc", "bcb", "cbb"}), placements({"bcc", "cbc", "ccb"})}), separable).finished.size(),
      9u);
  EXPECT_EQ(requests()[1]["finished"].size(), 2u);
  EXPECT_EQ(requests().size(), 3u);
}

TEST_F(SamplerTest, LayersHaveNumbersWhereTheyMayDiffer) {
  space_ = space_of(2, 2);
  std::erase_if(space_.blocks, [](const BlockId& b) { return b.role != ATTN_DECODER_SELF; });
  space_.allowed.resize(2);
  space_.baseline.resize(2);
  settings_.per_layer = true;
  const json mixed = {{"placements", {{{"decoder.self.1", "b"}, {"decoder.self.2", "a"}}}}};
  EXPECT_EQ(run(sampler({mixed, {{"placements", json::array()}}}), separable).batches.at(1),
            (std::vector<Placement>{{1, 0}}));
}

// What a journal has of a search that was killed.
TEST_F(SamplerTest, WhatItProposesAgainIsNoNews) {
  const std::vector<json> answers = {
      placements({"abc"}), placements({"acb"}), placements({"bca"}), {{"placements", json::array()}}};
  const History before = run(sampler(answers), separable);
  const std::vector<json> asked = requests();
  std::filesystem::remove(requests_path());
  const History after = run(sampler(answers, {{0, 1, 2}, {0, 2, 1}, {0, 0, 0}}), separable);
  EXPECT_EQ(after.batches, before.batches);
  EXPECT_EQ(requests(), asked);
}

TEST_F(SamplerTest, OfWhatItDoesNotProposeAgainItIsTold) {
  const std::vector<json> answers = {placements({"abc"}), placements({"bca"}), {{"placements", json::array()}}};
  const History history = run(sampler(answers, {{0, 1, 2}, {0, 2, 1}, {2, 0, 0}, {0, 0, 7}}), separable);
  EXPECT_THAT(history.batches.at(1), ElementsAre(Placement{0, 1, 2}));
  EXPECT_THAT(history.batches.at(2), ElementsAre(Placement{1, 2, 0}, Placement{0, 2, 1}, Placement{2, 0, 0}));
  std::vector<json> told;
  const json last = requests().back();
  for (const json& outcome : last["finished"]) told.push_back(outcome["placement"]);
  EXPECT_EQ(json(told), placements({"bca", "acb", "caa"})["placements"]);
  // A search that was done needs no sampler to be done again.
  settings_.trials = 5;
  settings_.sampler = "exit 1";
  EXPECT_THAT(run(make({{0, 1, 2}, {0, 2, 1}}), separable).batches.at(1),
              UnorderedElementsAre(Placement{0, 1, 2}, Placement{0, 2, 1}));
}

TEST_F(SamplerTest, WhatWasProposedBeforeCountsAmongTheTrials) {
  settings_.trials = 6;
  const History history =
      run(sampler({placements({"bca", "cba", "acb"})}, {{0, 1, 2}, {0, 2, 1}}), separable);  // one of them it repeats
  EXPECT_EQ(history.finished.size(), 6u);
  EXPECT_THAT(history.batches.at(1), ElementsAre(Placement{1, 2, 0}, Placement{0, 2, 1}, Placement{0, 1, 2}));
}

TEST_F(SamplerTest, ItsFailuresAreSaid) {
  const json unknown = {{"placements", {{{"encoder.self", "a"}, {"decoder.self", "d"}, {"decoder.cross", "a"}}}}};
  EXPECT_THAT(failure(sampler({unknown})),
              HasSubstr("proposed \"d\" for decoder.self, where the space has [\"a\",\"b\",\"c\"]"));
  const json other = {{"placements", {{{"encoder.self", "a"}, {"decoder.self", "a"}, {"elbow", "a"}}}}};
  EXPECT_THAT(failure(sampler({other})), HasSubstr("proposed null for decoder.cross"));
  for (const json& odd : {json(1), json({{"encoder.self", "a"}}), json({"a", "a", "a"})})
    EXPECT_THAT(failure(sampler({{{"placements", {odd}}}})),
                HasSubstr("which is no object with the 3 names of the space"));
  EXPECT_THAT(failure(sampler({{{"placements", {std::string(1000, 'x')}}}})), HasSubstr("xxx..., which is no object"));
  for (const json& odd : {json(), json(7), json::array(), json({{"placements", 7}})})
    EXPECT_THAT(failure(sampler({odd})), HasSubstr("sent no list \"placements\""));
  EXPECT_THAT(failure(sampler({placements(std::vector<std::string>(17, "abc"))})),
              HasSubstr("sent 17 placements where 16"));
  for (const auto& [command, reason] : std::vector<std::pair<std::string, std::string>>{
           {"exit 3", "ended with code 3; what it printed is in "},
           {"kill -9 $$", "killed by signal 9"},
           {"echo Hello; sleep 9", "sent no JSON, but 5 other bytes; what it printed is in "},
           {"echo '{\"id\":2,\"ok\":true}'; sleep 9", "sent a reply to request 2, not to 1"},
           {"exec <&- >&-; sleep 9", "closed its channel without a reply"},
           {"echo '{\"id\":1,\"ok\":false,\"error\":{\"message\":\"no\"}}'", ": no"}}) {
    settings_.sampler = command;
    EXPECT_THAT(failure(make()), HasSubstr(reason)) << command;
  }
  settings_.trial_timeout = 0.2;
  settings_.sampler = "sleep 9";
  EXPECT_THAT(failure(make()), HasSubstr("no reply within 0.2 s"));
}

TEST_F(SamplerTest, IsNotWaitedForWhenTheSearchIsToStop) {
  settings_.sampler = "sleep 99";
  const auto strategy = make();
  strategy->next({});
  is_stopped_ = true;
  try {
    strategy->next({});
    FAIL();
  } catch (const Failure& e) {
    EXPECT_EQ(e.fault(), Fault::interrupted);
  }
}

}  // namespace
}  // namespace attnkit::core::search
