// The CUDA variant of luna: its gradients, and keys split among blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "cuda/variants.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {
namespace {

// Of values of their own, and rows of P that are no whole four.
INSTANTIATE_TEST_SUITE_P(Cuda, LongRows, testing::Values(Chosen{"luna", {{"tied", false}, {"projection", int64_t{6}}}}),
                         LongRows::name);

double rms(const Array& a) {
  double squares = 0;
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t c = 0; c < a.width; ++c) squares += std::pow(a.at(0, 0, i, c), 2);
  return std::sqrt(squares / static_cast<double>(a.rows * a.width));
}

// Several tiles of queries, keys and rows of P, heads so wide that their tiles are small, heads of the pack attention
// that are others; rows of P that a short context leaves out may hold anything.  Equal calls give equal bits.
TEST(LunaVariant, GradientsAreTheCpus) {
  struct Case {
    bool causal;
    int32_t width;
    Settings settings;
  };
  const auto number = [](int64_t x) { return x; };
  for (const Case& c :
       {Case{false, 20, {{"projection", number(40)}}}, Case{false, 20, {{"tied", false}, {"pheads", number(5)}}},
        Case{false, 20, {{"contextual", false}, {"pheads", number(8)}}},
        Case{false, 300, {{"tied", false}, {"projection", number(19)}}}, Case{true, 20, {{"projection", number(40)}}},
        Case{true, 20, {{"tied", false}, {"activation", "softplus"}}},
        Case{true, 300, {{"contextual", false}, {"activation", "elu1"}}}}) {
    SCOPED_TRACE(testing::Message() << c.causal << " " << c.width << " " << c.settings.size());
    const attn_block block =
        make_block(c.causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, c.causal, 2, c.width, c.width + 4);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, c.settings),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, c.settings);
    const int64_t keys = c.causal ? 70 : 90;
    Inputs in(here, 3, 70, keys, 1), same(there, 3, 70, keys, 1);
    for (Inputs* inputs : {&in, &same})
      if (!c.causal && here.find("p") >= 0)
        (*inputs)["p"].set([p = (*inputs)["p"]](int64_t b, int64_t h, int64_t i, int64_t x) {
          return b == 1 && i >= 7 ? std::numeric_limits<float>::quiet_NaN() : p.at(b, h, i, x);
        });
    Call call;
    call.q_len = {70, 33, 70};
    call.k_len = {static_cast<int32_t>(keys), 7, 0};
    if (c.causal) call.q_pos = {0, 3, 0};
    EXPECT_LE(rms_ratio(run_whole(same, 0, call), run_whole(in, 0, call)), kGate);
    const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call), again = backward(same, 0, call);
    for (size_t p = 0; p < want.size(); ++p) {
      const std::string name = here.ports()[p]->name;
      if (is_given(*here.ports()[p])) continue;
      EXPECT_TRUE(same_bits(got[p], again[p])) << name;
      // A bias of keys that are no values gives all logits of a query the same.  Its gradient is zero but for rounding
      // errors of what cancels, which is of the size of k_weight's.
      const bool cancels = name == "k_bias" && here.find("v_bias") >= 0;
      const double size = cancels ? rms(want[static_cast<size_t>(here.find("k_weight"))]) / rms(want[p]) : 1;
      EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate * size) << name;
    }
  }
}

// Few queries of a long source, and many of a short one; heads of the pack attention that are others; P that goes on.
TEST(LunaVariant, SplitsTheKeysOfALongSource) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  for (const Settings& settings :
       {Settings{}, Settings{{"tied", false}, {"pheads", int64_t{4}}, {"projection", int64_t{5}}}}) {
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
    for (const auto& [queries, keys] : {std::pair(3, 2500), {2500, 3}, {3, 1025}, {1100, 0}}) {
      Inputs in(here, 1, queries, keys, 1), same(there, 1, queries, keys, 1);
      std::map<std::string, Array> want, got;
      EXPECT_LE(rms_ratio(run_whole(same, 0, {}, 1, &got), run_whole(in, 0, {}, 1, &want)), kGate) << keys;
      EXPECT_LE(rms_ratio(got.at("p"), want.at("p")), kGate) << keys;
    }
  }
}

