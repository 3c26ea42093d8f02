// The CUDA variant of softmax: keys split among blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/variants.hpp"

namespace attnkit::test {
namespace {

// Rows that see more than the 256 keys of a block beside rows that do not, some with few queries, in calls of one
// kernel and of another: as the CPU has it, and each with the bits that it has alone.
void check_few_queries(attn_block block) {
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block),
      there(load(ATTNKIT_EMULATED_DIR "/softmax.so"), block);
  const std::vector<int32_t> lengths = {2600, 254, 256, 0};
  const int64_t most = 2700;
  Inputs in(here, 4, most, most, 1), same(there, 4, most, most, 1);
  const auto plan = [&](const Mechanism& mech, int64_t batch, int64_t rows) {
    return Planned(mech, make_request(batch, rows, rows, ATTN_STREAM, most));
  };
  const Planned first = plan(here, 4, most);
  const Arena one(first.info().state_bytes, 4), other(first.info().state_bytes, 4);
  Call prompt;
  prompt.arena = &one;
  prompt.keys = most;
  prompt.k_len = lengths;
  prompt.q_pos = prompt.k_pos = std::vector<int32_t>(4);
  first.run(in, prompt);
  std::memcpy(other.row(0), one.row(0), 4 * one.row_bytes);
  const auto rows = [&](const Arena& arena, const std::vector<int32_t>& counts, std::vector<int32_t> from) {
    Call call;
    call.arena = &arena;
    call.queries = call.keys = *std::max_element(counts.begin(), counts.end());
    call.q_len = call.k_len = counts;
    call.q_pos = call.k_pos = std::move(from);
    return call;
  };
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{1, 1, 1, 1}, {4, 4, 3, 4}, {4, 20, 1, 2}}) {
    const int64_t n = *std::max_element(counts.begin(), counts.end());
    const Planned here_planned = plan(here, 4, n), planned = plan(there, 4, n);
    EXPECT_GT(planned.info().scratch_bytes, 0u);
    const Arena before(other.row_bytes, 4);
    std::memcpy(before.row(0), other.row(0), 4 * other.row_bytes);
    const Array got = planned.run(same, rows(other, counts, lengths));
    EXPECT_LE(rms_ratio(got, here_planned.run(in, rows(one, counts, lengths))), kGate) << n;
    for (int64_t b = 0; b < 4; ++b) {
      const auto row = static_cast<size_t>(b);
      const Arena own(other.row_bytes, 1);
      std::memcpy(own.row(0), before.row(b), own.row_bytes);
      Inputs alone_in = alone(same, b, most, most);
      const Array want = plan(there, 1, counts[row]).run(alone_in, rows(own, {counts[row]}, {lengths[row]}));
      for (int64_t h = 0; h < 4; ++h) EXPECT_TRUE(same_bits(want, 0, h, got, b, h, counts[row])) << n << " " << b;
    }
  }
}

TEST(SoftmaxVariant, SplitsTheKeysOfFewQueries) {
  attn_block block = make_block(ATTN_DECODER_SELF, true, 4, 8, 8);
  block.kv_heads = 2;
  check_few_queries(block);
}
TEST(SoftmaxVariant, SplitsTheKeysOfOneQuery) { check_few_queries(make_block(ATTN_DECODER_SELF, true, 4, 12, 20)); }

// Of a whole source, whose last key some do not see: a NaN there is theirs alone who do.
TEST(SoftmaxVariant, SplitsTheKeysOfASource) {
  const attn_block block = make_block(ATTN_DECODER_CROSS, false, 2, 8, 8);
  const Mechanism here(load(ATTNKIT_PLUGIN_DIR "/softmax.so"), block),
      there(load(ATTNKIT_EMULATED_DIR "/softmax.so"), block);
  Inputs in(here, 1, 3, 2100, 1), same(there, 1, 3, 2100, 1);
  Call call;
  call.visible = {0, 1030, 2099};
  const Array want = run_whole(in, ATTN_PREFIX, call), got = run_whole(same, ATTN_PREFIX, call);
  EXPECT_LE(rms_ratio(got, want), kGate);
  const Gradients<float> here_given = backward(in, ATTN_PREFIX, call), given = backward(same, ATTN_PREFIX, call);
  for (const char* name : {"q", "k", "v"}) {
    const auto p = static_cast<size_t>(here.find(name));
    EXPECT_LE(rms_ratio(given[p], here_given[p]), 2 * kGate) << name;
  }
  same["k"].at(0, 1, 2099, 0) = same["v"].at(0, 1, 2099, 0) = NAN;
  const Array after = run_whole(same, ATTN_PREFIX, call);
  for (int64_t h = 0; h < 2; ++h) EXPECT_TRUE(same_bits(got, 0, h, after, 0, h, 3));
  same["k"].at(0, 1, 500, 0) = NAN;
  const Array spoilt = run_whole(same, ATTN_PREFIX, call);
  EXPECT_TRUE(same_bits(got, 0, 0, spoilt, 0, 0, 3) && same_bits(got, 0, 1, spoilt, 0, 1, 1));
  EXPECT_TRUE(std::isnan(spoilt.at(0, 1, 1, 0)) && std::isnan(spoilt.at(0, 1, 2, 5)));
}

}  // namespace
}  // namespace attnkit::test
