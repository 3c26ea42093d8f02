#include "support/suite.hpp"

#include <gtest/gtest.h>

namespace attnkit::test {

std::vector<Situation> situations() {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 32, 32);
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 3, 24, 40);
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 64, 16);
  const auto narrow = make_block(ATTN_DECODER_CROSS, false, 2, 4, 6);
  return {
      {"encoder", encoder, 2, 100, 100, {}, {}, false, false},
      {"encoder padded", encoder, 3, 50, 50, {50, 1, 33}, {50, 1, 33}, false, false},
      {"causal", decoder, 2, 100, 100, {}, {}, false, true},
      {"causal long", decoder, 1, 400, 400, {}, {}, false, true},
      {"causal padded", decoder, 3, 40, 40, {7, 40, 39}, {7, 40, 39}, false, true},
      {"cross", cross, 2, 33, 77, {}, {}, false, false},
      {"cross with totals", narrow, 2, 20, 9, {}, {}, false, true},
      {"cross padded", cross, 3, 20, 31, {20, 3, 0}, {5, 31, 8}, false, false},
      {"prefix", cross, 2, 30, 70, {}, {}, true, true},
  };
}

double check_situations(const attn_plugin& plugin, const Settings& settings, const WeightOf& weight,
                        const Denominator& denominator, const std::function<void(Inputs&)>& prepare, bool may_cancel) {
  double worst = 0;
  for (const Situation& s : situations()) {
    const Mechanism mech(plugin, s.block, settings);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    if (prepare) prepare(in);
    Call call;
    call.q_len = s.q_len;
    call.k_len = s.k_len;
    for (int64_t b = 0; b < s.batch && s.totals; ++b) {
      const auto row = static_cast<size_t>(b);
      call.q_total.push_back(static_cast<double>(s.q_len.empty() ? s.queries : s.q_len[row]));
      call.k_total.push_back(static_cast<double>(s.k_len.empty() ? s.keys : s.k_len[row]));
    }
    for (int64_t i = 0; i < s.batch * s.queries && s.prefix; ++i)
      call.visible.push_back(static_cast<int32_t>((i % s.queries) / 4 * 9));
    const Scene scene{s.batch, s.block.heads, s.queries,   s.keys, s.block.head_width, s.block.causal != 0,
                      s.q_len, s.k_len,       call.visible};
    const Array got = run_whole(in, s.prefix ? ATTN_PREFIX : 0, call);
    const Array& v = in["v"];
    const Truth truth = oracle(
        scene, weight(mech, in, scene, call),
        [&](int64_t b, int64_t h, int64_t j, int64_t c) { return double{v.at(b, h, j, c)}; }, denominator);
    const double error = error_of(got, truth, may_cancel);
    EXPECT_LE(error, kGate) << s.name;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace attnkit::test
