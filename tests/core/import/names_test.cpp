// Names of other libraries become ours and back, and a file of them is read strictly.
#include "core/import/names.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "core/import/architecture.hpp"

namespace attnkit::core {
namespace {

const std::string opening = "schema = \"attnkit.architecture/1\"\n";

NameMap map_of(const std::string& tensors) { return Architecture::read(opening + tensors, "own.toml").tensors; }

std::vector<std::string> ours(const NameMap& map, const std::string& theirs) {
  std::vector<std::string> names;
  for (const NameMap::Ours& one : map.ours(theirs)) names.push_back(one.name);
  return names;
}

using Names = std::vector<std::string>;

const char* const sample = R"([tensors]
prefix  = "model."
endings = { gamma = "weight" }
ignore  = ["pooler.*", "layer.{layer-1}.mask"]
[tensors.names]
"encoder.embed.weight"      = "words.weight"
"encoder.ffn.{layer}.in.*"  = "layer.{layer-1}.in.*"
"encoder.ffn.{layer}.out.*" = "blocks.{layer}.{layer}.out.*"
"encoder.self.{layer}.q.*"  = { tensor = "layer.{layer-1}.qkv.*", part = "1/3", transposed = true }
"encoder.self.{layer}.k.*"  = { tensor = "layer.{layer-1}.qkv.*", part = "2/3", transposed = true }
)";

TEST(NameMap, NamesBothWays) {
  const NameMap map = map_of(sample);
  EXPECT_EQ(ours(map, "words.weight"), Names{"encoder.embed.weight"});
  EXPECT_EQ(ours(map, "model.words.gamma"), Names{"encoder.embed.weight"});
  EXPECT_EQ(ours(map, "layer.0.in.bias"), Names{"encoder.ffn.1.in.bias"});
  EXPECT_EQ(ours(map, "layer.11.in.weight"), Names{"encoder.ffn.12.in.weight"});
  EXPECT_EQ(ours(map, "blocks.2.2.out.bias"), Names{"encoder.ffn.2.out.bias"});
  EXPECT_EQ(ours(map, "layer.0.qkv.weight"), (Names{"encoder.self.1.k.weight", "encoder.self.1.q.weight"}));
  EXPECT_EQ(map.theirs("encoder.ffn.12.in.weight"), "layer.11.in.weight");
  EXPECT_EQ(map.theirs("encoder.norm.weight"), "");
}

TEST(NameMap, WhatDoesNotFitHasNoName) {
  const NameMap map = map_of(sample);
  for (const char* theirs : {"words.weight.more", "words", "layer.00.in.bias", "layer..in.bias", "layer.x.in.bias",
                             "layer.9999999999.in.bias", "blocks.0.0.out.bias", "blocks.1.2.out.bias", ""})
    EXPECT_EQ(ours(map, theirs), Names()) << theirs;
}

TEST(NameMap, Ignores) {
  const NameMap map = map_of(sample);
  EXPECT_TRUE(map.ignores("pooler.dense.weight"));
  EXPECT_TRUE(map.ignores("model.pooler.dense.weight"));
  EXPECT_TRUE(map.ignores("layer.3.mask"));
  EXPECT_FALSE(map.ignores("layer.3.masks"));
  EXPECT_FALSE(map.ignores("dense.pooler"));
}

TEST(Architecture, MistakesAreNamed) {
  struct Case {
    std::string text, message;
  };
  const std::string names = "[tensors.names]\n";
  for (const auto& [text, message] : {
           Case{"x = ", "own.toml:1:5: "},
           Case{"schema = \"attnkit.architecture/2\"", "schema must be \"attnkit.architecture/1\""},
           Case{opening, "needs \"tensors\""},
           Case{opening + "base = 3", "2:8: must be text"},
           Case{opening + "base = \"lama\"", "\"lama\" is no architecture that ships with attnkit; did you mean"},
           Case{opening + "base = \"nowhere.toml\"", "nowhere.toml"},
           Case{opening + "[tensors]\nprefiks = 3\n" + names,
                "3:11: unknown key \"prefiks\"; did you mean \"prefix\"?"},
           Case{opening + "[tensors]\n", "needs \"names\""},
           Case{opening + names + "a = 3", "must be text"},
           Case{opening + names + "a = \"b.{lager}\"", "\"b.{lager}\" is no name: "},
           Case{opening + names + "a = \"b.*.c\"", "\"b.*.c\" is no name: "},
           Case{opening + names + "a = { tensor = \"b\", part = \"4/3\" }", "\"part\" must be such as \"1/3\""},
           Case{opening + names + "a = { tensor = \"b\", part = \"1\" }", "\"part\" must be such as \"1/3\""},
           Case{opening + names + "a = { tensor = \"b\", part = \"1/head:2\" }",
                "a part as large as \"head\"; did you mean \"heads\"?: numbers from 1 to 1048576 are possible, and "
                "d_model, "},
           Case{opening + names + "a = { tensor = \"b\", part = \"3/heads:2\" }", "\"part\" must be such as \"1/3\""},
           Case{opening + names + "a = { tensor = \"b\", part = \"1/2:0\" }", "a part as large as \"0\""},
           Case{opening + names + "a = { tensor = \"b\", turned = true }", "unknown key \"turned\""},
           Case{opening + names + "[config]\nonly = { x = 3 }", "must be an array of the values that are supported"},
           Case{opening + names + "[manifest.model]\nffn = { config = [] }", "\"config\" needs a key"},
           Case{opening + names + "[manifest.model]\nffn = { config = \"x\", plus = \"1\" }", "must be an integer"},
           Case{opening + names + "[manifest.model]\nffn = { config = \"x\", absent = 1, values = { 2 = 3 } }",
                "must be a word of \"values\""},
           Case{opening + names +
                    "[manifest.model]\nffn = { config = \"x\", absent = 2, default = 1, values = { 2 = 3 } }",
                "one of them is enough"},
       }) {
    try {
      Architecture::read(text, "own.toml");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()).find("own.toml:"), 0u) << e.what();
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
  }
}

