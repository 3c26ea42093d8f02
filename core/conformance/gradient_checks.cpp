// Laws of gradients: those of the run itself, added up where they are learned, flowing back only where the run flowed.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

bool is_zero(const Array& a, int64_t b, int64_t h, int64_t i) {
  for (int64_t c = 0; c < a.width; ++c)
    if (a.at(b, h, i, c) != 0) return false;
  return true;
}

struct Rows {
  int64_t from, to;
  bool has(int64_t i) const { return i >= from && i < to; }
};

// Are these rows of all heads equal?
bool same_rows(const Array& a, const Array& b, const Rows& rows) {
  for (int64_t row = 0; row < a.batch; ++row)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = rows.from; i < std::min(rows.to, a.rows); ++i)
        for (int64_t c = 0; c < a.width; ++c)
          if (a.at(row, h, i, c) != b.at(row, h, i, c)) return false;
  return true;
}

bool finite_rows(const Array& a, const Rows& rows) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = rows.from; i < std::min(rows.to, a.rows); ++i)
        for (int64_t c = 0; c < a.width; ++c)
          if (!std::isfinite(a.at(b, h, i, c))) return false;
  return true;
}

// Ends the law where nothing has a gradient.
void needs_backward(const Law& law) {
  if (!law.mech().plugin().backward) throw NotApplicable{"it has no backward pass"};
  Inputs in = law.inputs(1, 8);
  law.may_refuse([&] { law.train(in); });
}

template <class Real>
Gradients<Real> gradients(const Law& law, BasicInputs<Real>& in, uint32_t workers = 1) {
  Training<Real> training = law.train(in, {}, workers);
  Gradients<Real> grads = training.gradients();
  training.backward(grads, workers);
  return grads;
}

// Row b of the batch becomes NaN from row `from` of its sequence on.
void spoil(Array& a, int64_t b, int64_t from) {
  const Array old = a;
  a.set([&](int64_t row, int64_t h, int64_t i, int64_t c) {
    return row == b && i >= from ? std::numeric_limits<float>::quiet_NaN() : old.at(row, h, i, c);
  });
}

// These rows of the whole batch become NaN.
void spoil(Array& a, const Rows& rows) {
  const Array old = a;
  a.set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
    return rows.has(i) ? std::numeric_limits<float>::quiet_NaN() : old.at(b, h, i, c);
  });
}

void hold_same(const Law& law, const Gradients<float>& a, const Gradients<float>& b, const std::string& when) {
  for (size_t p = 0; p < a.size(); ++p)
    hold(a[p].data().empty() || b[p].data().empty() || same_bits(a[p], b[p]), "the gradient of {} has other bits {}",
         law.port(p).name, when);
}

// Whoever has gradients has them in every form of whole sequences that it runs.
void forms(Law& law) {
  if (!law.mech().plugin().backward) throw NotApplicable{"it has no backward pass"};
  if (law.draws_options()) needs_backward(law);  // an option may be for running alone
  const uint32_t totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  for (const uint32_t flags : {0u, totals, uint32_t{ATTN_PREFIX}, ATTN_PREFIX | totals}) {
    if ((flags & ATTN_PREFIX) && law.causal()) continue;
    attn_request r = make_request(2, 8, law.keys_for(8), flags, 0, 2);
    const int32_t runs = refusal(law.mech(), r).code;
    for (const uint8_t bits : {32, 64}) {
      r.dtype_bits = bits;
      r.flags = flags | ATTN_TRAIN;
      const Refused refused = refusal(law.mech(), r);
      hold(runs == refused.code, "it {} plain runs with flags {}, and training ones in f{} end with code {}: {}",
           runs == ATTN_OK ? "takes" : "refuses", flags, int{bits}, refused.code, refused.what());
    }
  }
}

