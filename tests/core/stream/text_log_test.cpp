#include "core/stream/text_log.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace attnkit::stream {
namespace {

using Ends = std::vector<int64_t>;

// "two", "hun" + "dred", mark + "x" and </s>.
const std::vector<WordSpan> words = {{0, 0}, {1, 2}, {4, 4}};

TEST(TextLog, WordsArriveWithAllTheirTokens) {
  const TextSource source = text_source(6, words, Unit::word);
  EXPECT_EQ(source.ends, (Ends{1, 3, 6}));
  for (int64_t units = 0; units <= 3; ++units) EXPECT_EQ(source.words_begun(units), units);
}

TEST(TextLog, AWordThatHasBegunCounts) {
  const TextSource source = text_source(6, words, Unit::token);
  EXPECT_EQ(source.ends, (Ends{1, 2, 3, 4, 5, 6}));
  const std::vector<int64_t> begun = {0, 1, 2, 2, 2, 3, 3};
  for (size_t units = 0; units < begun.size(); ++units)
    EXPECT_EQ(source.words_begun(static_cast<int64_t>(units)), begun[units]);
}

TEST(TextLog, WordsOfOneTokenArriveTogether) {
  const TextSource source = text_source(3, {{0, 0}, {0, 0}, {1, 1}}, Unit::word);
  EXPECT_EQ(source.ends, (Ends{1, 3}));
  EXPECT_EQ(source.words_begun(1), 2);
}

TEST(TextLog, ATextWithoutWordsIsOneUnit) { EXPECT_EQ(text_source(1, {}, Unit::word).ends, (Ends{1})); }

TEST(TextLog, AWordIsWrittenWithItsLastToken) {
  const TextSource source = text_source(6, words, Unit::word);
  const std::vector<Write> writes = {{1, 0.1}, {2, 0.2}, {3, 0.4}, {3, 0.5}};
  const LatencyLog log = text_log(source, writes, std::vector<WordSpan>{{0, 1}, {2, 2}}, 0.5, 7);
  EXPECT_EQ(log.delays, (std::vector<double>{2, 3}));
  EXPECT_EQ(log.elapsed, (std::vector<double>{2 + 0.2 / 0.5, 3 + 0.4 / 0.5}));
  EXPECT_EQ(log.source_length, 3);
  EXPECT_EQ(log.reference_length, 7);
}

// golden/latency.py had SimulEval log the same actions.
TEST(TextLog, DelaysAreThoseThatSimulEvalLogs) {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/stream/golden/latency.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  size_t cases = 0;
  for (const nlohmann::json& c : all["cases"]) {
    if (c["kind"] != "text") continue;
    SCOPED_TRACE(c["name"]);
    ++cases;
    std::vector<Write> writes;
    std::vector<WordSpan> target, from;
    int64_t read = 0;
    for (const char action : c["actions"].get<std::string>())
      if (action == 'R') {
        ++read;
      } else {
        target.push_back({writes.size(), writes.size()});
        writes.push_back({read, 0});
      }
    for (size_t w = 0; w < c["source_length"].get<size_t>(); ++w) from.push_back({w, w});
    const LatencyLog log = text_log(text_source(from.size() + 1, from, Unit::word), writes, target, 0.3,
                                    c["reference_length"].get<double>());
    EXPECT_EQ(log.delays, c["delays"].get<std::vector<double>>());
    EXPECT_EQ(log.source_length, c["source_length"].get<double>());
    EXPECT_DOUBLE_EQ(latency(log)->laal, c["laal"].get<double>());
  }
  EXPECT_GE(cases, 17u);
}

}  // namespace
}  // namespace attnkit::stream
