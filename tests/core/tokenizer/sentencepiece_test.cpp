// SentencePiece's files give the ids, and the text, that SentencePiece gives (make_golden.py).
#include "core/tokenizer/sentencepiece.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "tests/core/base/damaged_file.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core {
namespace {

const std::string folder = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/";

class SentencePieceFiles : public testing::TestWithParam<const char*> {};

TEST_P(SentencePieceFiles, GiveTheSameIds) {
  const std::string name = GetParam();
  const auto tokenizer = open_sentencepiece(folder + name + ".model", {});
  EXPECT_EQ(tokenizer->begin_id(), -1);
  EXPECT_EQ(tokenizer->token(tokenizer->end_id()), "</s>");
  std::ifstream file(folder + name + ".jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const std::string text = json["text"];
    const std::vector<int32_t> ids = tokenizer->tokenize(text);
    EXPECT_EQ(ids, json["ids"].get<std::vector<int32_t>>()) << quote(text);
    EXPECT_EQ(tokenizer->detokenize(ids.data(), ids.size()), json["back"].get<std::string>()) << quote(text);
  }
  EXPECT_GT(lines, 250);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceFiles,
                         testing::Values("pairs", "sentences", "kept_pairs", "kept_sentences"),
                         [](const auto& info) { return std::string(info.param); });

// The same text again where a list has the ids, the other way round here.
TEST(SentencePiece, BytesOfAListAreTextAgain) {
  const std::string file = folder + "kept_pairs.model";
  const auto own = open_sentencepiece(file, {});
  nlohmann::json ids;
  for (int32_t id = 0; id < own->size(); ++id) ids[own->token(id)] = own->size() - 1 - id;
  const TemporaryFile list(ids.dump());
  const auto made = open_sentencepiece(file, {.ids = list.path()});
  const std::string text = "the \u6771\u4eac, \U0001f600";
  const std::vector<int32_t> tokens = made->tokenize(text);
  EXPECT_GE(tokens.size(), 10u);
  EXPECT_EQ(made->detokenize(tokens.data(), tokens.size()), text);
}

std::string bytes_of(const std::string& name) {
  std::ifstream file(folder + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string refusal(const std::string& bytes) {
  const TemporaryFile file(bytes);
  return refusal_by([](auto, const std::string& path) { open_sentencepiece(path, {}); }, bytes, file.path());
}

TEST(SentencePiece, MistakesAreNamed) {
  constexpr const char* damaged = "is no SentencePiece file, or is damaged";
  const std::string whole = bytes_of("sentences.model");
  EXPECT_EQ(refusal(""), damaged);
  EXPECT_EQ(refusal("{}"), damaged);
  EXPECT_EQ(refusal(whole.substr(0, 1000)), damaged);
  EXPECT_EQ(refusal(whole + "\x0f"), damaged);
  EXPECT_EQ(refusal(whole + "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), damaged);
  EXPECT_EQ(refusal(whole + std::string("\x0a\x03\x0a\x01\xff", 5)), damaged);
  // A second trainer_spec, or normalizer_spec, overrules the first.
  EXPECT_EQ(refusal(whole + std::string("\x12\x02\x18\x04", 4)),
            "is a model of type 4, which is not supported; 1 (unigram) and 2 (pairs) are");
  EXPECT_EQ(refusal(whole + std::string("\x1a\x02\x28\x00", 4)), "has its white space otherwise than is supported");
  EXPECT_EQ(refusal(whole + std::string("\x12\x03\xd0\x02\x7f", 5)).rfind("names no token that ends a text", 0),
            std::string::npos);
}

// A piece of bytes of a file: field 1, whose field 1 is the text.
std::string piece_of(const std::string& text) {
  const auto number = [](size_t n) {
    std::string bytes;
    for (; n > 127; n >>= 7) bytes += static_cast<char>(n % 128 + 128);
    return bytes + static_cast<char>(n);
  };
  const std::string inner = "\x0a" + number(text.size()) + text;
  return "\x0a" + number(inner.size()) + inner;
}

TEST(SentencePiece, IdsAreThoseOfOneTokenEach) {
  const auto message_of = [](const std::string& file, const TokenizerUse& use) -> std::string {
    try {
      open_sentencepiece(file, use);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const std::string file = folder + "pairs.model";
  EXPECT_EQ(message_of(file, {.fairseq = true}), "");
  const TemporaryFile list(R"({"<unk>": 0, "</s>": 1, "a": 2, "b": 2})");
  EXPECT_EQ(message_of(file, {.ids = list.path()}), list.path() + ": \"a\" and \"b\" have the same id 2");
  const TemporaryFile padded(bytes_of("pairs.model") + piece_of("<pad>"));
  EXPECT_NE(message_of(padded.path(), {.fairseq = true}).find("is \"<pad>\"; fairseq's numbering needs"),
            std::string::npos);
}

// One of type pairs is split in all ways.
TEST(SentencePiece, LongPiecesAreRefused) {
  EXPECT_EQ(refusal(bytes_of("pairs.model") + piece_of(std::string(1024, 'x'))), "");
  EXPECT_EQ(refusal(bytes_of("pairs.model") + piece_of(std::string(1025, 'x'))),
            "a piece has 1025 bytes, 1024 are the most where pairs are merged: \"xxxxxxxxxxxxxxxxxxxx\"...");
}

TEST(SentencePiece, SurvivesDamage) {
  const std::string whole = bytes_of("sentences.model");
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 400; ++i) {
    std::string damaged = whole;
    for (int n = 0; n < 1 + i % 4; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    const TemporaryFile file(damaged);
    try {
      open_sentencepiece(file.path(), {})->tokenize("Some text, unaffable. \uFB01 \u00e4");
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace attnkit::core