void central_differences(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(2, 33);
  Call call = law.with_totals({}, 2, 33);
  call.q_len = {33, 20};
  call.k_len = law.cross() ? std::vector<int32_t>{static_cast<int32_t>(law.keys_for(33)), 17} : call.q_len;
  Differences found = law.may_refuse([&] { return differences(in, 0, call, false); });
  hold(found.problems.empty(), "{}", found.problems.empty() ? "" : found.problems[0]);
  double worst = found.worst;
  if (!law.causal()) {
    const auto keys = static_cast<int32_t>(law.keys_for(33));
    for (int i = 0; i < 66; ++i) call.visible.push_back(std::min(keys, i % 33 / 4 * (i < 33 ? 5 : 3) + i / 33));
    if (refusal([&] { Training<float>(in, ATTN_PREFIX, call); }).code == ATTN_OK) {
      found = differences(in, ATTN_PREFIX, call, false);
      hold(found.problems.empty(), "with prefixes, {}", found.problems.empty() ? "" : found.problems[0]);
      worst = worse(worst, found.worst);
    }
  }
  law.also_narrow([](const Law& narrow) {
    Inputs longer = narrow.inputs(1, 300);
    const Differences far =
        narrow.may_refuse([&] { return differences(longer, 0, narrow.with_totals({}, 1, 300), false); });
    hold(far.problems.empty(), "with 300 rows, {}", far.problems.empty() ? "" : far.problems[0]);
  });
  law.measured["gradient_error"] = std::to_string(1e9 * worst) + "e-9";
}

void saves_linearly(Law& law) {
  needs_backward(law);
  const auto saved = [&](int64_t n) {
    const attn_block block = make_block(law.mech().block().role, law.causal(), 4, 32, 32);
    const uint32_t flags = ATTN_TRAIN | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    return law.may_refuse([&] {
      const Mechanism model(law.mech().plugin(), block);
      return Planned(model, make_request(1, n, n, flags)).info().saved_bytes;
    });
  };
  const uint64_t some = saved(512), twice = saved(1024);
  hold(twice <= 2 * some + ATTN_ALIGN, "it saves {} bytes of 512 rows and {} of 1024", some, twice);
  law.measured["saved_bytes"] = std::to_string(some);
}

void adds(Law& law) {
  needs_backward(law);
  if (!law.has(ATTN_LEARNED)) throw NotApplicable{"nothing of it is learned"};
  Inputs64 in(law.inputs(2, 33));
  Training<double> training = law.train(in);
  const Gradients<double> start = training.gradients();
  Gradients<double> alone = start, once = start;
  for (size_t p = 0; p < start.size(); ++p)
    if (law.port(p).kind == ATTN_LEARNED) alone[p].set([](auto...) { return 0; });
  training.backward(alone);
  training.backward(once);
  Gradients<double> twice = once;
  training.backward(twice);
  for (size_t p = 0; p < start.size(); ++p) {
    if (law.port(p).kind != ATTN_LEARNED) continue;
    double largest = 1;
    for (int64_t i = 0; i < start[p].rows; ++i) largest = std::max(largest, std::abs(alone[p].at(0, 0, i, 0)));
    for (int64_t i = 0; i < start[p].rows; ++i) {
      const double s = start[p].at(0, 0, i, 0), g = alone[p].at(0, 0, i, 0);
      hold(std::abs(s + g - once[p].at(0, 0, i, 0)) <= 1e-12 * largest &&
               std::abs(s + 2 * g - twice[p].at(0, 0, i, 0)) <= 1e-12 * largest,
           "the gradient of the learned {} is not added to what is there", law.port(p).name);
    }
  }
}

