// The needs of tests of CUDA variants, each beside the mechanism's plugin for the CPU.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/stream.hpp"
#include "support/training.hpp"

namespace attnkit::test {

// Inputs of batch row b alone.
inline Inputs alone(const Inputs& in, int64_t b, int64_t queries, int64_t keys) {
  Inputs one(*in.mech, 1, queries, keys, 1);
  for (size_t p = 0; p < one.arrays.size(); ++p)
    if (is_taken(*in.mech->ports()[p]))
      one.arrays[p].set([&, from = in.arrays[p].batch > b ? b : 0](int64_t, int64_t h, int64_t i, int64_t c) {
        return in.arrays[p].at(from, h, i, c);
      });
  return one;
}

// Appends keys behind `from` others to the state of the only row, and reads it.
inline Array append(const Planned& plan, Inputs& in, const Arena& arena, int32_t from, int64_t keys, int64_t queries) {
  Call call;
  call.arena = &arena;
  call.k_from = from;
  call.keys = keys;
  call.queries = queries;
  call.q_pos = {0};
  call.k_pos = {from};
  return plan.run(in, call);
}

// As the CPU has it, each row with the bits of that row alone.
inline void expect_rows(const Mechanism& here, const Mechanism& there, int64_t queries, int64_t keys, uint32_t flags,
                        const Call& call) {
  const auto batch = static_cast<int64_t>(call.q_len.size());
  Inputs in(here, batch, queries, keys, 1), same(there, batch, queries, keys, 1);
  const Array got = run_whole(same, flags, call);
  EXPECT_LE(rms_ratio(got, run_whole(in, flags, call)), kGate);
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = static_cast<size_t>(b);
    const int64_t n = call.q_len[row], m = call.k_len[row];
    Inputs one = alone(same, b, n, m);
    Call own;
    if (!call.q_total.empty()) own.q_total = {call.q_total[row]};
    if (flags & ATTN_PREFIX) {
      const auto from = call.visible.begin() + b * queries;
      own.visible.assign(from, from + n);
    }
    const Array by_itself = run_whole(one, flags, own);
    for (int64_t h = 0; h < got.heads; ++h)
      EXPECT_TRUE(same_bits(by_itself, 0, h, got, b, h, n)) << b << ", head " << h;
  }
}

// What a plan says of its costs.
inline void expect_equal_costs(const attn_info& a, const attn_info& b) {
  EXPECT_EQ(a.state_bytes, b.state_bytes);
  EXPECT_EQ(a.flops, b.flops);
  EXPECT_EQ(a.bytes_read, b.bytes_read);
  EXPECT_EQ(a.bytes_written, b.bytes_written);
}

// Streams two rows in these pieces, which the CPU's agree with; a NaN of a port's row stays behind the queries before
// it.
inline void expect_pieces(const Mechanism& here, const Mechanism& there, const std::vector<int64_t>& pieces,
                          const char* port, int64_t spoilt_row) {
  const int64_t n = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
  Inputs in(here, 2, n, n, 1), same(there, 2, n, n, 1);
  const attn_request request = make_request(2, n, n, ATTN_STREAM | ATTN_KNOWS_Q_TOTAL, n);
  const Planned first(here, request), second(there, request);
  const auto streamed = [&](const Planned& planned, Inputs& inputs) {
    const Arena arena(planned.info().state_bytes, 2);
    Array all(2, 1, n, in.arrays[here.output()].width);
    int32_t done = 0;
    for (const int64_t piece : pieces) {
      Call call;
      call.arena = &arena;
      call.slots = {1, 0};
      call.q_from = call.k_from = done;
      call.queries = call.keys = piece;
      call.q_pos = call.k_pos = {done, done};
      call.q_total.assign(2, static_cast<double>(n));
      paste(all, planned.run(inputs, call), done);
      done += static_cast<int32_t>(piece);
    }
    return all;
  };
  const Array got = streamed(second, same);
  EXPECT_LE(rms_ratio(got, streamed(first, in)), kGate);
  same[port].at(0, 0, spoilt_row, 1) = NAN;
  const Array after = streamed(second, same);
  EXPECT_TRUE(same_bits(got, 0, 0, after, 0, 0, spoilt_row));
  EXPECT_TRUE(same_bits(got, 1, 0, after, 1, 0, n));
  EXPECT_TRUE(std::isnan(after.at(0, 0, spoilt_row, 1)) && std::isnan(after.at(0, 0, n - 1, 1)));
}

// A mechanism with options.
struct Chosen {
  std::string mechanism;
  Settings settings = {};
};
inline void PrintTo(const Chosen& chosen, std::ostream* out) { *out << chosen.mechanism; }

// Rows of more than the 1024 queries or keys of a block, beside shorter ones.  variants_test.cpp takes them of all
// linear mechanisms; the cuda_test.cpp of another that splits such rows instantiates this for it.
class LongRows : public testing::TestWithParam<Chosen> {
 public:
  static std::string name(const testing::TestParamInfo<Chosen>& info) { return info.param.mechanism; }

 protected:
  Mechanism here(const attn_block& block) const {
    return {load(ATTNKIT_PLUGIN_DIR "/" + GetParam().mechanism + ".so"), block, GetParam().settings};
  }
  Mechanism there(const attn_block& block) const {
    return {load(ATTNKIT_EMULATED_DIR "/" + GetParam().mechanism + ".so"), block, GetParam().settings};
  }
  const attn_block causal = make_block(ATTN_DECODER_SELF, true, 1, 8, 8),
                   encoder = make_block(ATTN_ENCODER_SELF, false, 1, 8, 8);
};

}  // namespace attnkit::test
