// Quantised tensors of GGUF become the f32 that its own library makes of it, bit for bit (make_golden.py).
#include <gtest/gtest.h>

#include <cstring>

#include "core/import/architecture.hpp"
#include "core/weights/weights.hpp"

namespace attnkit::core {
namespace {

const std::string golden = ATTNKIT_SOURCE_DIR "/tests/core/weights/golden/quantised.gguf";

class GgufWeights : public testing::TestWithParam<const char*> {};

TEST_P(GgufWeights, AreTheSameBits) {
  const Weights weights = Weights::open(golden, "");
  const StoredTensor* stored = weights.find(GetParam());
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->dtype, GetParam());
  ASSERT_EQ(stored->shape.size(), 2u);
  EXPECT_EQ(stored->shape[0], 3);
  const std::vector<float> made = weights.f32(GetParam(), stored->shape);
  const std::vector<float> expected = weights.f32(std::string(GetParam()) + ".f32", stored->shape);
  ASSERT_EQ(made.size(), static_cast<size_t>(3 * stored->shape[1]));
  EXPECT_EQ(std::memcmp(made.data(), expected.data(), made.size() * sizeof(float)), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, GgufWeights, testing::Values("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"),
                         [](const auto& info) { return std::string(info.param); });

TEST(GgufNames, AreTheArchitecturesOwn) {
  const Architecture made = Architecture::read(R"(
schema = "attnkit.architecture/1"
[tensors.names]
"a" = "model.a"
[gguf]
architecture = ["one"]
only = { "one.mode" = [3] }
[gguf.manifest.model]
d_model = { config = "one.width" }
[gguf.tensors]
ignore = ["*"]
[gguf.tensors.names]
"decoder.ffn.{layer}.in.weight" = { tensor = "Q4_{layer-1}", part = "2/3" }
)",
                                               "one");
  ASSERT_TRUE(made.gguf);
  EXPECT_EQ(made.gguf->model_types, std::vector<std::string>{"one"});
  EXPECT_EQ(made.gguf->only.at("one.mode"), std::vector<std::string>{"3"});
  ASSERT_EQ(made.gguf->manifest.size(), 1u);
  EXPECT_EQ(made.gguf->manifest[0].value.config, std::vector<std::string>{"one.width"});
  const Weights weights = Weights::open(golden, "", std::make_shared<const NameMap>(made.tensors));
  ASSERT_EQ(weights.tensors().size(), 2u);
  const std::vector<float> whole = Weights::open(golden, "").f32("Q4_1", {3, 512});
  EXPECT_EQ(weights.f32("decoder.ffn.2.in.weight", {1, 512}),
            std::vector<float>(whole.begin() + 512, whole.begin() + 1024));
}

}  // namespace
}  // namespace attnkit::core