void hold_padding(Law& law, int64_t n, const Call& call) {
  const auto queries = [&](size_t b) { return call.q_len.empty() ? n : call.q_len[b]; };
  Inputs in = law.inputs(4, n);
  for (size_t p = 0; p < in.arrays.size(); ++p)
    for (int64_t b = 0; b < 4; ++b) {
      if (law.port(p).kind == ATTN_QUERY) spoil(in.arrays[p], b, queries(static_cast<size_t>(b)));
      if (law.port(p).kind == ATTN_KEY) spoil(in.arrays[p], b, call.k_len[static_cast<size_t>(b)]);
    }
  Training<float> training = law.train(in, call);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given;
  training.backward(grads);
  for (size_t p = 0; p < grads.size(); ++p)
    hold(is_given(law.port(p)) || law.finite(grads[p]), "the gradient of {} is not finite where rows are padded",
         law.port(p).name);
  for (size_t b = 0; b < 4; ++b) {
    // Past its length a row has no gradient, and before it that of a run which never saw the padding.
    const auto row = static_cast<int64_t>(b);
    Inputs alone = law.inputs_of(1, queries(b), call.k_len[b]);
    const auto take = [&](size_t p, const Gradients<float>& from, Array& to) {
      to.set([&](int64_t, int64_t h, int64_t i, int64_t c) { return from[p].at(row, h, i, c); });
    };
    for (size_t p = 0; p < alone.arrays.size(); ++p)
      if (is_taken(law.port(p))) take(p, in.arrays, alone.arrays[p]);
    Call single;
    if (law.causal()) single.q_total = single.k_total = {call.q_total[b]};
    Training<float> one(alone, 0, single);
    Gradients<float> own = one.gradients();
    for (size_t p = 0; p < own.size(); ++p)
      if (is_given(law.port(p))) take(p, given, own[p]);
    one.backward(own);
    for (size_t p = 0; p < own.size(); ++p) {
      if (!is_taken(law.port(p))) continue;
      for (int64_t h = 0; h < own[p].heads; ++h) {
        hold(same_bits(own[p], 0, h, grads[p], row, h, own[p].rows),
             "the gradient of {} of a row of {} queries and {} keys, padded, differs from that of the row alone",
             law.port(p).name, queries(b), call.k_len[b]);
        for (int64_t i = own[p].rows; i < grads[p].rows; ++i)
          hold(is_zero(grads[p], row, h, i), "the gradient of {} is not zero where row {} is padded", law.port(p).name,
               i);
      }
    }
  }
}

void padding(Law& law) {
  needs_backward(law);
  const int64_t n = law.length(40);
  Call call = law.padded(n);
  hold_padding(law, n, call);
  if (!law.cross()) return;
  call.q_len.clear();
  hold_padding(law, n, call);
}

void visible(Law& law) {
  needs_backward(law);
  const int64_t n = law.length(20);
  Inputs in = law.inputs(2, n);
  Call call = law.with_totals({}, 2, n);
  int32_t last[2];
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < n; ++i)
      call.visible.push_back(last[b] = std::min((i / 4) * (3 + b), static_cast<int32_t>(law.keys_for(n))));
  for (size_t p = 0; p < in.arrays.size(); ++p)
    for (int64_t b = 0; b < 2; ++b)
      if (law.port(p).kind == ATTN_KEY && !law.has(ATTN_AUX_OUT)) spoil(in.arrays[p], b, last[b]);
  law.may_refuse([&] { law.train(in, call, 1, ATTN_PREFIX); });
  Training<float> training = law.train(in, call, 1, ATTN_PREFIX);
  Gradients<float> grads = training.gradients();
  for (size_t p = 0; p < grads.size(); ++p)
    if (law.port(p).kind == ATTN_AUX_OUT) grads[p].set([](auto...) { return 0; });  // which may be made of all keys
  training.backward(grads);
  for (size_t p = 0; p < grads.size(); ++p) {
    if (law.port(p).kind != ATTN_QUERY && law.port(p).kind != ATTN_KEY) continue;
    hold(law.finite(grads[p]), "the gradient of {} is not finite where queries see prefixes", law.port(p).name);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h)
        for (int64_t i = 0; i < grads[p].rows; ++i)
          if (law.port(p).kind == ATTN_KEY ? i >= last[b] : law.cross() && i < 4)  // elsewhere it may be a key as well
            hold(is_zero(grads[p], b, h, i), "the gradient of {} is not zero at row {}, which {}", law.port(p).name, i,
                 law.port(p).kind == ATTN_KEY ? "nobody sees" : "sees nothing");
  }
}

