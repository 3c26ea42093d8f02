// A thousand of everything, made and destroyed, leave memory, descriptors, threads and mappings as they were.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/conformance/process/counted_malloc.hpp"

namespace {

constexpr const char* manifest = R"(schema = "attnkit.model/1"
[model]
name = "small"
kind = "decoder"
d_model = 16
heads = 2
ffn = 16
max_length = 32
decoder = { layers = 3, vocab = "vocab.txt" }
[weights]
seed = 1
[attention]
default = "softmax"
[[attention.override]]
block = "decoder.self"
layers = 1
use = "relu"
[[attention.override]]
block = "decoder.self"
layers = 2
use = "leap"
)";

struct Held {
  int64_t bytes = 0;  // what the allocator keeps for later is not among them
  size_t descriptors = 0, threads = 0, mappings = 0;
};

size_t entries(const char* folder) {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++n;
  return n;
}

Held held() {
  Held now;
  now.bytes = attnkit::core::conformance::counted_malloc()().bytes;
  now.descriptors = entries("/proc/self/fd");
  now.threads = entries("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) now.mappings += line.find(".so") != line.npos;
  return now;
}

void cycle() {
  const attnkit::Runtime runtime(1);
  const attnkit::Model model(runtime, manifest, ATTNKIT_MODEL);
  const attnkit::Session session(model, 1);
  const auto write = [&](const attnkit::Session& to, int32_t token) {
    std::vector<float> scores(static_cast<size_t>(model.info().outputs));
    attnkit_session* const self = to.get();
    attnkit::Session::write({&self, 1}, attnkit::Batch(std::vector<attnkit::Ids>{{token}}), scores.data(),
                            model.info().outputs);
  };
  write(session, 3);
  const attnkit::Session fork = session.clone();
  write(fork, 4);
  const attn_block where{sizeof where, ATTN_ENCODER_SELF, 0, 2, 16, 8, 0, 0};
  const attnkit::Block block(runtime, "softmax", where);
  EXPECT_THROW(attnkit::Model(runtime, "schema = 1", ATTNKIT_MODEL), attnkit::Error);
}

TEST(CountedMalloc, AReallocThatFailsChangesNothing) {
  const auto count = attnkit::core::conformance::counted_malloc();
  if (!count) GTEST_SKIP() << "the sanitizer has taken malloc";
  void* block = std::malloc(100);
  const auto before = count();
  const volatile size_t too_much = SIZE_MAX / 2;
  EXPECT_EQ(std::realloc(block, too_much), nullptr);
  const auto after = count();
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.made, before.made);
  EXPECT_EQ(after.freed, before.freed);
  std::free(block);
}

TEST(Cycles, LeaveNothing) {
  if (!attnkit::core::conformance::counted_malloc())
    GTEST_SKIP() << "the sanitizer has taken malloc; it finds leaks itself";
  for (int i = 0; i < 3; ++i) cycle();  // what is made once
  const Held before = held();
  for (int i = 0; i < 1000; ++i) cycle();
  const Held after = held();
  EXPECT_EQ(after.bytes, before.bytes);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(after.mappings, before.mappings);
  void* volatile lost = std::malloc(1);  // else the compiler leaves it out
  EXPECT_GT(held().bytes, after.bytes) << "a byte would be seen";
  std::free(lost);
}

}  // namespace
