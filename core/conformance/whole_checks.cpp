// Laws of whole-sequence runs: every element written, repeatable, and independent of layout, workers and company.
#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <tuple>

#include "core/conformance/halves.hpp"
#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

void writes_everything(Law& law) {
  for (const int64_t batch : {0, 1, 2})
    for (const int64_t usual : {0, 1, 63, 64, 100}) {
      const int64_t n = usual > 1 ? law.length(usual) : usual;
      Inputs in = law.inputs(batch, n);
      const Array out = law.whole(in);
      hold(all_written(out), "an output is not written, {} batch rows of {} queries", batch, n);
      // Options may leave a division by zero.
      hold(law.finite(out), "an output is not finite, {} batch rows of {} queries", batch, n);
    }
}

void repeats(Law& law) {
  Inputs in = law.inputs(law.drawn(2, 1, 4), law.length(64));
  const Array first = law.whole(in);
  for (int repeat = 0; repeat < 20; ++repeat)
    hold(same_bits(first, law.whole(in)), "the same run gave other bits the {}th time", repeat + 2);
}

void repeats_often(Law& usual) {
  const Law law = usual.narrow();
  Inputs in = law.inputs(1, 9);
  Call call = law.with_totals({}, 1, 9);
  const attn_request request = whole_request(in, 0, call, 1);
  const Planned plan = law.may_refuse([&] { return Planned(law.mech(), request); });
  Bound<float> bound(plan, in, call);
  bound.run();
  const Array first = bound.outputs[law.mech().output()];
  for (int repeat = 0; repeat < 1000; ++repeat) {
    bound.run_again();
    hold(same_bits(first, bound.outputs[law.mech().output()]), "the same run gave other bits the {}th time",
         repeat + 2);
  }
}

// Calls act with a padded run of four rows of n queries, and with one of prefixes, where it takes them.
template <class Act>
void other_forms(const Law& law, int64_t n, Act&& act) {
  Call prefix;
  for (int64_t i = 0; i < 4 * n; ++i) prefix.visible.push_back(static_cast<int32_t>(i % n / 2));
  for (const auto& [call, flags, form] :
       {std::tuple(law.padded(n), 0u, "padded, "), std::tuple(prefix, uint32_t{ATTN_PREFIX}, "with prefixes, ")})
    try {
      if (flags == 0 || !law.causal()) act(call, flags, form);
    } catch (const RefusedInWords&) {
    }
}

void hold_workers(const Law& law, int64_t batch, int64_t n, std::initializer_list<uint32_t> numbers,
                  const Call& call = {}, uint32_t flags = 0, const char* form = "") {
  Inputs in = law.inputs(batch, n);
  const Array one = law.whole(in, call, 1, flags);
  for (const uint32_t usual : numbers) {
    const uint32_t workers = law.workers(usual);
    const Array got = law.whole(in, call, workers, flags);
    hold(same_bits(one, got), "{}{} workers give other bits than one, {} queries", form, workers, n);
  }
}

// More heads than workers, and fewer.
void any_workers(Law& law) {
  hold_workers(law, law.drawn(5, 1, 8), law.length(100), {2, 3, 5, 8});
  hold_workers(law, 1, law.drawn(300, 200, 400), {2, 3, 5, 8});
  other_forms(law, 20, [&](const Call& call, uint32_t flags, const char* form) {
    hold_workers(law, 4, 20, {3}, call, flags, form);
  });
  law.also_narrow([](const Law& narrow) { hold_workers(narrow, 40, 6, {33}); });
}

void any_layout(Law& law) {
  const int64_t batch = law.drawn(2, 1, 4), n = law.length(63);
  Inputs model = law.inputs(batch, n);
  const Array out = law.whole(model);
  for (const auto& [layout, what] :
       {std::pair(Layout::kPlain, "plain (b, head, row)"), std::pair(Layout::kOdd, "unaligned (head, b, row)")}) {
    Inputs in = law.inputs(batch, n, 0, layout);
    hold(same_bits(out, law.whole(in)), "tensors in {} strides give other bits than those of a model", what);
  }
  for (const auto& [layout, what] : {std::pair(Layout::kOneHead, "one head for all of the batch"),
                                     std::pair(Layout::kOneRow, "one row for all of a sequence")}) {
    Inputs shared = law.inputs(batch, n, 0, layout);
    for (size_t p = 0; p < model.arrays.size(); ++p)
      if (is_taken(law.port(p))) model.arrays[p].set([&](auto... at) { return shared.arrays[p].at(at...); });
    hold(same_bits(law.whole(model), law.whole(shared)), "{} (stride 0) gives other bits than copies of it", what);
  }
  other_forms(law, 20, [&](const Call& call, uint32_t flags, const char* form) {
    Inputs usual = law.inputs(4, 20);
    const Array of_model = law.whole(usual, call, 1, flags);
    for (const Layout layout : {Layout::kPlain, Layout::kOdd}) {
      Inputs in = law.inputs(4, 20, 0, layout);
      hold(same_bits(of_model, law.whole(in, call, 1, flags)), "{}tensors in {} strides give other bits", form,
           layout == Layout::kPlain ? "plain" : "unaligned");
    }
  });
}

