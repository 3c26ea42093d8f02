// Tokenizers of Hugging Face give the ids, and the text, that the library `tokenizers` gives (make_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/tokenizer/huggingface.hpp"

namespace attnkit::core {
namespace {

const std::string folder = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/";

struct Line {
  std::string text, back;
  std::vector<int32_t> ids;
};

std::vector<Line> golden(const std::string& name) {
  std::ifstream file(folder + name + ".jsonl");
  std::vector<Line> lines;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    lines.push_back({json["text"], json["back"], json["ids"]});
  }
  EXPECT_GT(lines.size(), 300u);
  return lines;
}

// With the end that hosts add.
std::vector<int32_t> ids_of(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids = tokenizer.tokenize(text);
  ids.push_back(tokenizer.end_id());
  return ids;
}

void compare(const Tokenizer& tokenizer, const std::string& name) {
  for (const Line& line : golden(name)) {
    EXPECT_EQ(ids_of(tokenizer, line.text), line.ids) << quote(line.text);
    EXPECT_EQ(tokenizer.detokenize(line.ids.data(), line.ids.size()), line.back) << quote(line.text);
  }
}

TEST(HuggingFaceGolden, UncasedBert) {
  compare(*open_tokenizer_json(folder + "uncased.json", {.max_ids = 10000}), "uncased");
}

TEST(HuggingFaceGolden, CasedWithAddedTokens) {
  compare(*open_tokenizer_json(folder + "cased.json", {.max_ids = 10000}), "cased");
}

TEST(HuggingFaceGolden, BytesOfRoberta) {
  compare(*open_tokenizer_json(folder + "bytes.json", {.max_ids = 10000}), "bytes");
}

// Texts that a decoder continues, with the beginning that hosts add.
void compare_target(const std::string& name, const std::string& end, const std::string& begin) {
  TokenizerUse use;
  use.target = true;
  use.end = end;
  const auto tokenizer = open_tokenizer_json(folder + name + ".json", use);
  ASSERT_EQ(tokenizer->token(tokenizer->end_id()), end);
  ASSERT_EQ(tokenizer->begin_id() < 0 ? "" : tokenizer->token(tokenizer->begin_id()), begin);
  for (const Line& line : golden(name)) {
    std::vector<int32_t> ids = tokenizer->tokenize(line.text);
    if (!begin.empty()) ids.insert(ids.begin(), tokenizer->begin_id());
    EXPECT_EQ(ids, line.ids) << quote(line.text);
    EXPECT_EQ(tokenizer->detokenize(ids.data(), ids.size()), line.back) << quote(line.text);
  }
}

TEST(HuggingFaceGolden, Llama3) { compare_target("llama3", "<|end|>", "<|begin|>"); }

TEST(HuggingFaceGolden, Qwen2) { compare_target("qwen2", "<|end|>", ""); }

TEST(HuggingFaceGolden, SmolLM) { compare_target("smollm", "<|end|>", ""); }

TEST(HuggingFaceGolden, Llama2) { compare_target("llama2", "</s>", "<s>"); }

TEST(HuggingFaceGolden, Mistral) { compare_target("mistral", "</s>", "<s>"); }

TEST(HuggingFaceGolden, UnigramOfXlmRoberta) {
  compare(*open_tokenizer_json(folder + "unigram.json", {.max_ids = 10000}), "unigram");
}

TEST(HuggingFaceGolden, UnigramOfT5) { compare(*open_tokenizer_json(folder + "t5.json", {.max_ids = 10000}), "t5"); }

TEST(HuggingFaceGolden, VocabTxtIsTheSameTokenizer) {
  compare(*open_wordpiece(folder + "vocab.txt", true, {.max_ids = 10000}), "uncased");
}

TEST(HuggingFaceGolden, LongTextsAreCut) {
  const auto whole = open_tokenizer_json(folder + "uncased.json", {.max_ids = 10000});
  const auto cut = open_tokenizer_json(folder + "uncased.json", {.max_ids = 8});
  for (const Line& line : golden("uncased")) {
    std::vector<int32_t> expected = whole->tokenize(line.text);
    if (expected.size() > 7) expected.resize(7);
    EXPECT_EQ(cut->tokenize(line.text), expected);
  }
}

}  // namespace
}  // namespace attnkit::core