// If rows before or from a cut of a sequence do not reach output rows on its other side, no gradient comes back from
// these.  So none comes from the future, and that of a query is made of its own row's, unless queries are keys as well.
// Returns how many times that was so.
int flows_back(Law& law, uint32_t flags, const Call& call) {
  const int64_t n = 70;
  Inputs in = law.inputs(2, n);
  Training<float> training = law.train(in, call, 1, flags);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given;
  training.backward(grads);
  const size_t out = law.mech().output();
  int times = 0;
  for (size_t p = 0; p < grads.size(); ++p) {
    if (law.port(p).kind != ATTN_QUERY && law.port(p).kind != ATTN_KEY) continue;
    for (const int64_t cut : {1, 17, 64})
      for (const auto& [rows, others] : {std::pair{Rows{0, cut}, Rows{cut, n}}, {Rows{cut, 1000}, Rows{0, cut}}}) {
        const Rows moved = rows, kept = others;  // clang 14 captures no structured bindings
        Inputs changed = in;
        changed.arrays[p].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
          return in.arrays[p].at(b, h, i, c) * (moved.has(i) ? -1.5f : 1);
        });
        if (!same_rows(run_whole(changed, flags, call), training.outputs()[out], kept)) continue;
        ++times;
        Gradients<float> other = given;
        other[out].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
          return given[out].at(b, h, i, c) + (kept.has(i) ? 1 : 0);
        });
        training.backward(other);
        hold(same_rows(grads[p], other[p], moved),
             "rows {} to {} of {} reach no output row {} to {}, but get a gradient from there", moved.from, moved.to,
             law.port(p).name, kept.from, kept.to);
      }
  }
  return times;
}

// In a causal block, where queries are no keys as well: NaN from a cut on reaches no gradient of a query before it, and
// NaN in queries before it and in the gradients of their outputs none of a key from it on.
void keeps_nan(Law& law) {
  const int64_t n = 70;
  const Call call = law.with_totals({}, 2, n);
  const Inputs in = law.inputs(2, n);
  const size_t out = law.mech().output();
  const auto hold_finite = [&](uint32_t kind, const Rows& rows, const Rows& nan, bool in_keys) {
    Inputs changed = in;
    for (size_t p = 0; p < in.arrays.size(); ++p)
      if (law.port(p).kind == ATTN_QUERY || (in_keys && law.port(p).kind == ATTN_KEY)) spoil(changed.arrays[p], nan);
    Training<float> training = law.train(changed, call);
    Gradients<float> grads = training.gradients();
    spoil(grads[out], nan);
    training.backward(grads);
    for (size_t p = 0; p < grads.size(); ++p)
      hold(law.port(p).kind != kind || finite_rows(grads[p], rows),
           "NaN in rows {} to {} reaches the gradient of {} in rows {} to {}", nan.from, nan.to, law.port(p).name,
           rows.from, rows.to);
  };
  Inputs first = in;
  const auto usual = run_whole(first, 0, call);
  for (const int64_t cut : {1, 17, 64}) {
    const Rows before{0, cut}, after{cut, n};
    Inputs changed = in;
    for (size_t p = 0; p < in.arrays.size(); ++p)
      if (law.port(p).kind == ATTN_QUERY)
        changed.arrays[p].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
          return in.arrays[p].at(b, h, i, c) * (before.has(i) ? -1.5f : 1);
        });
    if (!same_rows(usual, run_whole(changed, 0, call), after)) continue;
    hold_finite(ATTN_QUERY, before, after, true);
    hold_finite(ATTN_KEY, after, before, false);
  }
}