void scales(Law& law) {
  if (law.mech().find("v") < 0) throw NotApplicable{"it has no port named v"};
  Inputs in = law.inputs(2, 64);
  Array out = law.whole(in);
  for (float& x : in["v"].data()) x *= 256;
  for (float& x : out.data()) x *= 256;
  if (!same_bits(out, law.whole(in)))
    law.remark = "256 times the values is not 256 times the output, bit for bit: it is not linear in them";
}

// Of random options.
constexpr double kDrawnGate = 1e-3;
// Beyond it a host should know; the processor's own part differs from one to the other, so it is no fault.
constexpr double kSlowDenormals = 10;

// Row 40 of the last head of the first sequence becomes NaN.
void spoil(Array& sequence) {
  for (int64_t c = 0; c < sequence.width; ++c)
    sequence.at(0, sequence.heads - 1, 40, c) = std::numeric_limits<float>::quiet_NaN();
}

void nan_in_queries(Law& law) {
  Inputs in = law.inputs(1, 64);
  if (!law.has(ATTN_QUERY)) throw NotApplicable{"it reads no queries"};
  for (size_t i = 0; i < in.arrays.size(); ++i)
    if (law.port(i).kind == ATTN_QUERY) spoil(in.arrays[i]);
  const Array out = law.whole(in);
  bool reached = false;
  for (int64_t c = 0; c < out.width; ++c) reached = reached || std::isnan(out.at(0, out.heads - 1, 40, c));
  hold(reached, "NaN in query 40 is swallowed");
  // If queries are keys as well, or make landmarks, another row may take part in it.
  if (law.causal() || law.cross())
    hold(!std::isnan(out.at(0, out.heads - 1, 39, 0)), "NaN in query 40 reached query 39");
}

void nan_in_keys(Law& law) {
  const auto with_key_40 = [&](float factor) {
    Inputs in = law.inputs(1, 64);
    for (size_t p = 0; p < in.arrays.size(); ++p)
      for (int64_t c = 0; law.port(p).kind == ATTN_KEY && c < in.arrays[p].width; ++c)
        in.arrays[p].at(0, in.arrays[p].heads - 1, 40, c) *= factor;
    return law.whole(in);
  };
  const Array out = with_key_40(std::numeric_limits<float>::quiet_NaN()), one = with_key_40(1), two = with_key_40(-2);
  // A query may not look that far, or choose its keys, and then has what it has where that one is not chosen.
  const int64_t h = out.heads - 1;
  for (int64_t i = 0; i < out.rows; ++i)
    for (int64_t c = 0; c < out.width; ++c) {
      const float got = out.at(0, h, i, c), a = one.at(0, h, i, c), b = two.at(0, h, i, c);
      hold(std::isnan(got) || a == b || got == a || got == b, "NaN in key 40 is swallowed in row {}", i);
    }
}

void at_once(Law& law) {
  const int64_t n = law.length(64);
  std::vector<Inputs> in;
  for (uint64_t salt = 0; salt < 4; ++salt) in.push_back(law.inputs(2, n, salt));
  std::vector<Array> alone, together(in.size());
  Call call = law.causal() ? law.with_totals({}, 2, n) : Call{};
  call.queries = n;
  call.keys = law.keys_for(n);
  const uint32_t flags = law.causal() ? ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL : 0;
  const Planned plan = law.may_refuse([&] { return Planned(law.mech(), make_request(2, n, call.keys, flags)); });
  for (auto& one : in) alone.push_back(plan.run(one, call));
  conformance::at_once(in.size(), [&](size_t t) {
    for (int repeat = 0; repeat < 10; ++repeat) together[t] = plan.run(in[t], call);
  });
  for (size_t t = 0; t < in.size(); ++t)
    hold(same_bits(alone[t], together[t]), "four runs at once on one plan differ from one by one");
}

void one_row(Law& law) {
  Inputs in = law.inputs(1, 1), longer = law.inputs(1, 1, 0, Layout::kOdd);
  const Array out = law.whole(in);
  hold(same_bits(out, law.whole(longer)), "a sequence of one row depends on its strides");
}

