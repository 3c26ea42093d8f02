#include "core/stream/log.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/text.hpp"

namespace attnkit::core::stream {
namespace {

// '_' marks the beginning of a word, "" is a special token.
std::vector<WordSpan> spans(const std::vector<std::string>& tokens, bool trimmed = true) {
  std::vector<int32_t> ids(tokens.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  return words_of(ids, [&](std::span<const int32_t> some) {
    std::string text;
    for (const int32_t id : some)
      for (const char c : tokens[static_cast<size_t>(id)]) text += c == '_' ? ' ' : c;
    if (const size_t whole = valid_utf8(text); whole < text.size()) text = text.substr(0, whole) + "\ufffd";
    if (!trimmed) return text.starts_with(' ') ? text.substr(1) : text;
    const size_t first = text.find_first_not_of(' ');
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
  });
}

using Spans = std::vector<WordSpan>;

TEST(Words, WholeAndInPieces) {
  EXPECT_EQ(spans({"_one", "_two"}), (Spans{{0, 0}, {1, 1}}));
  EXPECT_EQ(spans({"_two", "hun", "dred", "_and", "_one"}), (Spans{{0, 2}, {3, 3}, {4, 4}}));
  EXPECT_EQ(spans({"one"}), (Spans{{0, 0}})) << "a text that begins without a mark";
}

TEST(Words, ALoneMarkBelongsToNone) {
  EXPECT_EQ(spans({"_", "x", "y", "_", "z"}), (Spans{{1, 2}, {4, 4}}));
  EXPECT_EQ(spans({"_one", "_", "_", "_two", "_"}), (Spans{{0, 0}, {3, 3}}));
}

TEST(Words, SpecialsBelongToNone) {
  EXPECT_EQ(spans({"", "_one", "", "s", "_two", ""}), (Spans{{1, 3}, {4, 4}}));
  EXPECT_EQ(spans({"_one", "_", "", "s"}), (Spans{{0, 0}, {3, 3}}));
}

TEST(Words, ALoneMarkMayBeASpaceAtTheEnd) {
  EXPECT_EQ(spans({"_open", "_the", "_", "~", "_now"}, false), (Spans{{0, 0}, {1, 1}, {3, 3}, {4, 4}}));
  EXPECT_EQ(spans({"_", "_", "x", "_y"}, false), (Spans{{2, 2}, {3, 3}}));
}

TEST(Words, ACharacterOfSeveralTokens) {
  for (const bool trimmed : {true, false})
    EXPECT_EQ(spans({"caf", "\xc3", "\xa9", "_noir", "_", "\xe4\xb8", "\xad", "_x", "\xc3"}, trimmed),
              (Spans{{0, 2}, {3, 3}, {5, 6}, {7, 8}}));
}

TEST(Words, TokensThatSpanWords) {
  EXPECT_EQ(spans({"_of_the", "_house"}), (Spans{{0, 0}, {0, 0}, {1, 1}}));
  EXPECT_EQ(spans({"_a", "b_c", "d_e_f", "g"}), (Spans{{0, 1}, {1, 2}, {2, 2}, {2, 3}}));
  EXPECT_EQ(spans({"_a_", "b"}), (Spans{{0, 0}, {1, 1}}));
}

TEST(Words, Nothing) {
  EXPECT_TRUE(spans({}).empty());
  EXPECT_TRUE(spans({"", "_", ""}).empty());
}

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

using Ends = std::vector<int64_t>;

const SpeechShape shape{16000, 400, 160, 4};

// Rows of the encoder, counted one frame after the other.
int64_t counted(int64_t samples) {
  int64_t frames = 0;
  while (frames * 160 + 400 <= samples) ++frames;
  return frames / 4;
}

TEST(SpeechShape, RowsAreWholeGroupsOfFrames) {
  for (int64_t samples = 0; samples < 6000; samples += 7) EXPECT_EQ(shape.rows(samples), counted(samples)) << samples;
  EXPECT_EQ(shape.samples(1), 880);
  for (int64_t row = 1; row < 40; ++row) {
    EXPECT_EQ(shape.rows(shape.samples(row)), row);
    EXPECT_EQ(shape.rows(shape.samples(row) - 1), row - 1);
  }
}

TEST(SpeechShape, IsThatOfTheModel) {
  attnkit_model_info info{};
  info.sample_rate = 8000, info.frame_length = 200, info.frame_shift = 80, info.subsampling = 2;
  const SpeechShape made = speech_shape(info);
  EXPECT_EQ(made.samples(1), 280);
  EXPECT_EQ(made.ms(280), 35);
  EXPECT_EQ(made.samples_in(35), 280);
  EXPECT_EQ(made.samples_in(0.01), 1);
}

TEST(SpeechEnds, AreThoseOfRowsAndTheRestComesWithTheLast) {
  EXPECT_EQ(speech_ends(shape, 880, 0), (Ends{880}));
  EXPECT_EQ(speech_ends(shape, 1519, 0), (Ends{1519}));
  EXPECT_EQ(speech_ends(shape, 1520, 0), (Ends{880, 1520}));
  EXPECT_EQ(speech_ends(shape, 2300, 0), (Ends{880, 1520, 2300}));
  EXPECT_EQ(speech_ends(shape, 5, 0), (Ends{5}));
}

TEST(SpeechEnds, AreThoseOfChunks) {
  EXPECT_EQ(speech_ends(shape, 1000, 400), (Ends{400, 800, 1000}));
  EXPECT_EQ(speech_ends(shape, 800, 400), (Ends{400, 800}));
  EXPECT_EQ(speech_ends(shape, 399, 400), (Ends{399}));
}

TEST(SpeechLog, AWordIsWrittenWithItsLastToken) {
  const std::vector<Write> writes = {{880, 0.1}, {1520, 0.2}, {1600, 0.4}};
  const LatencyLog log = speech_log(shape, 1600, writes, std::vector<WordSpan>{{0, 1}, {2, 2}}, 7);
  EXPECT_EQ(log.delays, (std::vector<double>{95, 100}));
  EXPECT_EQ(log.elapsed, (std::vector<double>{95 + 200, 100 + 400}));
  EXPECT_EQ(log.source_length, 100);
  EXPECT_EQ(log.reference_length, 7);
}

// golden/latency.py had SimulEval read the same chunks and write at the same times: neither delays nor times are cut at
// the source's length, and times go on where computing takes longer than the speech.
TEST(SpeechLog, IsWhatSimulEvalLogs) {
  std::ifstream file(ATTNKIT_SOURCE_DIR "/tests/core/stream/golden/latency.json");
  const nlohmann::json all = nlohmann::json::parse(file);
  size_t cases = 0;
  for (const nlohmann::json& c : all["cases"]) {
    if (c["kind"] != "speech") continue;
    SCOPED_TRACE(c["name"]);
    ++cases;
    const nlohmann::json& actions = c["actions"];
    const SpeechShape made{actions["sample_rate"], 400, 160, 4};
    const int64_t samples = actions["samples"];
    const Ends ends = speech_ends(made, samples, made.samples_in(actions["chunk_ms"]));
    std::vector<Write> writes;
    std::vector<WordSpan> words;
    for (const nlohmann::json& write : actions["writes"]) {
      words.push_back({writes.size(), writes.size()});
      writes.push_back({ends.at(write[0].get<size_t>() - 1), write[1]});
    }
    const LatencyLog log = speech_log(made, samples, writes, words, c["reference_length"].get<double>());
    EXPECT_EQ(log.delays, c["delays"].get<std::vector<double>>());
    EXPECT_EQ(log.elapsed, c["elapsed"].get<std::vector<double>>());
    EXPECT_EQ(log.source_length, c["source_length"].get<double>());
    EXPECT_DOUBLE_EQ(latency(log)->al, c["al"].get<double>());
    EXPECT_DOUBLE_EQ(latency(log)->dal, c["dal"].get<double>());
    EXPECT_DOUBLE_EQ(computation_aware_latency(log)->laal, c["laal_ca"].get<double>());
  }
  EXPECT_GE(cases, 10u);
}

}  // namespace
}  // namespace attnkit::core::stream
