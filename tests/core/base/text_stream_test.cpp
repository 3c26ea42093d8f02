#include "core/base/text_stream.hpp"

#include <gtest/gtest.h>

#include "core/base/text.hpp"
#include "core/tokenizer/huggingface.hpp"

namespace attnkit::core {
namespace {

const std::string golden = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/";

struct Sample {
  const char *file, *end;
};

class TextStreams : public testing::TestWithParam<Sample> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer() const {
    TokenizerUse use;
    use.target = true;
    use.end = GetParam().end;
    return open_tokenizer_json(golden + GetParam().file, use);
  }
};

TEST_P(TextStreams, AddUpToTheText) {
  const auto tokens = tokenizer();
  for (const std::string text : {"the attention of each head", "naïve 東京 你好世界 😀👍🏽 x̸́",
                                 "  two  spaces ", "\n\nlines\n", ""}) {
    TextStream stream([&](std::span<const int32_t> ids) { return tokens->detokenize(ids.data(), ids.size()); });
    const std::vector<int32_t> ids = tokens->tokenize(text);
    std::string whole;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(part.find("\ufffd"), std::string::npos);
      whole += part;
    }
    EXPECT_EQ(stream.finish(), "");
    EXPECT_EQ(whole, tokens->detokenize(ids.data(), ids.size()));
  }
}

TEST_P(TextStreams, HalfACharacterComesAtTheEnd) {
  const auto tokens = tokenizer();
  std::vector<int32_t> ids = tokens->tokenize("the 𐍈");
  ids.pop_back();
  TextStream stream([&](std::span<const int32_t> some) { return tokens->detokenize(some.data(), some.size()); });
  std::string whole;
  for (const int32_t id : ids) whole += stream.push(id);
  EXPECT_EQ(whole, "the ");
  whole += stream.finish();
  EXPECT_EQ(whole, tokens->detokenize(ids.data(), ids.size()));
  EXPECT_TRUE(whole.ends_with("\ufffd"));
}

// As ByteFallback spells bytes: all of them as U+FFFD where they are no text.
TEST(TextStream, WhatHalfACharacterSpoilsStaysUtf8) {
  const std::string bytes = "\u00e9\xc3";
  TextStream stream([&](std::span<const int32_t> ids) {
    std::string text, replaced;
    for (const int32_t id : ids) text += bytes[static_cast<size_t>(id)], replaced += "\ufffd";
    return valid_utf8(text) == text.size() ? text : replaced;
  });
  EXPECT_EQ(stream.push(0) + stream.push(1) + stream.push(2), "\u00e9");
  EXPECT_EQ(stream.finish(), "\ufffd\ufffd");
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, TextStreams,
                         testing::Values(Sample{"llama3.json", "<|end|>"}, Sample{"llama2.json", "</s>"},
                                         Sample{"mistral.json", "</s>"}));

}  // namespace
}  // namespace attnkit::core
