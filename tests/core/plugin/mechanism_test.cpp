#include "core/plugin/mechanism.hpp"

#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

attn_block block(uint32_t role, uint32_t causal) { return {sizeof(attn_block), role, causal, 2, 16, 8}; }

TEST(Mechanism, ListsItsPortsAndPlans) {
  const auto rt = runtime();
  const Plugin* plugin = rt->registry.find("softmax", 1);
  ASSERT_TRUE(plugin);
  const auto mechanism = Mechanism::create(*plugin, block(ATTN_DECODER_SELF, 1), read_options(*plugin, nullptr));
  for (const char* name : {"q", "k", "v"}) EXPECT_GE(mechanism->port(name), 0) << name;
  EXPECT_EQ(mechanism->port("nothing"), -1);
  const Plan plan = mechanism->plan(cpu_request(ATTN_STREAM, 1, 3, 1, 1, 63));
  EXPECT_GE(plan.info().state_bytes, 64u * 2 * 16 * 4);
  EXPECT_EQ(mechanism->ask(plan.request()).state_bytes, plan.info().state_bytes);
}

TEST(Mechanism, SaysWhoRefusesAndWhy) {
  const auto rt = runtime();
  const Plugin* plugin = rt->registry.find("cosformer", 1);
  const auto mechanism = Mechanism::create(*plugin, block(ATTN_DECODER_SELF, 1), read_options(*plugin, nullptr));
  try {
    mechanism->plan(cpu_request(ATTN_STREAM, 1, 1, 1, 1, 63));
    FAIL() << "cosformer cannot decode without a length";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_UNSUPPORTED);
    EXPECT_EQ(std::string(e.what()).rfind("cosformer", 0), 0u) << e.what();
    EXPECT_NE(std::string(e.what()).find("length"), std::string::npos) << e.what();
  }
  EXPECT_THROW(mechanism->plan(cpu_request(ATTN_TRAIN, 1, 1, 1, 1, 0)), Error);
}

TEST(Mechanism, RefusesSizesThatWouldWrap) {
  const auto rt = runtime();
  for (const char* name : {"softmax", "relu", "cosformer", "leap"}) {
    const Plugin* plugin = rt->registry.find(name, 1);
    const attn_block wide{sizeof(attn_block), ATTN_DECODER_SELF, 1, 1, 1 << 21, 1 << 21};
    const auto mechanism = Mechanism::create(*plugin, wide, read_options(*plugin, nullptr));
    const uint32_t flags = ATTN_STREAM | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    EXPECT_THROW(mechanism->ask(cpu_request(flags, 2, 1, 1, 1, (int64_t{1} << 40) - 1)), Error) << name;
  }
}

TEST(Mechanism, BackwardIsRefusedWhereThereIsNone) {
  const auto rt = runtime();
  const Plugin* plugin = rt->registry.find("relu", 1);
  const auto mechanism = Mechanism::create(*plugin, block(ATTN_ENCODER_SELF, 0), read_options(*plugin, nullptr));
  const Plan plan = mechanism->plan(cpu_request(0, 1, 1, 1, 1, 0));
  EXPECT_THROW(plan.backward(attn_grad{}), Error);
}

}  // namespace
}  // namespace attnkit::test