void causality(Law& law) {
  needs_backward(law);
  const int times = flows_back(law, 0, law.with_totals({}, 2, 70));
  hold(!law.causal() || times >= 3, "in a causal block the future reaches an output");
  if (law.causal()) keeps_nan(law);
}

// Row b of the batch is 3 b keys behind.
void from_queries_that_see(Law& law) {
  needs_backward(law);
  Call call = law.with_totals({}, 2, 70);
  for (int i = 0; i < 140; ++i) call.visible.push_back(std::max(0, i % 70 - i / 70 * 3));
  Inputs in = law.inputs(2, 70);
  law.may_refuse([&] { law.train(in, call, 1, ATTN_PREFIX); });
  hold(flows_back(law, ATTN_PREFIX, call) >= 3, "keys from a cut on reach a query before it");
}

void hold_batch_rows(const Law& law, int64_t n, const std::vector<int32_t>& order) {
  const auto rows = static_cast<int64_t>(order.size());
  Inputs in = law.inputs(rows, n);
  Training<float> training = law.train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given, permuted = given;
  training.backward(grads);
  const auto permute = [&](size_t p, const Gradients<float>& from, Array& to) {
    to.set(
        [&](int64_t b, int64_t h, int64_t i, int64_t c) { return from[p].at(order[static_cast<size_t>(b)], h, i, c); });
  };
  Inputs moved = in;
  for (size_t p = 0; p < grads.size(); ++p) {
    if (is_taken(law.port(p))) permute(p, in.arrays, moved.arrays[p]);
    if (is_given(law.port(p))) permute(p, given, permuted[p]);
  }
  Training<float> again = law.train(moved);
  again.backward(permuted);
  Gradients<float> outputs = training.outputs();
  for (size_t p = 0; p < outputs.size(); ++p)
    if (is_given(law.port(p))) permute(p, training.outputs(), outputs[p]);
  hold_same(law, outputs, again.outputs(), "where the rows of the batch have another order (outputs)");
  for (size_t p = 0; p < grads.size(); ++p)
    for (int64_t b = 0; b < rows && is_taken(law.port(p)); ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h)
        hold(same_bits(permuted[p], b, h, grads[p], order[static_cast<size_t>(b)], h, grads[p].rows),
             "the gradient of {} has other bits in another order of {} rows", law.port(p).name, rows);
}

void batch_rows(Law& law) {
  needs_backward(law);
  hold_batch_rows(law, law.length(33), law.order({2, 0, 3, 1}));
  std::vector<int32_t> backwards(40);
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  law.also_narrow([&](const Law& narrow) { hold_batch_rows(narrow, 5, backwards); });
}

void rows_and_heads(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(3, 33);
  Training<float> training = law.train(in);
  Gradients<float> grads = training.gradients(), changed = grads;
  for (size_t p = 0; p < grads.size(); ++p)
    if (law.port(p).kind == ATTN_OUTPUT)
      for (int64_t c = 0; c < grads[p].width; ++c) changed[p].at(1, 0, 20, c) = std::numeric_limits<float>::quiet_NaN();
  training.backward(grads);
  training.backward(changed);
  const bool mixes = law.mixes_heads();
  bool reached = false;
  for (size_t p = 0; p < grads.size(); ++p)
    for (int64_t b = 0; b < 3 && is_taken(law.port(p)); ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h) {
        const bool same = same_bits(grads[p], b, h, changed[p], b, h, grads[p].rows);
        hold(same || (b == 1 && (h == 0 || mixes)),
             "NaN in the gradient of row 1, head 0 changes that of {} in row {}, head {}", law.port(p).name, b, h);
        reached = reached || !same;
      }
  hold(reached, "NaN in the output's gradient is swallowed");
}