// A file's own entries go over those of its base, part by part; which checkpoints are the base's does not
// pass on.
TEST(Architecture, BeginsWithAnother) {
  const Architecture made = Architecture::read(R"(
schema = "attnkit.architecture/1"
base = "qwen3"
[config]
model_type = ["own"]
[manifest.model]
qk_norm = false
heads = 7
[tensors.names]
"decoder.embed.weight" = "words"
)",
                                               "own.toml");
  const Architecture llama = open_architecture("llama", "");
  EXPECT_EQ(made.model_types, std::vector<std::string>{"own"});
  EXPECT_EQ(made.gguf, nullptr);
  EXPECT_EQ(made.manifest.size(), llama.manifest.size() + 1 + 4) << "qk_norm, and what an override of layers says";
  for (const ManifestEntry& entry : made.manifest) {
    if (entry.key == "qk_norm") {
      EXPECT_EQ(entry.value.constant, "false");
    } else if (entry.key == "heads") {
      EXPECT_EQ(entry.value.constant, "7");
    } else if (entry.key == "d_model") {
      EXPECT_EQ(entry.value.config, std::vector<std::string>{"hidden_size"});
    }
  }
  const Architecture narrow =
      Architecture::read("schema = \"attnkit.architecture/1\"\nbase = \"gemma\"\nconfig.only.x = [3]", "narrow.toml");
  EXPECT_EQ(narrow.only.count("attn_logit_softcapping"), 1u);
  EXPECT_EQ(narrow.only.count("x"), 1u);
  EXPECT_EQ(made.tensors.prefix, "model.");
  EXPECT_EQ(made.tensors.theirs("decoder.embed.weight"), "words");
  EXPECT_EQ(made.tensors.theirs("decoder.self.2.q.norm.weight"), "layers.1.self_attn.q_norm.weight");
  const Architecture qwen2 = open_architecture("qwen2", "");
  EXPECT_EQ(qwen2.gguf->model_types, std::vector<std::string>{"qwen2"});
  EXPECT_EQ(qwen2.gguf->tensors.rules.size(), llama.gguf->tensors.rules.size());
}

TEST(Architecture, ShippedOnesAreRead) {
  ASSERT_FALSE(shipped_architectures().empty());
  for (const std::string& name : shipped_architectures()) {
    const Architecture whole = open_architecture(name, "");
    // One that only CTranslate2's folders have.
    const Architecture& one = whole.model_types.empty() && whole.ctranslate2 ? *whole.ctranslate2 : whole;
    EXPECT_FALSE(one.model_types.empty()) << name;
    EXPECT_FALSE(one.manifest.empty()) << name;
    EXPECT_FALSE(one.tensors.rules.empty()) << name;
  }
  try {
    open_architecture("distilbrt", "");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find(
                  "\"distilbrt\" is no architecture that ships with attnkit; did you mean \"distilbert\"?; "),
              0u)
        << e.what();
  }
}

// The parser recurses.
TEST(Architecture, DeepOnesAreRefused) {
  std::string dots = opening + "a";
  for (int i = 0; i < 50'000; ++i) dots += ".a";
  for (const std::string& text : {dots + " = 1\n", opening + "a = " + std::string(50'000, '[')}) try {
      Architecture::read(text, "own.toml");
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "own.toml: is nested deeper than 16 levels");
    }
}

}  // namespace
}  // namespace attnkit::core
