// The error of a faulty model.bin of CTranslate2 is one line that names the file and the variable; no bytes do harm.
#include "core/base/formats/ctranslate2.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/core/base/damaged_file.hpp"

namespace attnkit::core {
namespace {

constexpr uint8_t f32 = 0, i8 = 1, i16 = 2, f16 = 4;

// The bytes of a file, part by part.
struct Bytes {
  std::string bytes;
  template <class T>
  Bytes& add(T value) {
    append(bytes, value);
    return *this;
  }
  Bytes& add(const char* text) {
    add(static_cast<uint16_t>(std::strlen(text) + 1));
    bytes.append(text, std::strlen(text) + 1);
    return *this;
  }
  Bytes& header(uint32_t variables, uint32_t version = 6) {
    return add(version).add("WhisperSpec").add(uint32_t{3}).add(variables);
  }
  Bytes& variable(const char* name, std::vector<uint32_t> shape, uint8_t type, const std::string& data) {
    add(name).add(static_cast<uint8_t>(shape.size()));
    for (const uint32_t n : shape) add(n);
    add(type).add(static_cast<uint32_t>(data.size()));
    bytes += data;
    return *this;
  }
  Bytes& alias(const char* alias, const char* of) { return add(alias).add(of); }
};

std::string floats(const std::vector<float>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)};
}

std::string refusal(const Bytes& file) { return refusal_by(Ctranslate2::read, file.bytes, "model.bin"); }

Bytes good() {
  return Bytes()
      .header(5)
      .variable("encoder/num_heads", {}, i16, std::string("\6\0", 2))
      .variable("encoder/layer_0/linear_0/weight", {2, 3}, i8, std::string("\1\2\3\4\5\6", 6))
      .variable("encoder/layer_0/linear_0/weight_scale", {2}, f32, floats({10, 20}))
      .variable("encoder/layer_3/bias", {2}, f16, std::string(4, '\0'))
      .variable("decoder/layer_norm/gamma", {1}, f32, floats({1}))
      .add(uint32_t{2})
      .alias("decoder/layer_norm/beta", "decoder/layer_norm/gamma")
      .alias("decoder/weight", "encoder/layer_0/linear_0/weight");
}

TEST(Ctranslate2, GivesSettingsSizesAndTensors) {
  const Bytes file = good();
  const Ctranslate2 made = Ctranslate2::read(std::as_bytes(std::span(file.bytes)), "model.bin");
  const nlohmann::json& m = made.metadata;
  EXPECT_EQ(m["spec"], "WhisperSpec");
  EXPECT_EQ(m["revision"], 3);
  EXPECT_EQ(m["encoder/num_heads"], 6);
  EXPECT_EQ(m["encoder/layer_0/linear_0/weight[1]"], 3);
  EXPECT_EQ(m["encoder/layer_*"], 4);
  ASSERT_EQ(made.tensors.size(), 5u);
  const Ctranslate2Tensor &scaled = made.tensors[0], &alias = made.tensors[3];
  EXPECT_EQ(scaled.name, "encoder/layer_0/linear_0/weight");
  EXPECT_EQ(scaled.type, "I8");
  EXPECT_EQ(scaled.scales.size(), 8u);
  EXPECT_EQ(made.tensors[1].type, "F16");
  EXPECT_EQ(alias.name, "decoder/layer_norm/beta");
  EXPECT_TRUE(alias.alias);
  EXPECT_EQ(made.tensors[4].scales.data(), scaled.scales.data());
  EXPECT_EQ(alias.data.data(), made.tensors[2].data.data());
}

TEST(Ctranslate2, SaysWhatIsWrong) {
  EXPECT_EQ(refusal(Bytes().add("no")), "is no model.bin of CTranslate2");
  EXPECT_EQ(refusal(Bytes().header(0, 5)),
            "is of version 5; 6 is supported: convert the model with a newer CTranslate2");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {2}, f32, "1234")),
            "variable \"a\" has 4 bytes, which its shape and type do not make");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {1}, 9, "1234")), "variable \"a\" has the unknown type 9");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {1, 1, 1, 1, 1}, i8, "1")),
            "variable \"a\" has 5 dimensions; up to 4 are supported");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {1u << 31, 1u << 31, 1u << 31}, i8, "")),
            "variable \"a\" has a size that overflows 64 bits");
  EXPECT_EQ(refusal(Bytes().header(2).variable("a", {1}, f32, "1234").variable("a", {1}, f32, "1234")),
            "has \"a\" twice");
  EXPECT_EQ(refusal(Bytes().header(1).variable("", {1}, f32, "1234")), "has a name at byte 26 that is none: \"\"");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {1}, i8, "1").add(uint32_t{0})),
            "variable \"a\" is I8 and has no scales");
  EXPECT_EQ(
      refusal(Bytes()
                  .header(2)
                  .variable("a", {3}, i8, "123")
                  .variable("a_scale", {2}, f32, floats({1, 2}))
                  .add(uint32_t{0})),
      "variable \"a_scale\" has 2 numbers of F32; one for each of the rows of \"a\", or one for all, is supported");
  EXPECT_NE(
      refusal(
          Bytes().header(2).variable("a_scale", {}, i8, "1").variable("a_scale_scale", {0}, f32, "").add(uint32_t{0})),
      "");
  EXPECT_EQ(refusal(Bytes().header(1).variable("a", {1}, f32, "1234").add(uint32_t{1}).alias("b", "c")),
            "has the alias \"b\" of \"c\", which is not there");
  EXPECT_EQ(refusal(Bytes(good()).add('x')), "has 1 bytes behind the last alias");
}

TEST(Ctranslate2, EveryBeginningIsCutOff) { expect_beginnings_refused(Ctranslate2::read, good().bytes); }

TEST(Ctranslate2, SurvivesDamage) {
  const std::string whole = good().bytes;
  expect_damage_survived(Ctranslate2::read, whole, whole.size(), 3);
}

TEST(Ctranslate2, IsKnownByItsBeginning) {
  const std::string whole = good().bytes, safetensors(8, '\6');
  EXPECT_TRUE(is_ctranslate2(std::as_bytes(std::span(whole))));
  EXPECT_FALSE(is_ctranslate2(std::as_bytes(std::span(whole).first(5))));
  EXPECT_FALSE(is_ctranslate2(std::as_bytes(std::span(safetensors))));
  EXPECT_FALSE(is_ctranslate2(std::as_bytes(std::span("GGUF\3\0\0\0", 8))));
  EXPECT_FALSE(is_ctranslate2(std::as_bytes(std::span("\6\0\0\0\0\0\0\0{}    ", 14))));
}

}  // namespace
}  // namespace attnkit::core