void hold_workers(const Law& law, int64_t batch, int64_t n, std::initializer_list<uint32_t> numbers) {
  Inputs in = law.inputs(batch, n);
  const Gradients<float> one = gradients(law, in), outputs = law.train(in).outputs();
  for (const uint32_t usual : numbers) {
    const uint32_t workers = law.workers(usual);
    const Gradients<float> got = gradients(law, in, workers);
    hold_same(law, outputs, law.train(in, {}, workers).outputs(), fmt::format("with {} workers (outputs)", workers));
    hold_same(law, one, got, fmt::format("with {} workers", workers));
  }
}

void any_workers(Law& law) {
  needs_backward(law);
  for (const auto& [batch, n] : {std::pair(law.drawn(3, 1, 5), law.length(40)), {1, law.length(100)}})
    hold_workers(law, batch, n, {2, 5});
  law.also_narrow([](const Law& narrow) { hold_workers(narrow, 40, 6, {33}); });
}

void any_layout(Law& law) {
  needs_backward(law);
  const int64_t batch = law.drawn(2, 1, 4), n = law.length(63);
  Inputs model = law.inputs(batch, n);
  Training<float> training = law.train(model);
  const Gradients<float> given = training.gradients();
  Gradients<float> first = given;
  training.backward(first);
  for (const Layout layout : {Layout::kPlain, Layout::kOdd}) {
    Inputs in = law.inputs(batch, n, 0, layout);
    hold_same(law, training.outputs(), law.train(in).outputs(), "in other strides (outputs)");
    hold_same(law, first, gradients(law, in),
              layout == Layout::kPlain ? "in plain (b, head, row) strides" : "in unaligned (head, b, row) strides");
  }
  // Gradients have room of their own, as outputs have.
  Inputs shared = law.inputs(batch, n, 0, Layout::kOneHead);
  Gradients<float> got = given, want = given;
  for (size_t p = 0; p < model.arrays.size(); ++p)
    if (is_taken(law.port(p))) model.arrays[p].set([&](auto... at) { return shared.arrays[p].at(at...); });
  law.train(model).backward(want);
  law.train(shared).backward(got);
  hold_same(law, want, got, "of one head for all of the batch (stride 0)");
}

void any_bounds(Law& law) {
  needs_backward(law);
  const int64_t n = law.length(40);
  Inputs in = law.inputs(2, n);
  Call call = law.with_totals({}, 2, n);
  attn_request bounds = whole_request(in, ATTN_TRAIN, call, 1);
  const auto planned = [&] { return law.may_refuse([&] { return Training<float>(in, bounds, call); }); };
  Training<float> exact = planned();
  bounds.batch += 5;
  bounds.queries += 60;
  bounds.keys += 60;
  bounds.workers = 3;
  Training<float> large = planned();
  hold_same(law, exact.outputs(), large.outputs(), "under a plan with larger bounds (outputs)");
  Gradients<float> want = exact.gradients(), got = want;
  exact.backward(want);
  large.backward(got);
  hold_same(law, want, got, "under a plan with larger bounds");
}

void repeats(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(2, law.length(64));
  Training<float> training = law.train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> first = given, second = given;
  training.backward(first);
  Gradients<float> other = training.gradients(8);
  training.backward(other);
  training.backward(second);
  hold_same(law, first, second, "the second time, from the same saved bytes");
}

void skips(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(2, law.length(33));
  Training<float> training = law.train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> every = given, none = given;
  training.backward(every);
  for (size_t p = 0; p < given.size(); ++p) {
    if (is_given(law.port(p))) continue;
    none[p] = {};
    Gradients<float> but_one = given;
    but_one[p] = {};
    training.backward(but_one);
    hold_same(law, every, but_one, fmt::format("without that of {}", law.port(p).name));
  }
  for (size_t p = 0; p < given.size(); ++p) {
    if (is_given(law.port(p))) continue;
    Gradients<float> one = none;
    one[p] = given[p];
    training.backward(one);
    hold_same(law, every, one, "by itself");
  }
  training.backward(none);
}

