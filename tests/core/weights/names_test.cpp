// Tensors of checkpoints under our names: turned, parted, in several files, where they lie.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/import/architecture.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/weights/reader.hpp"
#include "core/weights/weights.hpp"

namespace attnkit::core {
namespace {

using Shape = std::vector<int64_t>;
using Floats = std::vector<float>;

struct Folder {
  Folder() {
    std::string name = testing::TempDir() + "attnkit-names-XXXXXX";
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path + "/" + name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path + "/" + name;
  }
  std::string write(const std::string& name, const std::map<std::string, std::pair<Shape, Floats>>& tensors) const {
    std::vector<StoredTensor> stored;
    for (const auto& [key, tensor] : tensors)
      stored.push_back({key, "F32", tensor.first, std::as_bytes(std::span(tensor.second))});
    const std::vector<std::byte> bytes = to_safetensors(stored);
    return write(name, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::string path;
};

std::shared_ptr<const NameMap> map_of(const std::string& names) {
  return std::make_shared<const NameMap>(
      Architecture::read(
          "schema = \"attnkit.architecture/1\"\n[tensors]\nignore = [\"mask\"]\n[tensors.names]\n" + names, "own.toml")
          .tensors);
}

template <class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_part(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(RenamedWeights, AreTurnedAndParted) {
  const Folder folder;
  // (inputs 2, outputs 3 x 2): three matrices side by side, each the other way round.
  const std::string file =
      folder.write("m.safetensors", {{"qkv.weight", {{2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}},
                                     {"qkv.bias", {{6}, {0, 1, 2, 3, 4, 5}}},
                                     {"mask", {{1}, {1}}},
                                     {"other", {{1}, {1}}}});
  const Weights w = Weights::open(file, "", map_of(R"("q.*" = { tensor = "qkv.*", transposed = true, part = "1/3" }
                                                      "v.*" = { tensor = "qkv.*", transposed = true, part = "3/3" }
                                                      "all.weight" = { tensor = "qkv.weight", transposed = true })"));
  EXPECT_EQ(w.f32("q.weight", {2, 2}), (Floats{0, 6, 1, 7}));
  EXPECT_EQ(w.f32("v.weight", {2, 2}), (Floats{4, 10, 5, 11}));
  EXPECT_EQ(w.f32("v.bias", {2}), (Floats{4, 5}));
  EXPECT_EQ(w.f32("all.weight", {6, 2})[1], 6);
  const Numbers q = w.numbers("q.weight", {2, 2});
  EXPECT_EQ(Floats(q.values.begin(), q.values.end()), (Floats{0, 6, 1, 7}));
  EXPECT_EQ(w.find("mask"), nullptr);
  EXPECT_NE(w.find("other"), nullptr) << "reported later as left over";
  expect_part(message_of([&] {
                w.f32("q.weight", {3, 2});
              }),
              "tensor \"q.weight\" (\"qkv.weight\" in the file) is 2x2, the model needs 3x2");
  expect_part(message_of([&] {
                w.f32("q.scale", {3, 2});
              }),
              "no tensor \"q.scale\", which own.toml calls \"qkv.scale\"");
}

// A fused layer whose keys have fewer heads than its queries: 4 heads of queries, 1 of keys and 1 of values, 2 wide.
TEST(RenamedWeights, HavePartsInProportion) {
  const Folder folder;
  Floats rows(24), bias(12);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(100 + i);
  const std::string file = folder.write("m.safetensors", {{"qkv.weight", {{12, 2}, rows}}, {"qkv.bias", {{12}, bias}}});
  const auto map = map_of(R"("q.*" = { tensor = "qkv.*", part = "1/heads:kv_heads:1" }
                             "k.*" = { tensor = "qkv.*", part = "2/heads:kv_heads:1" }
                             "v.*" = { tensor = "qkv.*", part = "3/heads:kv_heads:1" })");
  const Weights w = Weights::open(file, "", map->with({{"heads", 4}, {"kv_heads", 1}}));
  EXPECT_EQ(w.f32("q.weight", {8, 2}), Floats(rows.begin(), rows.begin() + 16));
  EXPECT_EQ(w.f32("k.weight", {2, 2}), Floats(rows.begin() + 16, rows.begin() + 20));
  EXPECT_EQ(w.f32("v.weight", {2, 2}), Floats(rows.begin() + 20, rows.end()));
  EXPECT_EQ(w.f32("q.bias", {8}), Floats(bias.begin(), bias.begin() + 8));
  EXPECT_EQ(w.f32("v.bias", {2}), (Floats{110, 111}));
  const auto other = map->with({{"heads", 2}, {"kv_heads", 1}});
  EXPECT_NE(Weights::open(file, "", other).identity(), w.identity());
  expect_part(message_of([&] {
                Weights::open(file, "", map->with({{"heads", 4}, {"kv_heads", 2}}));
              }),
              " of 7, which does not divide it");
}

TEST(RenamedWeights, AreOthersWhereSomethingIsAdded) {
  const Folder folder;
  const std::string file = folder.write("m.safetensors", {{"a", {{2}, {1, 2}}}});
  const Weights plain = Weights::open(file, "", map_of(R"(x = { tensor = "a" })")),
                one = Weights::open(file, "", map_of(R"(x = { tensor = "a", plus = 1.0 })"));
  EXPECT_EQ(one.f32("x", {2}), (Floats{2, 3}));
  EXPECT_NE(plain.identity(), one.identity());
}

TEST(RenamedWeights, APartThatNothingTakesIsLeftOver) {
  const Folder folder;
  const std::string file = folder.write("m.safetensors", {{"qk", {{4}, {1, 2, 3, 4}}}});
  const Weights w = Weights::open(file, "", map_of(R"(q = { tensor = "qk", part = "1/2" }
                                                      k = { tensor = "qk", part = "2/2" })"));
  Diagnostics diagnostics;
  WeightReader reader(&w, {}, diagnostics, {});
  EXPECT_EQ(reader.f32("q", {2}, constant(0)), (Floats{1, 2}));
  reader.finish([](const StoredTensor&) { return false; });
  ASSERT_EQ(diagnostics.sorted().size(), 1u);
  EXPECT_EQ(diagnostics.sorted()[0].code, ak::left_over_tensor);
  expect_part(diagnostics.sorted()[0].message, "tensor \"k\" of shape 2 belongs to nothing");
}

TEST(RenamedWeights, OfInt8AreNotRead) {
  const Folder folder;
  const int8_t numbers[] = {1, 2, 3, 4};
  const std::vector<std::byte> bytes =
      to_safetensors(std::vector<StoredTensor>{{"a", "I8", {2, 2}, std::as_bytes(std::span(numbers))}});
  const std::string file =
      folder.write("m.safetensors", std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const Weights w = Weights::open(file, "", map_of(R"(x = { tensor = "a", transposed = true })"));
  expect_part(message_of([&] {
                w.f32("x", {2, 2});
              }),
              "tensor \"x\" has type I8 and another name and layout in the file: such scales are not read");
}

TEST(RenamedWeights, WhatDoesNotDivideOrIsNoMatrixIsRefused) {
  const Folder folder;
  const std::string file =
      folder.write("m.safetensors", {{"a", {{4}, {1, 2, 3, 4}}}, {"b", {{2, 1, 2}, {1, 2, 3, 4}}}});
  expect_part(message_of([&] { Weights::open(file, "", map_of(R"(x = { tensor = "a", part = "1/2:heads" })")); }),
              "own.toml: the part \"heads\" of \"a\" has no size");
  expect_part(message_of([&] { Weights::open(file, "", map_of(R"(x = { tensor = "a", part = "1/3" })")); }),
              "tensor \"a\" is 4; own.toml takes part 1 of 3, which does not divide it");
  expect_part(message_of([&] { Weights::open(file, "", map_of(R"(x = { tensor = "b", transposed = true })")); }),
              "tensor \"b\" is 2x1x2; own.toml turns it, which needs a matrix");
}

TEST(RenamedWeights, TwoOfOneNameAreRefused) {
  const Folder folder;
  const std::string file = folder.write("m.safetensors", {{"a.x", {{1}, {1}}}, {"x", {{1}, {1}}}});
  const auto map = std::make_shared<NameMap>(*map_of("y = \"x\""));
  map->prefix = "a.";
  expect_part(message_of([&] { Weights::open(file, "", map); }), "\"x\" are tensor \"y\"");
}

TEST(MappedWeights, LieInTheFile) {
  const Folder folder;
  const std::string file = folder.write("m.safetensors", {{"a", {{2}, {1, 2}}}, {"b", {{2}, {3, 4}}}});
  std::optional<Numbers> a, kept;
  {
    const Weights w = Weights::open(file, "");
    a = w.numbers("a", {2});
    EXPECT_EQ(static_cast<const void*>(a->data()), w.find("a")->data.data()) << "nothing is copied";
    w.release();
    const std::vector<std::byte> bytes = to_safetensors(w.tensors());
    const Weights whole = Weights::open(file, sha256_hex(bytes));
    kept = whole.numbers("b", {2});
    EXPECT_NE(static_cast<const void*>(kept->data()), whole.find("b")->data.data()) << "the bytes go with the weights";
  }
  std::filesystem::rename(folder.write("new", {{"a", {{2}, {8, 9}}}}), file);
  EXPECT_EQ(Floats(a->values.begin(), a->values.end()), (Floats{1, 2})) << "the file that was opened";
  EXPECT_EQ(Floats(kept->values.begin(), kept->values.end()), (Floats{3, 4}));
}

struct Shards : Folder {
  Shards() {
    write("1.safetensors", {{"a", {{2}, {1, 2}}}, {"b", {{1}, {3}}}});
    write("2.safetensors", {{"c", {{1}, {4}}}});
  }
  std::string index(const std::string& map) const { return write("index.json", R"({"weight_map": )" + map + "}"); }
};

TEST(ShardedWeights, AreOne) {
  const Shards shards;
  const Weights w =
      Weights::open(shards.index(R"({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})"), "");
  EXPECT_EQ(w.tensors().size(), 3u);
  EXPECT_EQ(w.f32("a", {2}), (Floats{1, 2}));
  EXPECT_EQ(w.f32("c", {1}), (Floats{4}));
}

TEST(ShardedWeights, MistakesAreNamed) {
  const Shards shards;
  const auto refusal = [&](const std::string& map) {
    const std::string path = shards.index(map);
    return message_of([&] { Weights::open(path, ""); });
  };
  expect_part(refusal(R"({"a": "1.safetensors", "c": "2.safetensors"})"), "1.safetensors: holds tensor \"b\", which");
  expect_part(refusal(R"({"a": "1.safetensors", "b": "1.safetensors", "d": "1.safetensors"})"),
              "1.safetensors: lacks tensor \"d\", which");
  expect_part(refusal(R"({"a": "3.safetensors"})"), "3.safetensors: cannot be opened");
  expect_part(refusal(R"({"a": "../1.safetensors"})"), "is \"../1.safetensors\", not the name of a file beside it");
  expect_part(refusal(R"({"a": "/etc/passwd"})"), "is \"/etc/passwd\", not the name of a file beside it");
  expect_part(refusal(R"({"a": 3})"), "weight_map.\"a\" must be a string, not an integer");
  expect_part(refusal("{}"), "weight_map names no tensor");
  expect_part(refusal("[]"), "weight_map must be an object, not an array");
  expect_part(refusal("{"), "is no JSON at byte ");
}

}  // namespace
}  // namespace attnkit::core
