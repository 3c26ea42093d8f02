// What luna says of itself: its ports, refusals, initial numbers, work and bytes.
#include "check.hpp"
#include "support/cost.hpp"
#include "support/moments.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {
namespace {

TEST(Luna, CausalBlocksTakePAndGiveNone) {
  const auto count = [](const Mechanism& m, uint32_t kind) {
    return std::ranges::count_if(m.ports(), [kind](const attn_port* p) { return p->kind == kind; });
  };
  const Mechanism causal(plugin(), make_block(ATTN_DECODER_SELF, true, 2, 8, 8)),
      both(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8)),
      own(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8), {{"contextual", false}}),
      encoder(plugin(), make_block(ATTN_ENCODER_SELF, true, 2, 8, 8));
  EXPECT_EQ(1, count(causal, ATTN_AUX_IN));
  EXPECT_EQ(0, count(causal, ATTN_AUX_OUT));
  EXPECT_EQ(1, count(both, ATTN_AUX_IN));
  EXPECT_EQ(1, count(both, ATTN_AUX_OUT));
  EXPECT_EQ(0, count(own, ATTN_AUX_IN) + count(own, ATTN_AUX_OUT));
  EXPECT_EQ(0, count(encoder, ATTN_AUX_IN)) << "P of the encoder's other blocks would show it the future";
  EXPECT_EQ(ATTN_PER_MODEL, both.ports()[static_cast<size_t>(both.find("p_start"))]->flags);
}

// The paper's sizes of a block, in squares of d_model, biases and norms aside: Table 4 follows from them.
TEST(Luna, HasTheProjectionsOfThePaper) {
  const auto squares = [](bool is_causal, bool tied) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, is_causal, 2, 8, 8), {{"tied", tied}});
    return std::ranges::count_if(mech.ports(), [](const attn_port* p) {
      return p->kind <= ATTN_OUTPUT || (p->kind == ATTN_LEARNED && p->ndim == 2 && p->shape[0] == 16 &&
                                        p->shape[1] == 16 && p->name != std::string("p_start"));
    });
  };
  EXPECT_EQ(5, squares(false, true));
  EXPECT_EQ(7, squares(false, false));
  EXPECT_EQ(5, squares(true, true));
  EXPECT_EQ(6, squares(true, false));
}

TEST(Luna, Refuses) {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 8, 8);
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 2, 8, 8);
  const Mechanism self(plugin(), encoder), cross(plugin(), make_block(ATTN_DECODER_CROSS, false, 2, 8, 8));
  const auto request = [](uint32_t flags) { return make_request(1, 4, 4, flags); };
  expect_refused(plugin(), encoder, {{"pheads", int64_t{3}}}, "pheads is 3 and d_model 16", "pheads");
  expect_refused(plugin(), decoder, {{"pheads", int64_t{4}}}, "pheads is 4 in a causal block", "pheads");
  expect_refused(self, request(ATTN_STREAM), "cannot stream");
  expect_refused(cross, request(ATTN_PREFIX), "pack anew for every length");
  expect_refused(cross, request(ATTN_STREAM), "a source that grows would change it");
  EXPECT_NO_THROW(Planned(cross, request(ATTN_STREAM | ATTN_KNOWS_K_TOTAL)));
}

TEST(Luna, FillsAsThePaperInitialises) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 4, 32, 64), {{"tied", false}});
  Inputs in(mech, 1, 1, 1, 5);
  EXPECT_NEAR(1, moments(in["p_start"]).square, 0.1) << "N(0, 1/D) times sqrt D";
  for (const auto& [name, out] : std::map<const char*, int>{{"pq_weight", 128}, {"k_weight", 128}, {"v_weight", 256}}) {
    const double bound = std::sqrt(6.0 / (128 + out)) / std::sqrt(2.0);
    const Moments of = moments(in[name]);
    EXPECT_NEAR(bound * bound / 3, of.square, bound * bound / 60) << name;
    EXPECT_LE(of.largest, bound * 1.000001) << name;
    EXPECT_GE(of.largest, bound * 0.99) << name;
  }
  EXPECT_LE(moments(in["pq_bias"]).largest, 1 / std::sqrt(128.0));
  EXPECT_GE(moments(in["pq_bias"]).largest, 0.9 / std::sqrt(128.0));
  for (const double x : vector_of(in, "norm_weight")) EXPECT_EQ(1, x);
  for (const double x : vector_of(in, "norm_bias")) EXPECT_EQ(0, x);
  EXPECT_EQ(0x1.880652p-3f, in["p_start"].at(0, 0, 0, 0)) << "the same bytes everywhere";
  EXPECT_EQ(-0x1.79acfep-4f, in["pq_weight"].at(0, 0, 7, 0));
}

TEST(Luna, StartsFromTheSamePInEveryBlock) {
  const Mechanism both(plugin(), make_block(ATTN_ENCODER_SELF, false, 4, 32, 64));
  Inputs in(both, 1, 1, 1, 5);
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true}) {
      const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, is_causal, 4, 32, 64), {{"tied", tied}});
      Inputs other(mech, 1, 1, 1, 5);
      EXPECT_TRUE(same_bits(in["p_start"], other["p_start"])) << is_causal << tied;
    }
}

