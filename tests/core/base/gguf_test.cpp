// The error of a faulty GGUF file is one line that names the file, the key or the tensor; no bytes do harm.
#include "core/base/formats/gguf.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/core/base/damaged_file.hpp"

namespace attnkit::core {
namespace {

// The bytes of a file, part by part.
struct Bytes {
  std::string bytes;
  template <class T>
  Bytes& add(T value) {
    append(bytes, value);
    return *this;
  }
  Bytes& add(const char* text) {
    add(uint64_t{std::strlen(text)});
    bytes += text;
    return *this;
  }
  Bytes& header(uint64_t tensors, uint64_t values, uint32_t version = 3) {
    bytes = "GGUF";
    return add(version).add(tensors).add(values);
  }
  Bytes& tensor(const char* name, uint32_t type, uint64_t offset, std::vector<uint64_t> shape = {32, 2}) {
    add(name).add(static_cast<uint32_t>(shape.size()));
    for (const uint64_t n : shape) add(n);
    return add(type).add(offset);
  }
  Bytes& data(size_t n, size_t alignment = 32) {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment + n);
    return *this;
  }
};

std::string refusal(const Bytes& file) { return refusal_by(Gguf::read, file.bytes, "x.gguf"); }

Bytes good() {
  return Bytes()
      .header(2, 4)
      .add("general.architecture")
      .add(8u)
      .add("llama")
      .add("llama.block_count")
      .add(4u)
      .add(30u)
      .add("general.alignment")
      .add(4u)
      .add(64u)
      .add("tokens")
      .add(9u)
      .add(8u)
      .add(uint64_t{2})
      .add("a")
      .add("bc")
      .tensor("q", 8, 0)
      .tensor("f", 0, 128, {3, 2, 5})
      .data(128 + 120, 64);
}

TEST(Gguf, IsRead) {
  const std::string bytes = good().bytes;
  const Gguf gguf = Gguf::read(std::as_bytes(std::span(bytes)), "x.gguf");
  EXPECT_EQ(gguf.metadata["llama.block_count"], 30);
  EXPECT_EQ(gguf.metadata["tokens"], (nlohmann::json{"a", "bc"}));
  ASSERT_EQ(gguf.tensors.size(), 2u);
  EXPECT_EQ(gguf.tensors[0].type, "Q8_0");
  EXPECT_EQ(gguf.tensors[0].shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(gguf.tensors[0].data.size(), 68u);
  EXPECT_EQ(gguf.tensors[1].shape, (std::vector<int64_t>{5, 2, 3}));
  EXPECT_EQ(gguf.tensors[1].data.data() + 120, std::as_bytes(std::span(bytes)).data() + bytes.size());
}

TEST(Gguf, WithoutTensorsTheMetadataStay) {
  const std::string bytes = good().bytes, made = without_tensors(std::as_bytes(std::span(bytes)), "x.gguf");
  const Gguf gguf = Gguf::read(std::as_bytes(std::span(made)), "y.gguf");
  EXPECT_EQ(gguf.metadata, Gguf::read(std::as_bytes(std::span(bytes)), "x.gguf").metadata);
  EXPECT_TRUE(gguf.tensors.empty());
  EXPECT_LT(made.size(), bytes.find('q'));
}

TEST(Gguf, MistakesAreNamed) {
  const auto begun = [](uint64_t tensors, uint64_t values) { return Bytes().header(tensors, values); };
  constexpr uint64_t huge = ~uint64_t{0};
  const auto cut = [&](size_t n) {
    Bytes file = good();
    file.bytes.resize(file.bytes.size() - n);
    return file;
  };
  struct Mistake {
    Bytes file;
    const char* message;
  };
  for (const Mistake& mistake : std::initializer_list<Mistake>{
           {Bytes{"GGU"}, "is no GGUF file"},
           {Bytes{"GGUF"}, "needs 4 bytes at byte 4, 0 are left: the file is cut off"},
           {Bytes().header(0, 0, 1), "is of version 1; 2 and 3 are supported"},
           {Bytes().header(0, 0, 4), "is of version 4; 2 and 3 are supported"},
           {Bytes().header(0, 0, 0x03000000), "is big-endian, which is not supported"},
           {begun(huge, 0), "would have 18446744073709551615 tensors, and 0 bytes are left"},
           {begun(0, huge), "would have 18446744073709551615 values, and 0 bytes are left"},
           {begun(0, 1).add(huge).add("twelve bytes"), "needs 18446744073709551615 bytes at byte 32"},
           {begun(0, 1).add("").add(4u).add(1u), "has a key of 0 bytes that is no name"},
           {begun(0, 1).add("\xff").add(4u).add(1u), "has a key of 1 bytes that is no name"},
           {begun(0, 2).add("k").add(4u).add(1u).add("k").add(4u).add(1u), "has the key \"k\" twice"},
           {begun(0, 1).add("k").add(77u).add(1u), "has a value of the unknown type 77 in \"k\""},
           {begun(0, 1).add("k").add(8u).add(uint64_t{1} << 62), "needs 4611686018427387904 bytes at byte"},
           {begun(0, 1).add("k").add(9u).add(4u).add(huge), "would have 18446744073709551615 values in one array"},
           {begun(0, 1).add("k").add(9u).add(8u).add(uint64_t{2}).add("a"), "would have 2 values in one array, and 9"},
           {begun(0, 1).add("k").add(9u).add(9u).add(uint64_t{1}).add(9u), "has an array of arrays in \"k\""},
           {begun(0, 1).add("general.alignment").add(4u).add(0u), "general.alignment is 0; a power of two up to"},
           {begun(0, 1).add("general.alignment").add(4u).add(48u), "general.alignment is 48; a power of two up to"},
           {begun(0, 1).add("general.alignment").add(8u).add("\xff"), "general.alignment is \""},
           {begun(1, 0).tensor("", 0, 0).data(256), "has a tensor name of 0 bytes that is no name"},
           {begun(2, 0).tensor("t", 0, 0).tensor("t", 0, 256).data(512), "has the tensor \"t\" twice"},
           {begun(1, 0).tensor("t", 0, 0, {}).data(32), "tensor \"t\" has 0 dimensions; 1 to 4 are supported"},
           {begun(1, 0).tensor("t", 0, 0, {1, 1, 1, 1, 1}), "tensor \"t\" has 5 dimensions; 1 to 4 are supported"},
           {begun(1, 0).tensor("t", 0, 0, {0, 2}).data(32), "tensor \"t\" has a dimension of 0"},
           {begun(1, 0).tensor("t", 0, 0, {huge}).data(32), "tensor \"t\" has a dimension of 18446744073709551615"},
           {begun(1, 0).tensor("t", 0, 0, {1ull << 40, 1ull << 40}).data(32), "tensor \"t\" has a size that overflows"},
           {begun(1, 0).tensor("t", 13, 0).data(32),
            "tensor \"t\" has type Q5_K, which is not supported; F32, F16, Q4_0"},
           {begun(1, 0).tensor("t", 4, 0).data(32), "tensor \"t\" has type 4, which is not supported; F32, F16, Q4_0"},
           {begun(1, 0).tensor("t", 12, 0).data(256), "tensor \"t\" has rows of 32 numbers; Q4_K has blocks of 256"},
           {begun(1, 0).tensor("t", 0, 8).data(512),
            "tensor \"t\" begins at byte 8 of the data, which is no multiple of 32"},
           {begun(2, 0).tensor("t", 0, 0).tensor("u", 0, 224).data(1024),
            "tensor \"u\" begins at byte 224 of the data, inside"},
           {begun(1, 0).tensor("t", 0, 0).data(255), "tensor \"t\" has 256 bytes at byte 0 of the data, which has 255"},
           {begun(1, 0).tensor("t", 0, huge - 31).data(256), "tensor \"t\" has 256 bytes at byte 18446744073709551584"},
           {begun(1, 0).tensor("t", 0, 0), "tensor \"t\" has 256 bytes at byte 0 of the data, which has 0"},
           {cut(1), "tensor \"f\" has 120 bytes at byte 128 of the data, which has 247"},
           {cut(300), "needs "},
       })
    EXPECT_EQ(refusal(mistake.file).rfind(mistake.message, 0), 0u) << mistake.message << "\n" << refusal(mistake.file);
}

TEST(Gguf, EveryBeginningIsCutOff) { expect_beginnings_refused(Gguf::read, good().bytes); }

TEST(Gguf, SurvivesDamage) { expect_damage_survived(Gguf::read, good().bytes, 360, 1); }

}  // namespace
}  // namespace attnkit::core
