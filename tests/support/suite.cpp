#include "support/suite.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "support/cost.hpp"
#include "support/stream.hpp"

namespace attnkit::test {

namespace {

attn_block sharing(attn_block block, uint32_t kv_heads) {
  block.kv_heads = kv_heads;
  return block;
}

}  // namespace

std::vector<Situation> situations() {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 32, 32);
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 3, 24, 40);
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 64, 16);
  const auto narrow = make_block(ATTN_DECODER_CROSS, false, 2, 4, 6);
  const auto grouped = sharing(make_block(ATTN_DECODER_SELF, true, 6, 24, 17), 2);
  const auto grouped_cross = sharing(make_block(ATTN_DECODER_CROSS, false, 3, 20, 32), 1);
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
      {"causal, shared keys", grouped, 2, 100, 100, {}, {}, false, true},
      {"cross padded, shared keys", grouped_cross, 3, 20, 31, {20, 3, 0}, {5, 31, 8}, false, false},
      {"prefix, shared keys", grouped_cross, 2, 30, 70, {}, {}, true, true},
  };
}

std::vector<Situation> small_situations() {
  const auto encoder = make_block(ATTN_ENCODER_SELF, false, 2, 8, 8);
  const auto decoder = make_block(ATTN_DECODER_SELF, true, 2, 8, 6);
  const auto cross = make_block(ATTN_DECODER_CROSS, false, 2, 8, 4);
  const auto grouped = sharing(make_block(ATTN_DECODER_SELF, true, 4, 8, 6), 2);
  const auto grouped_cross = sharing(make_block(ATTN_DECODER_CROSS, false, 2, 8, 4), 1);
  return {
      {"small encoder", encoder, 2, 7, 7, {}, {}, false, false},
      {"small encoder padded", encoder, 3, 6, 6, {6, 1, 4}, {6, 1, 4}, false, false},
      {"small causal", decoder, 2, 9, 9, {}, {}, false, true},
      {"small causal padded", decoder, 3, 6, 6, {2, 6, 5}, {2, 6, 5}, false, true},
      {"small cross", cross, 2, 5, 9, {}, {}, false, false},
      {"small cross with totals", cross, 2, 6, 4, {}, {}, false, true},
      {"small cross padded", cross, 3, 5, 7, {5, 3, 0}, {2, 7, 6}, false, false},
      {"small prefix", cross, 3, 6, 9, {}, {}, true, true},
      {"small causal, shared keys", grouped, 1, 9, 9, {}, {}, false, true},
      {"small cross padded, shared keys", grouped_cross, 3, 5, 7, {5, 3, 0}, {2, 7, 6}, false, false},
  };
}

Call Situation::call() const {
  Call call;
  call.q_len = q_len;
  call.k_len = k_len;
  for (int64_t b = 0; b < batch && totals; ++b) {
    const auto row = static_cast<size_t>(b);
    call.q_total.push_back(static_cast<double>(q_len.empty() ? queries : q_len[row]));
    call.k_total.push_back(static_cast<double>(k_len.empty() ? keys : k_len[row]));
  }
  // A step of keys every few queries, and each batch row two more keys than the one before.
  for (int64_t i = 0; i < batch * queries && prefix; ++i) {
    const int64_t seen = i % queries / ((queries + 7) / 8) * ((keys + 7) / 8) + i / queries * 2;
    call.visible.push_back(static_cast<int32_t>(std::min(seen, keys)));
  }
  return call;
}

Scene Situation::scene() const {
  return {batch, block.heads, queries, keys, block.head_width, block.causal != 0, q_len, k_len, call().visible};
}

double worst_situation(const std::function<bool(const Situation&)>& allowed,
                       const std::function<double(const Situation&)>& error) {
  double worst = 0;
  for (const Situation& s : situations()) {
    if (allowed && !allowed(s)) continue;
    SCOPED_TRACE(s.name);
    worst = worse(worst, error(s));
  }
  return worst;
}

WeightOf by_head(const HeadWeights& form) {
  return [form](const Mechanism&, Inputs& in, const Scene& scene, const Call&) -> Weight {
    const auto known = std::make_shared<std::map<std::pair<int64_t, int64_t>, Matrix>>();
    return [form, &in, scene, known](int64_t b, int64_t h, int64_t i, int64_t j) {
      Matrix& weights = (*known)[{b, h}];
      if (weights.empty()) {
        std::vector<int64_t> seen(static_cast<size_t>(scene.queries));
        for (size_t t = 0; t < seen.size(); ++t)
          while (seen[t] < scene.keys && scene.sees(b, static_cast<int64_t>(t), seen[t])) ++seen[t];
        weights = form(in, b, h, seen);
      }
      return weights[static_cast<size_t>(i)][static_cast<size_t>(j)];
    };
  };
}

Inputs with_repeated_keys(const Inputs& in) {
  Inputs repeated = in;
  const int64_t heads = in.mech->block().heads;
  for (size_t p = 0; p < in.arrays.size(); ++p) {
    const Array& from = in.arrays[p];
    const attn_port& port = *in.mech->ports()[p];
    if (port.kind != ATTN_KEY || (port.flags & ATTN_RAW) || from.heads == heads) continue;
    Array to(from.batch, heads, from.rows, from.width);
    to.set([&](int64_t b, int64_t h, int64_t i, int64_t c) { return from.at(b, h / (heads / from.heads), i, c); });
    repeated.arrays[p] = to;
  }
  return repeated;
}