TEST(Luna, RefusesAPOfAnotherBatch) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  Inputs in(mech, 2, 4, 4, 1);
  in["p"] = Array(1, 1, 16, 16);
  expect_refused([&] { run_whole(in, 0, {}); }, "the tensor of port \"p\" differs", mech.find("p"), ATTN_INVALID);
}

// Multiply-adds counted one by one, the way the equations are written; 5 flops for each number of a softmax.
uint64_t count_flops(int64_t heads, int64_t d, int64_t values, int64_t l, int64_t n, int64_t m, const Options& options,
                     bool is_causal, bool projects) {
  const int64_t width = heads * d, pheads = options.pheads ? options.pheads : heads;
  uint64_t adds = 0, exponentials = 0;
  for (int64_t r = 0; r < l; ++r) {
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t c = 0; c < width; ++c) adds += 2;  // a score and a sum
      for (int64_t c = 0; c < heads * values && is_causal && !options.tied; ++c) ++adds;
      for (int64_t h = 0; h < pheads && !is_causal; ++h) ++exponentials;
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < width; ++c) ++adds;
      for (int64_t c = 0; c < heads * values; ++c) ++adds;
      for (int64_t h = 0; h < heads; ++h) ++exponentials;
    }
    int64_t columns = projects ? width : 0;
    if (!is_causal && projects) columns += width + (options.tied ? 0 : heads * values);
    for (int64_t c = 0; c < width * columns; ++c) ++adds;
  }
  return 2 * adds + 5 * exponentials;
}

TEST(Luna, DeclaresTheWorkAndStateThatItHas) {
  const int64_t heads = 3, d = 8, e = 10, l = 16, n = 7, m = 11, batch = 2;
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true})
      for (const bool contextual : {false, true}) {
        const Options options{.tied = tied, .contextual = contextual, .pheads = is_causal ? 0 : 6};
        const int64_t values = tied ? d : e, width = heads * d;
        const Mechanism mech(plugin(),
                             make_block(is_causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, is_causal, heads,
                                        static_cast<int32_t>(d), static_cast<int32_t>(e)),
                             options.settings());
        const uint32_t stream = ATTN_STREAM | ATTN_KNOWS_K_TOTAL;
        const auto flops = [&](const attn_request& r) { return Planned(mech, r).info().flops / batch; };
        const auto counted = [&](int64_t keys, bool projects) {
          return count_flops(heads, d, values, l, n, keys, options, is_causal, projects);
        };
        EXPECT_EQ(counted(m, true), flops(make_request(batch, n, m)));
        EXPECT_EQ(counted(m, true), flops(make_request(batch, n, m, stream)));
        EXPECT_EQ(counted(m, !is_causal), flops(make_request(batch, n, m, stream, 30)));
        EXPECT_EQ(counted(0, false), flops(make_request(batch, n, 0, stream, 30)));
        int64_t state = is_causal ? 2 * l * width + (tied ? 0 : l * heads * e) + 1
                                  : 2 * l * width + 2 * l * 6 + (tied ? 0 : l * heads * e) + contextual * l * width;
        EXPECT_EQ(state_row(static_cast<uint64_t>(state * 4)),
                  Planned(mech, make_request(batch, n, m, stream)).info().state_bytes);
      }
}

// Every tensor that a whole run touches, once.
TEST(Luna, DeclaresTheBytesThatItReadsAndWrites) {
  for (const bool is_causal : {false, true})
    for (const bool tied : {false, true})
      for (const bool contextual : {false, true}) {
        const Mechanism mech(plugin(),
                             make_block(is_causal ? ATTN_DECODER_SELF : ATTN_ENCODER_SELF, is_causal, 3, 8, 10),
                             {{"tied", tied}, {"contextual", contextual}});
        Inputs in(mech, 2, 7, 11, 1);
        uint64_t read = 0, written = 0;
        for (size_t i = 0; i < in.arrays.size(); ++i) {
          const Array& a = in.arrays[i];
          const auto floats = static_cast<uint64_t>(a.batch * a.heads * a.rows * a.width);
          if (is_given(*mech.ports()[i]))
            written += floats;
          else if (!contextual || mech.ports()[i]->name != std::string("p_start"))
            read += floats;
        }
        const attn_info info = Planned(mech, make_request(2, 7, 11)).info();
        EXPECT_EQ(4 * read, info.bytes_read) << is_causal << tied << contextual;
        EXPECT_EQ(4 * written, info.bytes_written) << is_causal << tied << contextual;
        if (!is_causal) continue;
        const attn_info stream = Planned(mech, make_request(2, 7, 11, ATTN_STREAM, 5)).info();
        const uint64_t state = 2 * (16 * (2 * 24 + (tied ? 0 : 30)) + 1);
        uint64_t taken = 0;
        for (size_t i = 0; i < in.arrays.size(); ++i)
          if (mech.ports()[i]->kind <= ATTN_KEY)
            taken += static_cast<uint64_t>(2 * in.arrays[i].heads * in.arrays[i].rows * in.arrays[i].width);
        EXPECT_EQ(4 * (taken + state), stream.bytes_read) << "P and its projection are read at the start only";
        EXPECT_EQ(4 * (written + state), stream.bytes_written);
      }
}

}  // namespace
}  // namespace attnkit::test