// A piece that is split, one token, one that just is and one that is none; read after each.
TEST(LunaVariant, SplitsTheKeysOfASourceThatGrows) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Settings settings{{"contextual", false}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
  const int64_t n = 2600;
  Inputs in(here, 1, 3, n, 1), same(there, 1, 3, n, 1);
  const Planned first(here, make_request(1, 3, n, ATTN_STREAM)), second(there, make_request(1, 3, n, ATTN_STREAM));
  const Arena one(first.info().state_bytes, 1), other(second.info().state_bytes, 1);
  int32_t past = 0;
  for (const int64_t piece : {1500, 1, 1025, 74}) {
    EXPECT_LE(rms_ratio(append(second, same, other, past, piece, 3), append(first, in, one, past, piece, 3)), kGate);
    past += static_cast<int32_t>(piece);
  }
}

// Two prompts, split beside ones that are not: each row has the state that it has alone, bit for bit, and the CPU goes
// on.
TEST(LunaVariant, GoesOnAfterLongPrompts) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block), there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
  const int64_t most = 1500;
  const std::vector<std::vector<int32_t>> past = {{0, 0, 0}, {1500, 70, 1}, {2600, 90, 6}};
  Inputs in(here, 3, most, most, 1), same(there, 3, most, most, 1);
  const auto plan = [&](const Mechanism& mech, int64_t batch) {
    return Planned(mech, make_request(batch, most, most, ATTN_STREAM));
  };
  const Planned first = plan(here, 3), second = plan(there, 3), single = plan(there, 1);
  const Arena one(first.info().state_bytes, 3), other(second.info().state_bytes, 3);
  const auto call = [](const Arena& arena, int64_t keys, const std::vector<int32_t>& from) {
    Call c;
    c.arena = &arena;
    c.queries = 3;
    c.keys = keys;
    c.q_pos = c.k_pos = from;
    return c;
  };
  const auto added = [&](size_t prompt, size_t b) { return past[prompt + 1][b] - past[prompt][b]; };
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    const auto run = [&](const Planned& planned, Inputs& inputs, const Arena& arena) {
      Call c = call(arena, most, past[prompt]);
      for (size_t b = 0; b < 3; ++b) c.k_len.push_back(added(prompt, b));
      return planned.run(inputs, c);
    };
    EXPECT_LE(rms_ratio(run(second, same, other), run(first, in, one)), kGate);
  }
  for (size_t b = 0; b < 3; ++b) {
    Inputs row = alone(same, static_cast<int64_t>(b), most, most);
    const Arena own(second.info().state_bytes, 1);
    for (size_t prompt = 0; prompt < 2; ++prompt) single.run(row, call(own, added(prompt, b), {past[prompt][b]}));
    EXPECT_EQ(0, std::memcmp(own.row(0), other.row(static_cast<int64_t>(b)), own.row_bytes)) << b;
  }
  std::memcpy(one.row(0), other.row(0), 3 * one.row_bytes);
  EXPECT_LE(rms_ratio(second.run(same, call(other, 3, past[2])), first.run(in, call(one, 3, past[2]))), kGate);
}

// Causal queries that see but some of many keys, and more queries than keys.
TEST(LunaVariant, SplitsQueriesOfSomeKeys) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block), there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
  Inputs in(here, 4, 1100, 2500, 1), same(there, 4, 1100, 2500, 1);
  Call call;
  call.q_len = {3, 1100, 0, 3};
  call.k_len = {2500, 9, 2500, 2500};
  call.q_pos = {2300, 2, 0, 100};
  EXPECT_LE(rms_ratio(run_whole(same, 0, call), run_whole(in, 0, call)), kGate);
  Inputs none(there, 1, 1100, 0, 1);
  const Array zeros = run_whole(none, 0, {});
  for (int64_t i = 0; i < 1100; ++i) EXPECT_EQ(zeros.at(0, 0, i, 7), 0) << i;
}

