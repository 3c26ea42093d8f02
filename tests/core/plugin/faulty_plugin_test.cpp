// A plugin that lies about sizes or ports is refused by name, before anything is written with what it said.
#include "core/api/describe.hpp"
#include "core/base/text.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

StreamModel liar(const std::string& about, const std::string& honest = "softmax") {
  StreamModel m;
  m.plugins = {ATTNKIT_LIAR_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  m.attention = "default = \"" + honest + "\"\n\"decoder.self\" = { use = \"fake_liar\", about = \"" + about + "\" }\n";
  return m;
}

std::string refusal_to_load(const std::string& about) {
  std::string said;
  EXPECT_FALSE(try_load(liar(about), &said)) << about;
  return said;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(std::string::npos, text.find(part)) << text << "\nlacks: " << part;
}

std::shared_ptr<Runtime> liars() {
  return std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_LIAR_PLUGIN}, 1, 1);
}

std::shared_ptr<const Mechanism> mechanism(const Runtime& runtime, const std::string& about, uint32_t heads = 2) {
  const Plugin& plugin = *runtime.registry.find("fake_liar", 1);
  const attn_block block{sizeof block, ATTN_DECODER_SELF, 1, heads, 16, 8, 0, 0};
  return Mechanism::create(plugin, block, read_options(plugin, ("about = '" + about + "'").c_str()));
}

TEST(FaultyPlugin, AnHonestLiarRuns) {
  const auto model = load(liar("nothing"));
  Session session(model, 1);
  read(session, {3, 4, 2}, 0, 3, true);
  write({&session}, {1, 4, 5}, 3);
  EXPECT_EQ(64u, model->state_bytes(ATTN_DECODER_SELF, 40)[0]);
}

TEST(FaultyPlugin, SizesThatWouldWrap) {
  expect_part(refusal_to_load("state"), "plan answered state_bytes 9223372036854775808, at most 4611686018427387904");
  expect_part(refusal_to_load("rounding"), "state_bytes 18446744073709551610");
  expect_part(refusal_to_load("scratch"), "scratch_bytes 18446744073709551615");
  for (const char* about : {"state", "scratch"}) expect_part(refusal_to_load(about), "\"fake_liar\"");
  const auto runtime = liars();
  for (const char* about : {"scratch", "saved", "flops"}) {
    const auto lying = mechanism(*runtime, about);
    const auto request = cpu_request(0, 1, 1, 4, 4, 0);
    expect_part(refusal_of([&] { lying->ask(request); }), "fake_liar: plan answered " + std::string(about));
    expect_part(refusal_of([&] { lying->plan(request); }), "the plugin is faulty");
  }
}

TEST(FaultyPlugin, ScratchBeyondAllMemory) {
  Buffer memory;
  const auto runtime = liars();
  const Plan plan = mechanism(*runtime, "nothing")->plan(cpu_request(0, 1, 1, 4, 4, 0));
  expect_part(refusal_of([&] { plan.scratch(memory, uint64_t{1} << 62); }), "fake_liar: needs 4611686018427387904");
}

// Otherwise a step would write over the states of other sessions.
TEST(FaultyPlugin, MoreStateWhenKeysAreAppendedThanItsRowHas) {
  expect_part(
      refusal_to_load("keys"),
      "AK203 decoder.self.1 cannot be \"fake_liar\": decoder.self.1: \"fake_liar\" needs 4194304 bytes of state "
      "for 40 keys when it appends 1");
  StreamModel encoder = liar("nothing");
  encoder.causal = true;
  encoder.attention = "default = \"softmax\"\n\"encoder.self\" = { use = \"fake_liar\", about = \"keys\" }\n";
  const auto model = load(encoder);
  Session session(model, 1);
  expect_part(refusal_of([&] { read(session, {3, 4, 2}, 0, 3, true); }), "the plugin is faulty");
}

TEST(FaultyPlugin, MoreStateForFewKeysThanForMany) {
  const auto model = load(liar("room"));
  Session session(model, 1);
  read(session, {3, 4, 2}, 0, 3, true);
  write({&session}, {1, 4}, 2);
  expect_part(refusal_of([&] { session.clone(); }),
              "decoder.self.1: \"fake_liar\" needs 1099511627776 bytes of state for 2 keys and 64 for 40");
  expect_part(refusal_of([&] { session.save(); }), "the plugin is faulty");
  EXPECT_THROW(describe_session(session), Error);
}

// Core would pass other tensors than such a port declares.
TEST(FaultyPlugin, RawSequencesOfAnotherShape) {
  const auto runtime = liars();
  expect_part(refusal_of([&] { mechanism(*runtime, "raw_heads"); }),
              "fake_liar: port 0 is raw and has 2 heads of width 8, not one of d_model 16: the plugin is faulty");
  expect_part(refusal_of([&] { mechanism(*runtime, "raw_width"); }), "has 1 heads of width 8");
  expect_part(refusal_to_load("raw_heads"), "the plugin is faulty");
}

TEST(FaultyPlugin, FlagsThatItsHeaderLacks) {
  const auto runtime = liars();
  const auto lying = mechanism(*runtime, "flags");
  expect_part(refusal_of([&] { lying->ask(cpu_request(0, 1, 1, 4, 4, 0)); }),
              "fake_liar: plan answered the flags 0x100000, which its plugin.h lacks: the plugin is faulty");
}

// A plugin need not look at what no host may ask.
TEST(FaultyPlugin, RequestsThatNoPluginSees) {
  const auto runtime = liars();
  const auto trusting = mechanism(*runtime, "nothing");
  const auto refused = [&](uint32_t flags, int32_t device, const char* part) {
    attn_request request = cpu_request(flags, 1, 1, 4, 4, 0);
    request.device_type = device;
    expect_part(refusal_of([&] { trusting->ask(request); }), part);
  };
  refused(ATTN_STREAM | ATTN_PREFIX, 1, "ATTN_PREFIX excludes ATTN_STREAM");
  refused(ATTN_PREFIX, 1, "a causal block already says which keys a query sees");
  refused(ATTN_TRAIN, 1, "fake_liar: has no backward pass");
  refused(0, 2, "fake_liar: computes on device type 1 and was asked for 2");
  refused(1u << 30, 1, "flags 0x40000000");
}

TEST(FaultyPlugin, PortsThatCannotBe) {
  const auto runtime = liars();
  for (const auto& [about, part] : {std::pair("port", "is NULL or too small"),
                                    {"dimensions", "has no 1 to 4 dimensions"},
                                    {"kind", "has an unknown kind"},
                                    {"aux_type", "is an auxiliary sequence and not (0, 1, rows, width) of f32"},
                                    {"aux_heads", "is an auxiliary sequence and not (0, 1, rows, width) of f32"}})
    expect_part(refusal_of([&, name = about] { mechanism(*runtime, name); }),
                std::string("fake_liar: port 0 ") + part + ": the plugin is faulty");
}

TEST(FaultyPlugin, AnEndlessPortName) {
  const auto runtime = liars();
  const std::string said = refusal_of([&] { mechanism(*runtime, "name"); });
  expect_part(said, "fake_liar: port 0 has no name of [a-z0-9_], at most 255 bytes: the plugin is faulty");
  EXPECT_LT(said.size(), 200u);
}

}  // namespace
}  // namespace attnkit::test
