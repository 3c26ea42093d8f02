#include "core/stream/latency.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace attnkit::core::stream {
namespace {

// Written by golden/latency.py with SimulEval 1.1.4.
nlohmann::json golden() {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/stream/golden/latency.json");
  return nlohmann::json::parse(file);
}

LatencyLog log_of(const nlohmann::json& c) {
  return {c["delays"].get<std::vector<double>>(), c["elapsed"].get<std::vector<double>>(),
          c["source_length"].get<double>(), c["reference_length"].get<double>()};
}

void expect_scores(const std::optional<Latency>& made, const nlohmann::json& c, const std::string& suffix) {
  ASSERT_TRUE(made);
  EXPECT_DOUBLE_EQ(made->al, c["al" + suffix].get<double>());
  EXPECT_DOUBLE_EQ(made->laal, c["laal" + suffix].get<double>());
  EXPECT_DOUBLE_EQ(made->dal, c["dal" + suffix].get<double>());
}

TEST(Latency, ScoresAreThoseOfSimulEval) {
  const nlohmann::json all = golden();
  ASSERT_GE(all["cases"].size(), 27u);
  for (const nlohmann::json& c : all["cases"]) {
    SCOPED_TRACE(c["name"]);
    LatencyLog log = log_of(c);
    expect_scores(latency(log), c, "");
    EXPECT_EQ(computation_aware_latency(log).has_value(), c.contains("al_ca"));
    if (c.contains("al_ca")) expect_scores(computation_aware_latency(log), c, "_ca");
    log.reference_length.reset();
    expect_scores(latency(log), c, "_without_reference");
  }
}

TEST(Latency, MeansAreThoseOfSimulEval) {
  const nlohmann::json all = golden();
  for (const std::string kind : {"text", "speech"}) {
    std::vector<std::optional<Latency>> each = {std::nullopt};  // an output without words counts for nothing
    for (const nlohmann::json& c : all["cases"])
      if (c["kind"] == kind) each.push_back(latency(log_of(c)));
    expect_scores(mean(each), all["means"][kind], "");
  }
}

TEST(Latency, NothingHasNone) {
  EXPECT_FALSE(latency({{}, {}, 5, 4}));
  EXPECT_FALSE(latency({{1}, {}, 0, 4}));
  EXPECT_FALSE(computation_aware_latency({{1, 2}, {}, 5, 4}));
  EXPECT_FALSE(mean({}));
  EXPECT_FALSE(mean(std::vector<std::optional<Latency>>{std::nullopt}));
}

// Ten times the unit is ten times the lag: words and milliseconds differ by a factor alone.
TEST(Latency, IsProportionalToTheUnit) {
  const LatencyLog words{{2, 3, 5, 5}, {2.5, 4, 6.5, 7}, 5, 6};
  LatencyLog tenths = words;
  for (double& d : tenths.delays) d *= 10;
  for (double& d : tenths.elapsed) d *= 10;
  tenths.source_length *= 10;
  EXPECT_NEAR(latency(tenths)->al, 10 * latency(words)->al, 1e-12);
  EXPECT_NEAR(computation_aware_latency(tenths)->laal, 10 * computation_aware_latency(words)->laal, 1e-12);
  EXPECT_NEAR(computation_aware_latency(tenths)->dal, 10 * computation_aware_latency(words)->dal, 1e-12);
}

TEST(Latency, CountsTheWordsOfAReferenceAsSimulEvalDoes) {
  EXPECT_EQ(reference_words("one two three"), 3u);
  EXPECT_EQ(reference_words("one  two"), 3u) << "split at every single space";
  EXPECT_EQ(reference_words(""), 1u);
}

}  // namespace
}  // namespace attnkit::core::stream
