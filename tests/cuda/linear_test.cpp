// The CUDA variants of linear mechanisms, in what the core that they share does.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/training.hpp"

namespace attnkit::test {
namespace {

// Few queries of a long source, and many of a short one.
TEST(LinearVariant, SplitsEitherSideOfCrossAttention) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/relu.so"), block), there(load(ATTNKIT_EMULATED_DIR "/relu.so"), block);
  for (const auto& [queries, keys] : {std::pair(3, 2500), {2500, 3}, {1100, 0}}) {
    Inputs in(here, 1, queries, keys, 1), same(there, 1, queries, keys, 1);
    EXPECT_LE(rms_ratio(run_whole(same, 0, {}), run_whole(in, 0, {})), kGate) << queries;
  }
}

TEST(LinearVariant, SplitsLongRowsAmongBlocks) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/relu.so"), make_block(ATTN_ENCODER_SELF, false, 2, 8, 8));
  EXPECT_EQ(Planned(mech, make_request(3, 1024, 1024)).info().scratch_bytes, 0u);
  // S and z of nothing, of 1024 keys, of 2048 and of all
  EXPECT_EQ(Planned(mech, make_request(3, 2100, 2100)).info().scratch_bytes, 3u * 2 * 4 * (8 * 8 + 8) * sizeof(float));
}

// Of features that follow too, but where a scale is that of all keys.
TEST(LinearVariant, SplitsWhatFollows) {
  const auto scratch = [](const char* name, const Settings& settings, int64_t n) {
    const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/" + std::string(name) + ".so"),
                         make_block(ATTN_ENCODER_SELF, false, 2, 8, 8), settings);
    return Planned(mech, make_request(3, n, n)).info().scratch_bytes;
  };
  for (const char* name : {"latte", "efficient", "performer"}) {
    EXPECT_EQ(scratch(name, {}, 1024), 0u) << name;
    EXPECT_GT(scratch(name, {}, 2100), 0u) << name;
  }
  EXPECT_EQ(scratch("efficient", {}, 2100), 3u * 2 * 4 * (8 * 8 + 2 * 8) * sizeof(float));
  EXPECT_EQ(scratch("performer", {{"stabiliser", "global"}, {"feature_eps", 1e-3}}, 2100), 0u);
}

TEST(LinearVariant, KeepsTheSumsOfWideHeadsInScratch) {
  const Mechanism mech(load(ATTNKIT_EMULATED_DIR "/relu.so"), make_block(ATTN_DECODER_SELF, true, 1, 320, 250));
  EXPECT_GT(Planned(mech, make_request(1, 19, 19)).info().scratch_bytes, 0u);
}

// Of heads whose S stays in global memory, too.  A single number, b2 of leap, is what a sum's terms leave of each
// other: the CPU's is no measure for it.
TEST(LinearVariant, GradientsAreTheCpus) {
  for (const char* name : {"linear", "leap", "latte", "performer"})
    for (const int32_t width : {24, 144}) {
      SCOPED_TRACE(testing::Message() << name << " " << width);
      const attn_block block = make_block(ATTN_DECODER_SELF, true, 1, width, width + 8);
      const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/" + std::string(name) + ".so"), block),
          there(load(ATTNKIT_EMULATED_DIR "/" + std::string(name) + ".so"), block);
      Inputs in(here, 2, 70, 70, 1), same(there, 2, 70, 70, 1);
      Call call;
      call.q_len = call.k_len = {70, 33};
      const Gradients<float> want = backward(in, 0, call), got = backward(same, 0, call);
      for (size_t p = 0; p < want.size(); ++p)
        if (want[p].heads * want[p].rows * want[p].width > 1 && here.ports()[p]->kind != ATTN_OUTPUT)
          EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
    }
}

// More segments than the sums of are kept; queries that see no more keys than those before, one more or a hundred, and
// logits that rise, so that blocks end early.
TEST(LinearVariant, GradientsOfManySegmentsAreTheCpus) {
  const int32_t n = 4500;
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 1, 8, 8);
  const Settings settings{{"cross", true}};
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/latte.so"), block, settings),
      there(load(ATTNKIT_EMULATED_DIR "/latte.so"), block, settings);
  Inputs in(here, 1, n, n, 1), same(there, 1, n, n, 1);
  for (Inputs* inputs : {&in, &same}) {
    Array& k = (*inputs)["latent_k"];
    for (int64_t j = n / 2; j < n; ++j)
      for (int64_t l = 0; l < k.width; ++l) k.at(0, 0, j, l) += 0.25f * static_cast<float>(j - n / 2);
  }
  Call call;
  for (int32_t i = 0; i < n; ++i) call.visible.push_back(std::max(0, i % 1000 < 700 ? i - 40 : i / 100 * 100));
  const Gradients<float> want = backward(in, ATTN_PREFIX, call), got = backward(same, ATTN_PREFIX, call);
  for (const char* name : {"latent_q", "latent_k", "v"}) {
    const auto p = static_cast<size_t>(here.find(name));
    EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << name;
  }
}

// Keys that raise the scale, behind queries that see no more than those before them.  Heads of 256 go a few at a time.
TEST(LinearVariant, AKeyChangesNothingOfThoseThatDoNotSeeIt) {
  struct Case {
    const char *name, *keys;
    int32_t width;
    float times, plus;  // of the keys that all see, of the others
    Settings settings;
  };
  for (const Case& c : {Case{"latte", "latent_k", 8, 1, 200, {{"cross", true}}}, Case{"efficient", "k", 8, 1, 200, {}},
                        Case{"performer", "k", 8, 16, 0, {}}, Case{"performer", "k", 256, 6, 0, {}}}) {
    SCOPED_TRACE(testing::Message() << c.name << " " << c.width);
    const attn_block block = make_block(ATTN_DECODER_CROSS, false, 1, c.width, c.width);
    const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/" + std::string(c.name) + ".so"), block, c.settings),
        there(load(ATTNKIT_EMULATED_DIR "/" + std::string(c.name) + ".so"), block, c.settings);
    Inputs in(here, 1, 40, 20, 1), same(there, 1, 40, 20, 1);
    for (Inputs* inputs : {&in, &same})
      (*inputs)[c.keys].set([&, k = (*inputs)[c.keys]](int64_t b, int64_t h, int64_t j, int64_t e) {
        return j < 10 ? c.times * k.at(b, h, j, e) : k.at(b, h, j, e) + c.plus;
      });
    Call call;
    for (int32_t i = 0; i < 40; ++i) call.visible.push_back(i < 34 ? 10 : std::min(20, i - 23));
    EXPECT_LE(rms_ratio(run_whole(same, ATTN_PREFIX, call), run_whole(in, ATTN_PREFIX, call)), kGate);
    if (c.width > 64) continue;  // of which performer has no gradients
    const Gradients<float> want = backward(in, ATTN_PREFIX, call), got = backward(same, ATTN_PREFIX, call);
    for (size_t p = 0; p < want.size(); ++p)
      if (here.ports()[p]->kind != ATTN_OUTPUT && want[p].heads * want[p].rows > 0)
        EXPECT_LE(rms_ratio(got[p], want[p]), 2 * kGate) << here.ports()[p]->name;
  }
}

}  // namespace
}  // namespace attnkit::test
