#include "core/plugin/mechanism.hpp"

#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

attn_block block(uint32_t role, uint32_t causal) { return {sizeof(attn_block), role, causal, 2, 16, 8, 0, 0}; }

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

// d_model 20, 6 heads of width 8, 2 of keys.
attn_block language_block() { return {sizeof(attn_block), ATTN_DECODER_SELF, 1, 6, 20, 8, 2, 8}; }

// The table of a plugin that was built from the header of minor 0: it knows no more of a block.
template <int32_t (*const* create)(const attn_block*, const attn_value*, attn_mech**, const attn_port* const**,
                                   uint32_t*, attn_error*)>
int32_t create_as_minor_0(const attn_block* block, const attn_value* values, attn_mech** mech,
                          const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  attn_block first = *block;
  first.struct_size = offsetof(attn_block, kv_heads);
  return (*create)(&first, values, mech, ports, n_ports, err);
}
decltype(attn_plugin::create) real_create;

TEST(Mechanism, SharesHeadsOfKeysIfItsPortsSaySo) {
  const auto rt = runtime();
  const Plugin* softmax = rt->registry.find("softmax", 1);
  const auto shared = Mechanism::create(*softmax, language_block(), read_options(*softmax, nullptr));
  EXPECT_EQ(shared->ports()[0]->shape[1], 6);
  EXPECT_EQ(shared->ports()[1]->shape[1], 2);
  EXPECT_EQ(shared->ports()[2]->shape[1], 2);
  EXPECT_EQ(shared->ports()[3]->shape[1], 6);
  EXPECT_EQ(shared->ports()[1]->shape[3], 8);
  EXPECT_EQ(shared->key_heads(), 2);
  EXPECT_EQ(shared->block().d_model, 20);
  const attn_request request = cpu_request(ATTN_STREAM, 1, 1, 1, 1, 99);
  EXPECT_EQ(shared->ask(request).state_bytes, 100u * 2 * (8 + 8) * sizeof(float));

  const Plugin* leap = rt->registry.find("leap", 1);
  EXPECT_EQ(Mechanism::create(*leap, language_block(), read_options(*leap, nullptr))->key_heads(), 2);
  EXPECT_EQ(Mechanism::create(*leap, language_block(), read_options(*leap, "shared = false"))->key_heads(), 6);

  Plugin old = *softmax;
  real_create = softmax->table.create;
  old.table.create = create_as_minor_0<&real_create>;
  old.table.abi_minor = 0;
  const auto repeated = Mechanism::create(old, language_block(), read_options(old, nullptr));
  EXPECT_EQ(repeated->ports()[1]->shape[1], 6);
  EXPECT_EQ(repeated->ports()[1]->shape[3], 8) << "D = d_model / heads of what it was given";
  EXPECT_EQ(repeated->key_heads(), 6);
  EXPECT_EQ(repeated->block().d_model, 48);
  EXPECT_EQ(repeated->ask(request).state_bytes, 100u * 6 * (8 + 8) * sizeof(float));
}

TEST(Mechanism, RefusesBlocksThatCannotBe) {
  const auto refusal = [](auto&& change) {
    attn_block b = language_block();
    change(b);
    try {
      whole_block(b);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ATTN_INVALID);
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(refusal([](attn_block& b) { b.kv_heads = 4; }), "block: kv_heads 4 does not divide heads 6");
  EXPECT_EQ(refusal([](attn_block& b) { b.kv_heads = 12; }), "block: kv_heads 12 does not divide heads 6");
  EXPECT_NE(refusal([](attn_block& b) { b.key_width = 0; }), "none") << "6 heads do not divide 20";
  EXPECT_NE(refusal([](attn_block& b) { b.key_width = -8; }), "none");
  EXPECT_NE(refusal([](attn_block& b) { b.key_width = 1 << 30; }), "none");
  EXPECT_NE(refusal([](attn_block& b) { b.struct_size = 20; }), "none");
  EXPECT_EQ(refusal([](attn_block& b) { b.kv_heads = 0; }), "none");
  // A caller of minor 0: what stands behind its struct is not read.
  EXPECT_EQ(refusal([](attn_block& b) {
              b.struct_size = offsetof(attn_block, kv_heads);
              b.d_model = 48;
              b.kv_heads = 5;
            }),
            "none");
}

TEST(Mechanism, RefusesSizesThatWouldWrap) {
  const auto rt = runtime();
  for (const char* name : {"softmax", "relu", "cosformer", "leap"}) {
    const Plugin* plugin = rt->registry.find(name, 1);
    const attn_block wide{sizeof(attn_block), ATTN_DECODER_SELF, 1, 1, 1 << 21, 1 << 21, 0, 0};
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
  try {
    mechanism->ask(cpu_request(ATTN_TRAIN | ATTN_STREAM, 1, 1, 1, 1, 0));
    FAIL() << "of a stream";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "gradients are of whole sequences: plan without ATTN_STREAM to train");
  }
}

}  // namespace
}  // namespace attnkit::test
