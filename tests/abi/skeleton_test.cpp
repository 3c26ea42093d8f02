// The mechanisms still to come fit the contract: each skeleton loads and declares its ports as its mathematics needs
// them.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/mechanism.hpp"
#include "core/registry.hpp"
#include "core/threads.hpp"

using namespace attnkit;

namespace {

const Registry& skeletons() {
  static const Registry registry({ABI_SKELETONS});
  return registry;
}

attn_block block_of(uint32_t role, uint32_t causal) { return {sizeof(attn_block), role, causal, 4, 128, 32}; }

// Default options, with the integer option of one name set.
std::shared_ptr<const Mechanism> make(const std::string& name, const attn_block& block, const std::string& option = "",
                                      int64_t number = 0) {
  const Plugin* plugin = skeletons().find(name, 1);
  if (plugin == nullptr) throw std::runtime_error(name + " was not loaded");
  std::vector<OptionValue> values(plugin->table.n_options);
  for (size_t i = 0; i < values.size(); ++i) {
    const attn_option& schema = *plugin->table.options[i];
    values[i] = {schema.fallback.type, schema.name == option ? number : schema.fallback.i, schema.fallback.f, ""};
  }
  return Mechanism::create(*plugin, block, values);
}

// "kind name AxBxCxD flags" of every port.
std::vector<std::string> ports(const Mechanism& mechanism) {
  constexpr const char* kinds[] = {"", "query", "key", "output", "learned", "table", "in", "out"};
  std::vector<std::string> out;
  for (const attn_port* port : mechanism.ports()) {
    std::string text =
        fmt::format("{} {} {}", kinds[port->kind], port->name, fmt::join(port->shape, port->shape + port->ndim, "x"));
    if (port->flags & ATTN_RAW) text += " raw";
    if (port->flags & ATTN_NO_BIAS) text += " no-bias";
    if (port->flags & ATTN_PER_MODEL) text += " per-model";
    if (port->kind == ATTN_TABLE) text += port->dtype_code == 0 ? " int" : " float";
    out.push_back(text);
  }
  return out;
}

using Ports = std::vector<std::string>;

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

std::string create_refusal(const std::string& name, uint32_t role, uint32_t causal, const std::string& option = "",
                           int64_t number = 0) {
  return refusal([&] { make(name, block_of(role, causal), option, number); });
}

TEST(Skeletons, AllLoad) {
  EXPECT_EQ(skeletons().names(1), (Ports{"bigbird", "luna", "performer", "prefix", "reformer", "s4d"}));
  for (const auto& file : skeletons().skipped()) ADD_FAILURE() << file.path << " " << file.reason;
}

TEST(Skeletons, LunaProjectsWhatItPacked) {
  EXPECT_EQ(ports(*make("luna", block_of(ATTN_DECODER_CROSS, 0), "tied", 0)),
            (Ports{"query q 0x4x0x32", "key pk 0x4x0x32", "key pv 0x4x0x32", "learned k_weight 128x128",
                   "learned k_bias 128", "learned v_weight 128x128", "learned v_bias 128", "learned pq_weight 128x128",
                   "learned pq_bias 128", "learned p_start 16x128 per-model", "learned p_norm 2x128", "in p 0x1x16x128",
                   "out p 0x1x16x128", "output out 0x4x0x32"}));
}

TEST(Skeletons, CausalLunaTakesPackedInputAndStreams) {
  const auto luna = make("luna", block_of(ATTN_DECODER_SELF, 1));
  EXPECT_EQ(ports(*luna),
            (Ports{"query q 0x4x0x32", "key k 0x4x0x32", "key v 0x4x0x32", "key pk 0x4x0x32",
                   "learned pq_weight 128x128", "learned pq_bias 128", "learned p_start 16x128 per-model",
                   "learned p_norm 2x128", "in p 0x1x16x128", "out p 0x1x16x128", "output out 0x4x0x32"}));
  EXPECT_EQ(luna->ask(cpu_request(ATTN_STREAM, 1, 1, 1, 1, 511)).state_bytes, 4u * 16 * 96 * 4);
}

TEST(Skeletons, StateSpaceModelTakesTheSequenceItself) {
  const auto s4d = make("s4d", block_of(ATTN_DECODER_SELF, 1));
  EXPECT_EQ(ports(*s4d), (Ports{"key x 0x1x0x128 raw", "learned log_delta 128", "learned log_decay 128x32",
                                "learned frequency 128x32", "learned readout 1x128x32x2", "learned skip 128",
                                "output y 0x1x0x128 raw"}));
  EXPECT_EQ(s4d->ask(cpu_request(ATTN_STREAM, 1, 1, 1, 1, 0)).state_bytes, 128u * 64 * 4);
  EXPECT_NE(create_refusal("s4d", ATTN_DECODER_CROSS, 0).find("cannot be cross attention"), std::string::npos);
  EXPECT_NE(create_refusal("s4d", ATTN_ENCODER_SELF, 0, "order", 63).find("must be even"), std::string::npos);
}

TEST(Skeletons, ReformerHasNoKeys) {
  const auto reformer = make("reformer", block_of(ATTN_ENCODER_SELF, 0));
  EXPECT_EQ(ports(*reformer), (Ports{"query q 0x4x0x32 no-bias", "key v 0x4x0x32", "table rotations 4x32x2x64 float",
                                     "output out 0x4x0x32"}));
  EXPECT_NE(create_refusal("reformer", ATTN_DECODER_CROSS, 0).find("cannot be cross"), std::string::npos);
  EXPECT_NE(create_refusal("reformer", ATTN_DECODER_SELF, 1).find("cannot be causal"), std::string::npos);
  EXPECT_NE(refusal([&] { reformer->ask(cpu_request(0, 1, 1, 100, 100, 0)); }).find("multiple of chunk"),
            std::string::npos);
  EXPECT_NE(refusal([&] { reformer->ask(cpu_request(ATTN_STREAM, 1, 1, 64, 64, 0)); }).find("cannot stream"),
            std::string::npos);
}

TEST(Skeletons, BigBirdStoresIntegers) {
  const auto bigbird = make("bigbird", block_of(ATTN_ENCODER_SELF, 0));
  EXPECT_EQ(ports(*bigbird), (Ports{"query q 0x4x0x32", "key k 0x4x0x32", "key v 0x4x0x32", "table blocks 4x14x3 int",
                                    "output out 0x4x0x32"}));
  EXPECT_NE(create_refusal("bigbird", ATTN_ENCODER_SELF, 0, "length", 256).find("at least 5 blocks"),
            std::string::npos);
  EXPECT_NE(create_refusal("bigbird", ATTN_DECODER_SELF, 1).find("encoders only"), std::string::npos);
}

TEST(Skeletons, PerformerStoresItsFeaturesAndFillsThemBySeed) {
  const auto performer = make("performer", block_of(ATTN_DECODER_SELF, 1));
  EXPECT_EQ(ports(*performer), (Ports{"query q 0x4x0x32", "key k 0x4x0x32", "key v 0x4x0x32",
                                      "table omega 128x32 per-model float", "output out 0x4x0x32"}));
  std::vector<float> first(128 * 32), second(128 * 32);
  for (auto* values : {&first, &second}) {
    attn_tensor tensor{};
    tensor.data = values->data();
    tensor.shape[0] = 128;
    tensor.shape[1] = 32;
    tensor.ndim = 2;
    performer->fill(3, 7, tensor);
  }
  EXPECT_EQ(first, second);
  EXPECT_NE(first[0], first[1]);
}

TEST(Skeletons, PrefixFormSeesWhatIsVisible) {
  const auto prefix = make("prefix", block_of(ATTN_DECODER_CROSS, 0));
  EXPECT_NE(refusal([&] { prefix->ask(cpu_request(0, 1, 1, 3, 4, 0)); }).find("prefix form only"), std::string::npos);
  const Plan plan = prefix->plan(cpu_request(ATTN_PREFIX, 1, 1, 3, 4, 0));
  std::vector<float> q(3 * 128), v(4 * 128), out(3 * 128, -1);
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 128);
  const auto tensor = [](std::vector<float>& data, int64_t rows) {
    return attn_tensor{data.data(), {1, 4, rows, 32}, {rows * 128, 32, 128, 1}, 2, 32, 1, 4, 1, 0};
  };
  const attn_tensor tensors[] = {tensor(q, 3), tensor(v, 4), tensor(out, 3)};
  const int32_t visible[] = {0, 2, 9};
  Threads threads(1);
  const attn_exec exec = threads.exec(nullptr, 0);
  attn_run run{};
  run.struct_size = sizeof(run);
  run.exec = &exec;
  run.batch = 1;
  run.queries = 3;
  run.keys = 4;
  run.ports = tensors;
  run.visible = visible;
  plan.run(run);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[128], 0.5f);
  EXPECT_EQ(out[3 * 128 - 1], 1.5f);
}

}  // namespace
