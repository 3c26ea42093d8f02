// Laws of memory: a run reads and writes what it was given, all of it, and nothing else.
#include <optional>

#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

// Does the work of a run on this thread alone, where what it touches is caught.
class OneThread : public Watch {
 public:
  OneThread() { set_watch(this); }
  ~OneThread() override { set_watch(nullptr); }
  void before() override {}
  void after(const char*) override {}
};

// Runs with everything between fences: whole sequences, also long ones and with more keys than queries or fewer, padded
// ones, prefixes, streams, training; by one worker and by three; in f64.
void fences(Law& law) {
  const OneThread watch;
  bool ran = false;
  const auto attempt = [&](auto&& act, bool has_rows = true) {
    try {
      act();
      ran |= has_rows;
    } catch (const Refused& refused) {
      if (refused.code != ATTN_UNSUPPORTED || dynamic_cast<const RefusedRun*>(&refused)) throw;
    } catch (const RefusedInWords&) {
    }
  };
  Call call;
  call.fenced = true;
  for (const auto& [batch, n] :
       {std::pair<int64_t, int64_t>{1, 1}, {law.drawn(2, 1, 4), law.length(37)}, {0, 5}, {1, 0}}) {
    const int64_t rows = n;
    const int64_t rows_of_batch = batch;
    for (const Layout layout : {Layout::kModel, Layout::kOdd})
      attempt(
          [&] {
            Inputs in = law.inputs(rows_of_batch, rows, 0, layout);
            law.whole(in, call);
          },
          batch * n > 0);
  }
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{7, 12}, {12, 7}})
    if (!law.cross()) {
      const int64_t n = queries, m = keys;
      attempt([&] {
        Inputs in = law.inputs_of(2, n, m);
        law.whole(in, law.with_totals(call, 2, 12));
      });
    }
  if (!law.draws_options())
    attempt([&] {
      const Law narrow = law.narrow();
      Inputs in = narrow.inputs(1, 300);
      narrow.whole(in, call);
    });
  const auto train = [&](auto in, const Call& of, uint32_t workers, uint32_t flags) {
    if (!law.mech().plugin().backward) return;
    auto training = law.train(in, of, workers, flags);
    auto grads = training.gradients();
    training.backward(grads, workers);
  };
  for (const uint32_t workers : {1u, 3u}) {
    attempt([&] {
      Inputs in = law.inputs(2, 21);
      law.whole(in, call, workers);
    });
    attempt([&] { train(law.inputs(2, 21), call, workers, 0); });
  }
  if (law.mech().plugin().backward)
    attempt([&] {
      Inputs64 in(law.inputs(2, 21));
      run_whole(in, 0, law.with_totals(call, 2, 21));
      train(in, call, 1, 0);
    });
  Call padded = law.with_totals(call, 3, 20);
  padded.q_len = {20, 7, 0};
  padded.k_len = law.cross() ? std::vector<int32_t>{static_cast<int32_t>(law.keys_for(20)), 1, 0} : padded.q_len;
  Call prefix = padded;
  for (int i = 0; i < 60; ++i) prefix.visible.push_back(i % 20 / 2);
  const auto run_and_train = [&](const Call& of, uint32_t flags) {
    attempt([&] {
      Inputs in = law.inputs(3, 20);
      law.whole(in, of, 1, flags);
    });
    attempt([&] { train(law.inputs(3, 20), of, 1, flags); });
  };
  run_and_train(padded, 0);
  if (!law.causal()) run_and_train(prefix, ATTN_PREFIX);
  for (const uint32_t workers : {1u, 3u})
    attempt([&] {
      Inputs in = law.inputs(2, 24);
      const Planned plan = law.stream_plan(2, 24, 24, workers);
      const Arena arena(plan.info().state_bytes, 3);
      for (const auto& [from, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 20}, {20, 1}, {21, 2}}) {
        Call step = law.step(from, count, arena, 2, 24);
        step.workers = workers;
        step.fenced = true;
        step.slots = {2, 0};
        step.k_len.assign(2, static_cast<int32_t>(count));
        if (!law.cross()) step.q_len = step.k_len;
        plan.run(in, step);
      }
      law.probe(plan, in, arena, 23, 24, {2, 0}, true);
    });
  if (!ran)
    law.may_refuse([&] {
      Inputs in = law.inputs(2, 8);
      law.whole(in);
    });
}