void same_outputs(Law& law) {
  needs_backward(law);
  const int64_t n = law.length(64);
  Inputs in = law.inputs(2, n);
  const Training<float> training = law.train(in);
  std::map<std::string, Array> aux;
  const Array out = run_whole(in, 0, law.causal() ? law.with_totals({}, 2, n) : Call{}, 1, &aux);
  for (size_t p = 0; p < training.outputs().size(); ++p)
    if (is_given(law.port(p)))
      hold(same_bits(training.outputs()[p], law.port(p).kind == ATTN_OUTPUT ? out : aux.at(law.port(p).name)),
           "a training run gives other bits in {} than a plain one", law.port(p).name);
}

void scales(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(2, 33);
  Training<float> training = law.train(in);
  Gradients<float> grads = training.gradients();
  for (size_t p = 0; p < grads.size(); ++p)
    if (law.port(p).kind == ATTN_LEARNED) grads[p].set([](auto...) { return 0; });
  Gradients<float> scaled = grads;
  for (size_t p = 0; p < grads.size(); ++p)
    for (float& x : scaled[p].data())
      if (is_given(law.port(p))) x *= 256;
  training.backward(grads);
  training.backward(scaled);
  for (Array& grad : grads)
    for (float& x : grad.data()) x *= 256;
  for (size_t p = 0; p < grads.size(); ++p)
    hold(is_given(law.port(p)) || same_bits(grads[p], scaled[p]),
         "256 times the output's gradient gives not 256 times that of {}, bit for bit", law.port(p).name);
}

void few_rows(Law& law) {
  needs_backward(law);
  for (const int64_t batch : {0, 1, 2})
    for (const auto& [n, m] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {1, 0}, {0, 1}, {2, 5}}) {
      if (!law.cross() && n != m) continue;
      Inputs in = law.inputs_of(batch, n, m);
      Training<float> training = law.train(in);
      const Gradients<float> given = training.gradients();
      Gradients<float> grads = given;
      training.backward(grads);
      for (size_t p = 0; p < grads.size(); ++p) {
        const char* name = law.port(p).name;
        if (grads[p].data().empty() || is_given(law.port(p))) continue;
        hold(law.finite(grads[p]), "the gradient of {} is not finite, {} queries and {} keys", name, n, m);
        if (law.port(p).kind == ATTN_LEARNED && (batch == 0 || n + m == 0))
          hold(law.has(ATTN_AUX_OUT) || same_bits(grads[p], given[p]), "the gradient of {} changes without any row",
               name);
        if (is_taken(law.port(p)) && grads[p].batch * grads[p].rows > 0 && n * m == 0 && !law.has(ATTN_AUX_OUT))
          hold(is_zero(grads[p], 0, 0, 0), "the gradient of {} is not zero, and no query saw a key", name);
      }
    }
}

void at_once(Law& law) {
  needs_backward(law);
  const int64_t n = law.length(33);
  std::vector<Inputs> in;
  std::vector<Gradients<float>> alone, together(3);
  for (uint64_t salt = 0; salt < 3; ++salt) in.push_back(law.inputs(2, n, salt));
  for (Inputs& one : in) alone.push_back(gradients(law, one));
  conformance::at_once(in.size(), [&](size_t t) {
    for (int repeat = 0; repeat < 2; ++repeat) together[t] = gradients(law, in[t]);
  });
  for (size_t t = 0; t < in.size(); ++t) hold_same(law, alone[t], together[t], "with others at once");
}

void later_structs(Law& law) {
  needs_backward(law);
  Inputs in = law.inputs(2, 33);
  Call call;
  const auto made = [&] {
    Training<float> training = law.train(in, call);
    Gradients<float> grads = training.gradients();
    training.backward(grads);
    return grads;
  };
  const Gradients<float> want = made();
  call.later = true;
  hold_same(law, want, made(), "with structs of a later minor");
}