// Which begin with what a run that is split saved.
TEST(LunaVariant, GradientsOfLongRowsAreTheCpus) {
  for (const bool causal : {false, true}) {
    const attn_block block = make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 1, 8, 8);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block),
        there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block);
    const int64_t queries = causal ? 1100 : 3;
    Inputs in(here, 1, queries, 1100, 1), same(there, 1, queries, 1100, 1);
    const Gradients<float> want = backward(in, 0, {}), got = backward(same, 0, {});
    for (size_t p = 0; p < want.size(); ++p)
      if (!is_given(*here.ports()[p]))
        EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name << " " << causal;
  }
}

TEST(LunaVariant, SplitsLongRowsAmongBlocks) {
  const auto scratch = [](bool causal, const Settings& settings, int64_t queries, int64_t keys, uint32_t flags = 0) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/luna.so"),
                         make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 2, 8, 8), settings);
    return Planned(mech, make_request(3, queries, keys, flags)).info().scratch_bytes;
  };
  const Settings untied{{"tied", false}};
  EXPECT_EQ(scratch(true, {}, 1024, 1024), 0u);
  // P W_pq, and sums of nothing, of 1024 keys, of 2048 and of all
  EXPECT_EQ(scratch(true, {}, 2100, 2100), 3u * (16 * 16 + 2 * 4 * 16 * 8) * sizeof(float));
  EXPECT_EQ(scratch(true, untied, 2100, 2100), 3u * (16 * 16 + 2 * 4 * 16 * (8 + 8)) * sizeof(float));
  EXPECT_EQ(scratch(false, {}, 3, 1024, ATTN_STREAM | ATTN_KNOWS_K_TOTAL), 0u);
  // sums, largest and totals of 1024 keys, of 1024 more and of the rest
  EXPECT_EQ(scratch(false, {}, 3, 2100, ATTN_STREAM | ATTN_KNOWS_K_TOTAL),
            3u * 3 * (16 * 16 + 2 * 2 * 16) * sizeof(float));
  EXPECT_EQ(scratch(false, untied, 3, 2100) - scratch(false, untied, 3, 1024),
            3u * 3 * (16 * 16 + 2 * 2 * 16) * sizeof(float));
}

// An infinite value makes outputs infinite, with rows of P that are no whole four and some that do not count, too.
TEST(LunaVariant, InfiniteValuesStayInfinite) {
  const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, 8, 8);
  const Settings settings{{"tied", false}, {"projection", int64_t{6}}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/luna.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/luna.so"), block, settings);
  for (const int64_t live : {6, 5, 3}) {
    Inputs in(here, 1, 80, 80, 1), same(there, 1, 80, 80, 1);
    for (Inputs* inputs : {&in, &same}) {
      (*inputs)["v"].at(0, 0, 20, 1) = INFINITY;
      (*inputs)["p"].set([live, p = (*inputs)["p"]](int64_t b, int64_t h, int64_t i, int64_t c) {
        return i < live ? p.at(b, h, i, c) : 0;
      });
    }
    const Array want = run_whole(in, 0, {}), got = run_whole(same, 0, {});
    for (int64_t i = 0; i < 80; ++i)
      for (int64_t c = 0; c < 8; ++c) {
        const float x = want.at(0, 0, i, c), y = got.at(0, 0, i, c);
        EXPECT_EQ(i >= 20 && c == 1, y == INFINITY) << i << " " << c << " " << live;
        EXPECT_TRUE(x == y || std::abs(x - y) < 1e-4f) << i << " " << c << " " << live;
      }
  }
}

TEST(LunaVariant, RefusesGradientsOfAPThatIsTooLong) {
  for (const bool causal : {false, true}) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/luna.so"),
                         make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 1, 64, 64),
                         {{"projection", int64_t{300}}});
    EXPECT_NO_THROW(Planned(mech, make_request(1, 4, 4)));
    expect_refused(mech, make_request(1, 4, 4, ATTN_TRAIN), "the rows of 8 tokens and of P take in a gradient");
  }
}

}  // namespace
}  // namespace attnkit::test