void check_shared_keys(const attn_plugin& plugin, const Settings& settings, bool causal) {
  const int64_t n = 150;
  const uint32_t totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  const attn_block each = make_block(causal ? ATTN_DECODER_SELF : ATTN_DECODER_CROSS, causal, 6, 20, 17);
  const Mechanism repeating(plugin, each, settings);
  for (const uint32_t kv_heads : {1u, 2u, 3u}) {
    const Mechanism sharing_keys(plugin, sharing(each, kv_heads), settings);
    const auto kept = [&](const Mechanism& mech) {
      return Planned(mech, make_request(1, 1, 1, ATTN_STREAM | totals, n - 1)).info().state_bytes;
    };
    EXPECT_EQ(state_row(kept(repeating) * kv_heads / 6), kept(sharing_keys));
    Inputs in(sharing_keys, 2, n, n, 4), repeated = with_repeated_keys(in);
    repeated.mech = &repeating;
    Call call;
    call.q_total = call.k_total = {n, n};
    const Array whole = run_whole(repeated, 0, call);
    for (const uint32_t workers : {1u, 5u, 16u}) {
      EXPECT_TRUE(same_bits(whole, run_whole(in, 0, call, workers))) << kv_heads << " heads, " << workers << " workers";
      Inputs one(sharing_keys, 1, n, n, 4), other = with_repeated_keys(one);
      other.mech = &repeating;
      const Feed feed{{1, 1, 2, 40, 1, 3, 100, 2}, {}, totals, workers};
      EXPECT_TRUE(same_bits(streamed(other, feed), streamed(one, feed))) << kv_heads << " heads streamed";
    }
  }
}

std::vector<int64_t> check_pieces(const Mechanism& mech, int64_t n) {
  Inputs in(mech, 1, n, n, 5);
  const Array alone = run_whole(in, 0, {});
  for (const uint32_t workers : {2u, 3u, 16u})
    EXPECT_TRUE(same_bits(alone, run_whole(in, 0, {}, workers))) << workers << " workers";
  Call call;
  const Planned plan(mech, whole_request(in, 0, call, 2));
  const Bound<float> bound(plan, in, call);
  std::vector<int64_t> offered;
  attn_exec exec = *bound.get().exec;
  exec.pool = reinterpret_cast<uintptr_t>(&offered);
  exec.parallel_for = [](uintptr_t pool, int64_t count, int64_t grain, attn_task task, uintptr_t arg) {
    reinterpret_cast<std::vector<int64_t>*>(pool)->push_back((count + grain - 1) / grain);
    task(arg, 0, count, 0);
  };
  attn_run run = bound.get();
  run.exec = &exec;
  attn_error error{};
  error.struct_size = sizeof error;
  EXPECT_EQ(ATTN_OK, mech.plugin().run(plan.get(), &run, &error)) << error.message;
  return offered;
}

double check_situations(const attn_plugin& plugin, const Settings& settings, const WeightOf& weight,
                        const Denominator& denominator, const std::function<void(Inputs&)>& prepare, bool may_cancel,
                        const std::function<bool(const Situation&)>& allowed) {
  return worst_situation(allowed, [&](const Situation& s) {
    const Mechanism mech(plugin, s.block, settings);
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    if (prepare) prepare(in);
    const Call call = s.call();
    const Scene scene = s.scene();
    const Array got = run_whole(in, s.prefix ? ATTN_PREFIX : 0, call);
    Inputs repeated = with_repeated_keys(in);
    const Truth truth = oracle(scene, weight(mech, repeated, scene, call), elements(repeated["v"]), denominator);
    const double error = error_of(got, truth, may_cancel);
    EXPECT_LE(error, kGate);
    return error;
  });
}

void check_zero_keys_take_weight(const Mechanism& mech) {
  Inputs padded(mech, 1, 12, 12, 1), alone(mech, 1, 12, 7, 1);
  for (const char* name : {"k", "v"})
    for (int64_t h = 0; h < padded[name].heads; ++h)
      for (int64_t j = 7; j < 12; ++j)
        for (int64_t c = 0; c < padded[name].width; ++c) padded[name].at(0, h, j, c) = 0;
  for (const char* name : {"q", "k", "v"})
    alone[name].set([&](int64_t b, int64_t h, int64_t i, int64_t c) { return padded[name].at(b, h, i, c); });
  Call call;
  call.k_len = {7};
  const Array got = run_whole(padded, 0, call), all = run_whole(padded, 0, {});
  EXPECT_GT(std::abs(got.at(0, 0, 0, 0) - all.at(0, 0, 0, 0)), 1e-3) << "zero keys would take weight";
  EXPECT_TRUE(same_bits(got, run_whole(alone, 0, {})));
}

void check_larger_bounds(const Mechanism& mech, int64_t n, int64_t bounds) {
  Inputs in(mech, 1, n, n, 1);
  Call call;
  call.queries = call.keys = n;
  const Array exact = Planned(mech, make_request(1, n, n)).run(in, call);
  EXPECT_TRUE(same_bits(exact, Planned(mech, make_request(7, bounds, bounds, 0, 0, 3)).run(in, call)));
}

}  // namespace attnkit::test