void shared_keys(Law& law) {
  needs_backward(law);
  const SharedKeys both(law);
  auto [shared, repeated] = both.inputs(2, 100);
  const Gradients<float> got = gradients(*both.shared, shared), want = gradients(*both.repeated, repeated);
  hold_same(law, got, gradients(*both.shared, shared, 5), "with 5 workers");
  for (size_t p = 0; p < got.size(); ++p) {
    Ratio error;
    for (int64_t b = 0; b < got[p].batch; ++b)
      for (int64_t h = 0; h < got[p].heads; ++h)
        for (int64_t i = 0; i < got[p].rows; ++i)
          for (int64_t c = 0; c < got[p].width; ++c) {
            double sum = 0;
            const int64_t group = want[p].heads / got[p].heads;
            for (int64_t r = h * group; r < (h + 1) * group; ++r) sum += want[p].at(b, r, i, c);
            error.add(got[p].at(b, h, i, c), sum);
          }
    hold(error() <= kGate, "the gradient of {} is off by {:.1e} from the sum of those of repeated keys",
         law.port(p).name, error());
  }
}

constexpr Check all[] = {
    {"gradient", "forms", "whoever has gradients has them in every form of whole sequences that it runs", nullptr,
     forms},
    {"gradient", "differences", "f64 gradients are those of central differences, f32 ones those of f64", nullptr,
     central_differences, kAnywhere | kCausalEncoder, Draws::none},
    {"gradient", "saves_linearly", "what a training run saves grows no faster than its rows", nullptr, saves_linearly,
     kAnywhere, Draws::none},
    {"gradient", "adds", "gradients of what is learned are added to what is there", nullptr, adds, kAnywhere,
     Draws::none},
    {"gradient", "padding", "padding has no gradient and changes none", nullptr, padding},
    {"gradient", "visible", "keys that nobody sees have no gradient", nullptr, visible, kEncoder | kCross},
    {"gradient", "causality", "gradients, and NaN in them, flow back only where the run flowed", nullptr, causality,
     kAnywhere | kCausalEncoder, Draws::none},
    {"gradient", "prefixes", "gradients come from queries that see", nullptr, from_queries_that_see, kEncoder | kCross,
     Draws::none},
    {"gradient", "batch_rows", "batch rows are independent of each other and of their order", nullptr, batch_rows},
    {"gradient", "rows_and_heads", "a batch row and head keep NaN to themselves", nullptr, rows_and_heads, kAnywhere,
     Draws::none},
    {"gradient", "shared_keys", "heads of queries that share a head of keys add up in its gradient", nullptr,
     shared_keys, kAnywhere, Draws::none},
    {"gradient", "workers", "no bit depends on the number of workers", nullptr, any_workers},
    {"gradient", "layout", "no bit depends on the strides and the alignment of tensors", nullptr, any_layout},
    {"gradient", "bounds", "no bit depends on the bounds of the plan", nullptr, any_bounds},
    {"gradient", "repeats", "backward passes of one run give equal bits", nullptr, repeats},
    {"gradient", "skips", "a gradient that nobody asked for changes no bit of the others", nullptr, skips},
    {"gradient", "same_outputs", "a training run gives the bits of a plain one", nullptr, same_outputs},
    {"gradient", "scales", "a power of two times the output's gradient gives that multiple of all, exactly", nullptr,
     scales, kAnywhere, Draws::none},
    {"gradient", "few_rows", "no row and one row have gradients", nullptr, few_rows},
    {"gradient", "at_once", "backward passes at once are as one by one", nullptr, at_once},
    {"gradient", "later_structs", "longer structs, of a later minor, give the same bits", nullptr, later_structs,
     kAnywhere, Draws::none},
};

}  // namespace

const std::span<const Check> gradient_checks = all;

}  // namespace attnkit::core::conformance
