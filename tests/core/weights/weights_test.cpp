// The forms of a safetensors file; no bytes whatever do worse than be refused.
#include "core/weights/weights.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "tests/core/base/damaged_file.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core {
namespace {

std::string little_endian(uint64_t n) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(n >> 8 * i & 255);
  return out;
}

std::string file_of(const std::string& header, const std::string& data) {
  return little_endian(header.size()) + header + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Weights open(const std::string& bytes, const std::string& sha256 = "") {
  const TemporaryFile file(bytes);
  return Weights::open(file.path(), sha256);
}

// The message without the file's path; empty when it was accepted.
std::string refusal(const std::string& bytes, const std::string& sha256 = "") {
  const TemporaryFile file(bytes);
  return refusal_by([&](auto, const std::string& path) { Weights::open(path, sha256); }, bytes, file.path());
}

const std::string small = file_of(
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a":{"dtype":"I32","shape":[],"data_offsets":[24,28]},"none":{"dtype":"F16","shape":[0,5],"data_offsets":[28,28]}}   )",
    bytes_of<float>({1, 2, 3, 4, 5, 6}) + bytes_of<int32_t>({7}));

TEST(Weights, AreFoundByName) {
  const Weights w = open(small, sha256_hex(std::as_bytes(std::span(small))));
  ASSERT_EQ(w.tensors().size(), 3u);
  EXPECT_EQ(w.tensors()[0].name, "a");
  EXPECT_EQ(w.find("b")->dtype, "F32");
  EXPECT_EQ(w.find("b")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.find("b")->data.size(), 24u);
  EXPECT_EQ(w.find("c"), nullptr);
  EXPECT_EQ(w.f32("b", {2, 3}), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_TRUE(w.f32("none", {0, 5}).empty());
}

TEST(Weights, OutliveTheirFileAndCopies) {
  std::unique_ptr<Weights> copy;
  {
    const Weights w = open(small);
    copy = std::make_unique<Weights>(w);
  }
  EXPECT_EQ(copy->f32("b", {2, 3})[5], 6.0f);
}

TEST(Weights, OfOtherShapesAndTypesAreRefused) {
  const Weights w = open(small);
  for (const auto& [name, shape, part] :
       {std::tuple{"b", std::vector<int64_t>{3, 2}, "is 2x3, the model needs 3x2"},
        std::tuple{"x", std::vector<int64_t>{1}, "no tensor \"x\""},
        std::tuple{"a", std::vector<int64_t>{}, "has type I32; F32, F16, BF16, F64, I8 or U8 with scales is needed"}}) {
    try {
      w.f32(name, shape);
      ADD_FAILURE() << name;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(shape_text({2, 3}), "2x3");
  EXPECT_EQ(shape_text({}), "scalar");
}

TEST(Weights, TakeTwoNumbersOfFourBitsFromAByte) {
  std::vector<uint8_t> bytes(2 * 17, 0x88);
  bytes[0] = 0xf0;       // -8, 7
  bytes[16] = 0x89;      // the 33rd of the first row, in a block of its own
  bytes[17 + 1] = 0x07;  // the third of the second row: -1
  std::string data(bytes.begin(), bytes.end());
  data += bytes_of<float>({0.5f, 2, -1, 1});
  const Weights w = open(file_of(
      R"({"x":{"dtype":"U8","shape":[2,17],"data_offsets":[0,34]},"x.scale":{"dtype":"F32","shape":[2,2],"data_offsets":[34,50]}})",
      data));
  std::vector<float> expected(2 * 33);
  expected[0] = -4;
  expected[1] = 3.5f;
  expected[32] = 2;
  expected[33 + 2] = 1;
  expected[33 + 3] = 8;
  EXPECT_EQ(w.f32("x", {2, 33}), expected);
  EXPECT_THROW(w.f32("x", {2, 35}), Error);
  EXPECT_THROW(w.f32("x", {2, 17}), Error);  // numbers of eight bits have no scales
}

TEST(Weights, ConvertHalves) {
  const auto half = [](uint16_t bits) {
    return open(file_of(R"({"x":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})", bytes_of<uint16_t>({bits})))
        .f32("x", {1})[0];
  };
  EXPECT_EQ(half(0x3c00), 1.0f);
  EXPECT_EQ(half(0xc000), -2.0f);
  EXPECT_EQ(half(0x7bff), 65504.0f);
  EXPECT_EQ(half(0x0001), 0x1p-24f);
  EXPECT_EQ(half(0x03ff), 1023 * 0x1p-24f);
  EXPECT_EQ(half(0x0400), 0x1p-14f);
  EXPECT_EQ(half(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(half(0x7e00)));
  EXPECT_TRUE(std::signbit(half(0x8000)));
  EXPECT_EQ(half(0x8000), 0.0f);
}

TEST(Weights, ConvertOtherFloats) {
  const Weights w = open(file_of(
      R"({"bf":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"d":{"dtype":"F64","shape":[1],"data_offsets":[4,12]}})",
      bytes_of<uint16_t>({0x3f80, 0xc040}) + bytes_of<double>({0.1})));
  EXPECT_EQ(w.f32("bf", {2}), (std::vector<float>{1.0f, -3.0f}));
  EXPECT_EQ(w.f32("d", {1})[0], 0.1f);
}

struct Broken {
  const char *name, *header;
  size_t data;
  const char* reason;  // beginning of the message
};
std::ostream& operator<<(std::ostream& out, const Broken& b) { return out << b.name; }
class BrokenWeights : public testing::TestWithParam<Broken> {};
TEST_P(BrokenWeights, AreRefusedWithTheReason) {
  const Broken& b = GetParam();
  EXPECT_EQ(refusal(file_of(b.header, std::string(b.data, 'x'))).substr(0, std::string(b.reason).size()), b.reason);
}
#define T(dtype, shape, begin, end) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
const Broken broken[] = {
    {"Overlap", "{\"a\":" T("U8", "[4]", "0", "4") ",\"b\":" T("U8", "[4]", "2", "6") "}", 6,
     "tensor \"b\" begins at byte 2, which overlaps"},
    {"Same", "{\"a\":" T("U8", "[4]", "0", "4") ",\"b\":" T("U8", "[4]", "0", "4") "}", 4,
     "tensor \"b\" begins at byte 0, which overlaps"},
    {"Hole", "{\"a\":" T("U8", "[4]", "0", "4") ",\"b\":" T("U8", "[4]", "5", "9") "}", 9,
     "tensor \"b\" begins at byte 5, which leaves a hole"},
    {"HoleInFront", "{\"a\":" T("U8", "[4]", "1", "5") "}", 5, "tensor \"a\" begins at byte 1, which leaves a hole"},
    {"TrailingData", "{\"a\":" T("U8", "[4]", "0", "4") "}", 5, "the tensors cover 4 bytes of data, the file holds 5"},
    {"DataMissing", "{\"a\":" T("U8", "[4]", "0", "4") "}", 3, "the tensors cover 4 bytes of data, the file holds 3"},
    {"Backwards", "{\"a\":" T("U8", "[4]", "4", "0") "}", 4, "tensor \"a\" ends at byte 0, before its begin at 4"},
    {"SizeDiffers", "{\"a\":" T("F32", "[2]", "0", "4") "}", 4,
     "tensor \"a\" (F32 2) needs 8 bytes, its offsets give 4"},
    {"ShapeOverflows", "{\"a\":" T("U8", "[4294967296,4294967296]", "0", "0") "}", 0,
     "tensor \"a\" has a shape whose size overflows"},
    {"TimesTypeOverflows", "{\"a\":" T("F64", "[2305843009213693952]", "0", "0") "}", 0,
     "tensor \"a\" has a shape whose size overflows"},
    {"HugeDimension", "{\"a\":" T("U8", "[9223372036854775808]", "0", "0") "}", 0,
     "the header tensor \"a\" has a dimension of"},
    {"HugeOffset", "{\"a\":" T("U8", "[4]", "18446744073709551612", "18446744073709551616") "}", 4,
     "the header tensor \"a\": data_offsets has"},
    {"WrappingOffsets", "{\"a\":" T("U8", "[4]", "18446744073709551611", "18446744073709551615") "}", 4,
     "tensor \"a\" begins at byte 18446744073709551611"},
    {"Negative", "{\"a\":" T("U8", "[-1]", "0", "0") "}", 0, "the header tensor \"a\": shape has a negative number"},
    {"Float", "{\"a\":" T("U8", "[1.0]", "0", "1") "}", 1,
     "the header tensor \"a\": shape has a number that is no 64-bit"},
    {"UnknownType", "{\"a\":" T("F4", "[4]", "0", "4") "}", 4, "tensor \"a\" has the unknown type \"F4\""},
    {"TensorTwice", "{\"a\":" T("U8", "[1]", "0", "1") ",\"a\":" T("U8", "[1]", "0", "1") "}", 1,
     "the header holds \"a\" twice"},
    {"FieldTwice", "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "the header tensor \"a\" has the field \"dtype\" twice"},
    {"MetadataTwice", "{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"}}", 0,
     "the header holds the __metadata__ key \"x\" twice"},
    {"MetadataIsNoText", "{\"__metadata__\":{\"x\":1}}", 0, "the header has a number in __metadata__"},
    {"MetadataNested", "{\"__metadata__\":{\"x\":{}}}", 0,
     "the header has an object where none belongs in __metadata__"},
    {"UnknownField", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
     "the header tensor \"a\" has an unknown field \"x\""},
    {"FieldMissing", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "the header tensor \"a\" has no data_offsets"},
    {"OneOffset", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1,
     "the header tensor \"a\": data_offsets needs two"},
    {"ThreeOffsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1,
     "the header tensor \"a\": data_offsets has a number"},
    {"NestedShape", "{\"a\":" T("U8", "[[1]]", "0", "1") "}", 1, "the header tensor \"a\": shape has an array"},
    {"TypeIsNumber", "{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "the header tensor \"a\": dtype has a number"},
    {"ShapeIsText", "{\"a\":{\"dtype\":\"U8\",\"shape\":\"1\",\"data_offsets\":[0,1]}}", 1,
     "the header tensor \"a\": shape has a string"},
    {"TensorIsNull", "{\"a\":null}", 0, "the header has null for \"a\", which must be an object"},
    {"TensorIsArray", "{\"a\":[]}", 0, "the header has an array for \"a\""},
    {"NoJson", "{\"a\"}", 0, "the header is no JSON at byte 5"},
    {"TwoDocuments", "{}{}", 0, "the header is no JSON at byte 3"},
    {"LeadingSpace", " {}", 0, "the header must begin with {"},
    {"Array", "[]", 0, "the header must begin with {"},
    {"TrailingNewline", "{}\n", 0, "the header must end with } and spaces"},
    {"Comment", "{/**/}", 0, "the header is no JSON"},
    {"BadUtf8", "{\"\xff\":{}}", 0, "the header is no JSON"},
    {"Empty", "", 0, "the header must begin with {"},
};
INSTANTIATE_TEST_SUITE_P(Weights, BrokenWeights, testing::ValuesIn(broken), [](const auto& i) { return i.param.name; });
#undef T

TEST(Weights, NothingHidesBehindANul) {
  EXPECT_EQ(refusal(file_of(std::string("{}\0{}", 5), "")), "the header holds a NUL byte");
}

TEST(Weights, HeadersLieAboutTheirLength) {
  EXPECT_EQ(refusal("1234567"), "7 bytes are no safetensors file");
  EXPECT_EQ(refusal(little_endian(3) + "{}"), "a header of 3 bytes in a file of 10: the file is cut off");
  EXPECT_EQ(refusal(little_endian(~uint64_t{0}) + "{}"),
            "a header of 18446744073709551615 bytes; at most 100000000 are allowed");
}

TEST(Weights, NestingDoesNotOverflowTheStack) {
  EXPECT_NE(refusal(file_of("{\"a\":" + std::string(1 << 20, '[') + "}", "")), "");
}

TEST(Weights, AnotherDigestIsRefusedWithBoth) {
  const std::string message = refusal(small, std::string(64, '0'));
  EXPECT_EQ(message.rfind("SHA-256 is ", 0), 0u);
  EXPECT_NE(message.find("the manifest says 000000000000...: the file is damaged or another one"), std::string::npos);
}

TEST(Weights, ADigestThatDiffersInAnyDigitIsRefused) {
  const std::string digest = sha256_hex(std::as_bytes(std::span(small)));
  EXPECT_EQ(refusal(small, digest), "");
  for (size_t i = 0; i < digest.size(); ++i) {
    std::string other = digest;
    other[i] = other[i] == '0' ? '1' : '0';
    EXPECT_NE(refusal(small, other), "") << "digit " << i;
  }
}

TEST(Weights, EveryTruncationIsRefused) {
  for (size_t n = 0; n < small.size(); ++n) EXPECT_NE(refusal(small.substr(0, n)), "") << n;
}

TEST(Weights, FlippedBitsNeverCrashAndNeverPassADigest) {
  const std::string digest = sha256_hex(std::as_bytes(std::span(small)));
  uint64_t state = 88172645463325252u;
  for (int i = 0; i < 4000; ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::string flipped = small;
    // Half of the flips hit the header.
    const size_t at = state / 16 % (i % 2 ? small.size() : small.size() - 28);
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << state % 8);
    const TemporaryFile file(flipped);
    EXPECT_THROW(Weights::open(file.path(), digest), Error);
    try {
      const Weights w = Weights::open(file.path(), "");
      for (const StoredTensor& t : w.tensors())
        if (t.dtype == "F32") w.f32(t.name, t.shape);
    } catch (const Error&) {
    }
  }
}

}  // namespace
}  // namespace attnkit::core
