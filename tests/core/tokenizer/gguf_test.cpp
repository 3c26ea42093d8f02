// A GGUF file's vocabulary gives the ids of the tokenizer that it was made of (make_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/text.hpp"
#include "core/tokenizer/gguf_vocabulary.hpp"
#include "tests/core/base/damaged_file.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core {
namespace {

const std::string folder = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/";

TokenizerUse target() {
  TokenizerUse use;
  use.target = true;
  return use;
}

class GgufVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(GgufVocabulary, GivesTheSameIds) {
  const std::string name = GetParam();
  const auto tokenizer = open_gguf_vocabulary(folder + name + ".gguf", target());
  EXPECT_EQ(tokenizer->token(tokenizer->end_id()), name == "pairs" || name == "sentences" ? "</s>" : "<|end|>");
  ASSERT_EQ(tokenizer->begin_id() < 0 ? "" : tokenizer->token(tokenizer->begin_id()), name == "llama3"  ? "<|begin|>"
                                                                                      : name == "pairs" ? "<s>"
                                                                                                        : "");
  std::ifstream file(folder + name + ".jsonl");
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const std::string text = json["text"];
    std::vector<int32_t> ids = tokenizer->tokenize(text);
    if (name == "llama3") ids.insert(ids.begin(), tokenizer->begin_id());
    EXPECT_EQ(ids, json["ids"].get<std::vector<int32_t>>()) << quote(text);
    EXPECT_EQ(tokenizer->detokenize(ids.data(), ids.size()), json["back"].get<std::string>()) << quote(text);
  }
  EXPECT_GT(lines, 250);
}

INSTANTIATE_TEST_SUITE_P(Models, GgufVocabulary, testing::Values("llama3", "qwen2", "smollm", "pairs", "sentences"),
                         [](const auto& info) { return std::string(info.param); });

// The file with the first of these bytes replaced by others of the same number.
std::string refusal(const std::string& name, const std::string& from, const std::string& to) {
  std::ifstream file(folder + name + ".gguf", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  bytes.replace(at, to.size(), to);
  const TemporaryFile edited(bytes);
  return refusal_by([](auto, const std::string& path) { open_gguf_vocabulary(path, target()); }, bytes, edited.path());
}

TEST(GgufVocabularies, MistakesAreNamed) {
  const auto refused = [](const char* name, const std::string& from, const std::string& to, const char* message) {
    EXPECT_EQ(refusal(name, from, to).rfind(message, 0), 0u) << message << "\n" << refusal(name, from, to);
  };
  refused("smollm", "gpt2", "bert", "tokenizer.ggml.model is \"bert\", which is not supported; gpt2, llama and t5 are");
  refused("smollm", "ggml.model", "ggml.moxel", "tokenizer.ggml.model must be a string, not absent");
  refused("smollm", "smollm", "gollum", "tokenizer.ggml.pre is \"gollum\", which is not supported; gpt-2, llama-bpe");
  refused("smollm", "ggml.tokens", "ggml.toxens", "tokenizer.ggml.tokens must be an array, not absent");
  refused("smollm", "ggml.merges", "ggml.mergex", "tokenizer.ggml.merges must be an array, not absent");
  refused("smollm", "<|end|>", "<|\xff\xff\xff|>",
          "tokenizer.ggml.tokens has \"<|\\xff\\xff\\xff|>\" at 0, which is no token");
  refused("smollm", "eos_token_id", "eox_token_id",
          "names no token that ends a text; the manifest's \"end\" says which");
  refused("pairs", "ggml.scores", "ggml.scorex", "tokenizer.ggml.scores must be an array, not absent");
  refused("pairs", std::string("eos_token_id\4\0\0\0\2\0", 18), std::string("eos_token_id\4\0\0\0\2\7", 18),
          "tokenizer.ggml.eos_token_id is 1794; there are 700 tokens");
}

}  // namespace
}  // namespace attnkit::core