// The block and the values that create was given are gone.
void given_values(Law& law) {
  Copies given;
  const Mechanism mech(law.mech().plugin(), law.mech().block(), law.place().settings, &given);
  for (const auto& fence : given.fences) fence->forbid();
  std::optional<Inputs> in;
  std::optional<Planned> plan;
  within(given.fences, "fill", [&] { in.emplace(mech, 2, 8, law.keys_for(8), law.place().seed); });
  Call call = law.with_totals({}, 2, 8);
  const attn_request request = whole_request(*in, 0, call, 1);
  within(given.fences, "plan", [&] { law.may_refuse([&] { plan.emplace(mech, request); }); });
  within(given.fences, "run", [&] { plan->run(*in, call); });
  Call padded = call;
  padded.q_len = {8, 5};
  padded.k_len = {static_cast<int32_t>(in->keys), 5};
  Call prefix = padded;
  for (int i = 0; i < 16; ++i) prefix.visible.push_back(i % 8);
  within(given.fences, "a padded run", [&] { refusal([&] { run_whole(*in, 0, padded); }); });
  if (!law.causal())
    within(given.fences, "a run with prefixes", [&] { refusal([&] { run_whole(*in, ATTN_PREFIX, prefix); }); });
  within(given.fences, "a run in f64", [&] {
    Inputs64 wide(*in);
    refusal([&] { run_whole(wide, 0, call); });
  });
  within(given.fences, "a stream", [&] {
    refusal([&] { streamed(*in, {{3, in->keys - 3}, {}, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL}); });
  });
  if (!mech.plugin().backward) return;
  within(given.fences, "training", [&] {
    refusal([&] {
      Training<float> training(*in, 0, call);
      Gradients<float> grads = training.gradients();
      training.backward(grads);
    });
  });
}

// Nothing of what was in scratch or in the output before shows in the output.
void scratch(Law& law) {
  Inputs in = law.inputs(law.drawn(2, 1, 4), law.length(33));
  Call call;
  call.scratch_fill = 0;
  const Array zeros = law.whole(in, call);
  for (const int fill : {0xFF, 0x7F, 0x3C}) {
    call.scratch_fill = fill;
    hold(same_bits(zeros, law.whole(in, call)), "scratch of bytes {:#x} gives other bits than one of zeros", fill);
  }
}

// A plan holds for every run within its bounds.
void within_bounds(Law& law) {
  const int64_t n = law.length(30);
  Inputs in = law.inputs(2, n);
  Call call = law.with_totals({}, 2, n);
  call.queries = n;
  call.keys = in.keys;
  const Array exact = law.may_refuse([&] { return run_whole(in, 0, call); });
  const attn_request larger =
      make_request(5, 3 * n, law.cross() ? in.keys + 70 : 3 * n, ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL, 0, 4);
  const Planned plan = law.may_refuse([&] { return Planned(law.mech(), larger); });  // an option may limit the length
  hold(same_bits(exact, plan.run(in, call)), "under a plan with larger bounds the same run gives other bits");
}

constexpr Check all[] = {
    {"memory", "fences", "a run touches no byte beside its tensors, scratch, state and arrays, and changes no input",
     nullptr, fences, kAnywhere, Draws::options, true, true},
    {"memory", "values", "the block and the values that create was given are not touched after it", nullptr,
     given_values, kAnywhere, Draws::one, true},
    {"memory", "scratch", "what was in scratch before does not show", nullptr, scratch},
    {"memory", "bounds", "a plan serves every run within its bounds, with the same bits", nullptr, within_bounds},
};

}  // namespace

const std::span<const Check> memory_checks = all;

}  // namespace attnkit::core::conformance