void long_sequence(Law& law) {
  constexpr int64_t n = 4096;
  Inputs in = law.inputs_of(1, n, n);
  const Array out = law.whole(in, {}, 2);
  hold(law.finite(out), "an output of {} rows is not written or not finite", n);
}

// Some queries and all keys, without state: each sees what it would among all queries.
void some_queries(Law& law) {
  const int64_t n = law.drawn(33, 3, 50), first = law.drawn(15, 1, n - 1), count = law.drawn(10, 1, n - first);
  Inputs in = law.inputs(2, n);
  const Call call = law.with_totals({}, 2, n);
  const Array all = law.may_refuse([&] { return run_whole(in, 0, call); });
  Call some = call;
  some.queries = count;
  some.keys = n;
  some.q_from = first;
  some.q_pos.assign(2, static_cast<int32_t>(first));
  const uint32_t totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  const Planned plan = law.may_refuse([&] { return Planned(law.mech(), make_request(2, count, n, totals)); });
  const Array got = plan.run(in, some);
  Ratio ratio;
  for (int64_t b = 0; b < got.batch; ++b)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t c = 0; c < got.width; ++c) ratio.add(got.at(b, h, i, c), all.at(b, h, first + i, c));
  hold(ratio() <= law.gate(),
       "queries {} to {} of {} without the others are {:.2g} from those with them, at most {:.2g}", first,
       first + count, n, ratio(), law.gate());
}

void no_keys(Law& law) {
  Inputs in = law.inputs_of(2, 7, 0);
  const Array out = law.whole(in);
  Array zero(2, out.heads, 7, out.width);
  zero.set([](int64_t, int64_t, int64_t, int64_t) { return 0.0f; });
  hold(same_bits(out, zero), "queries that see no key must give rows of zeros");
}

// Seconds of this thread that the fastest of a few runs takes.
double seconds_of(const Law& law, Inputs& in) {
  double least = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 3; ++repeat) {
    timespec before{}, after{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    law.whole(in);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    least = std::min(least, static_cast<double>(after.tv_sec - before.tv_sec) +
                                1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec));
  }
  return least;
}

// Numbers of every size that f32 has, zeros and equal ones; what comes out may be infinite, but is the same again.
void extremes(Law& law) {
  const float kinds[] = {0.0f, 1e-40f, 1e30f, std::numeric_limits<float>::max()};
  for (const float kind : kinds) {
    Inputs in = law.inputs(1, 33);
    for (size_t p = 0; p < in.arrays.size(); ++p)
      if (is_taken(law.port(p)))
        in.arrays[p].set([&](int64_t, int64_t, int64_t i, int64_t) { return i % 2 ? kind : -kind; });
    const Array out = law.whole(in);
    hold(same_bits(out, law.whole(in)), "inputs of size {} give other bits each time", kind);
    if (kind == 0) hold(law.finite(out), "inputs of zeros give no finite output");
    if (kind != 1e-40f || load(law.place().file).device_type != 1) continue;
    Inputs normal = law.inputs(1, 33);
    const double times = seconds_of(law, in) / seconds_of(law, normal);
    if (times > kSlowDenormals) law.remark = fmt::format("denormal numbers take {:.0f} times as long", times);
  }
}

void shared_keys(Law& law) {
  const int64_t n = 100;
  const SharedKeys both(law);
  auto inputs = both.inputs(2, n);
  auto &shared = inputs.first, &repeated = inputs.second;
  const Array out = law.may_refuse([&] { return both.shared->whole(shared); });
  for (const uint32_t workers : {2u, 8u})
    hold(same_bits(out, both.shared->whole(shared, {}, workers)), "{} workers give other bits than one", workers);
  const double error = rms_ratio(out, both.repeated->whole(repeated));
  hold(error <= law.gate(), "keys that heads share are off by {:.1e} from keys that are repeated", error);
}

double precision_of(const Law& law, int64_t n) {
  Inputs in = law.inputs(2, n);
  const Call call = law.with_totals({}, 2, n);
  const Array got = law.may_refuse([&] { return run_whole(in, 0, call); });
  Inputs64 wide(in);
  const Array64 want = law.may_refuse([&] { return run_whole(wide, 0, call); });
  if (!all_finite(want)) throw NotApplicable{"with these options its f64 form gives no finite numbers"};
  Ratio ratio;
  for (int64_t b = 0; b < got.batch; ++b)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t i = 0; i < got.rows; ++i)
        for (int64_t c = 0; c < got.width; ++c) ratio.add(got.at(b, h, i, c), want.at(b, h, i, c));
  // Options that are drawn may leave sums that cancel.
  const double gate = law.draws_options() ? std::max(kDrawnGate, law.gate()) : law.gate();
  hold(ratio() <= gate, "f32 is {:.2g} from f64 with {} queries, at most {:.2g}", ratio(), n, gate);
  return ratio();
}

// The f32 form and the f64 one, which gradients are checked with, compute the same.
void precision(Law& law) {
  if (!law.mech().plugin().backward) throw NotApplicable{"it has no f64 form"};
  const double error = precision_of(law, law.length(33));
  law.also_narrow([](const Law& narrow) { precision_of(narrow, 300); });
  law.measured["f32_error"] = std::to_string(1e9 * error) + "e-9";
}

// In 16 bits, where it takes them: as near to f32, which gets the same numbers, as rounding the output lets it.
void halves(Law& law) {
  const int64_t n = 33;
  const Call call = law.with_totals({}, 2, n);
  RefusedInWords words;
  bool ran = false;
  for (const Half& half : all_halves()) {
    Inputs in = law.inputs(2, n);
    round_inputs(in, half);
    try {
      const Array got = law.may_refuse([&] { return run_in_half(in, half, call); });
      const double error = rms_ratio(got, law.may_refuse([&] { return run_whole(in, 0, call); }));
      hold(all_written(got), "an output in {} is not written", half.name);
      const double gate = std::max(half.gate, law.gate());
      hold(error <= gate, "{} is {:.2g} from f32, at most {:.2g}", half.name, error, gate);
      ran = true;
    } catch (const RefusedInWords& refused) {
      words = refused;
    }
  }
  if (!ran) throw words;
}

void later_structs(Law& law) {
  const int64_t n = law.length(33);
  Inputs in = law.inputs(2, n);
  Call call = law.with_totals({}, 2, n);
  const Array out = law.may_refuse([&] { return run_whole(in, 0, call); });
  call.later = true;
  hold(same_bits(out, run_whole(in, 0, call)), "attn_run and attn_exec of a later minor give other bits");
}

constexpr Check all[] = {
    {"whole", "writes",
     "every element of an output is written, with 0 to 100 queries, and finite with the default options", nullptr,
     writes_everything, kAnywhere, Draws::options, true},
    {"whole", "repeats", "the same run gives the same bits", nullptr, repeats},
    {"whole", "repeats_often", "a thousand small runs under one plan give the same bits", nullptr, repeats_often,
     kAnywhere, Draws::none},
    {"whole", "workers", "no bit depends on the number of workers", nullptr, any_workers},
    {"whole", "layout", "no bit depends on the strides and the alignment of tensors", nullptr, any_layout},
    {"whole", "one_row", "a sequence of one row is one", nullptr, one_row},
    {"whole", "long", "4096 rows are possible where any length is", nullptr, long_sequence, kAnywhere, Draws::one},
    {"whole", "scales", "values times a power of two give that multiple of the output, exactly; if not, a remark",
     nullptr, scales, kAnywhere, Draws::none},
    {"whole", "nan_in_queries", "NaN in a query reaches its row", nullptr, nan_in_queries, kAnywhere, Draws::none},
    {"whole", "nan_in_keys", "NaN in a key that is read is not swallowed", nullptr, nan_in_keys, kAnywhere,
     Draws::none},
    {"whole", "extremes", "numbers of any size give the same bits each time, zeros finite ones", nullptr, extremes,
     kAnywhere, Draws::none},
    {"whole", "shared_keys", "a head of keys for several heads of queries is as good as one repeated for each", nullptr,
     shared_keys, kAnywhere, Draws::none},
    {"whole", "at_once", "runs at once on one plan are as one by one", nullptr, at_once},
    {"whole", "precision", "the f32 form is as near to the f64 one as rounding lets it", nullptr, precision},
    {"whole", "halves", "what it computes in f16 and bf16 is that of f32, but for rounding", nullptr, halves, kAnywhere,
     Draws::none},
    {"whole", "later_structs", "longer structs, of a later minor, give the same bits", nullptr, later_structs,
     kAnywhere, Draws::none},
    {"whole", "some_queries", "in a causal block queries at any position give the rows that they give among all",
     nullptr, some_queries, kDecoder, Draws::blocks},
    {"whole", "no_keys", "queries that see no key give rows of zeros", nullptr, no_keys, kCross},
};

}  // namespace

const std::span<const Check> whole_checks = all;

}  // namespace attnkit::core::conformance
