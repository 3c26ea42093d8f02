// Laws of gradients: those of the run itself, added up where they are learned, flowing back only where the run flowed.
#include "support/gradient.hpp"

#include <limits>
#include <thread>

#include "conformance/fixture.hpp"
#include "support/refusal.hpp"

namespace attnkit::test {

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

}  // namespace

class Gradient : public Law {
 protected:
  // Skips what has no backward pass or refuses this block.
  void SetUp() override {
    Law::SetUp();
    if (!mech) return;
    Inputs in = inputs(1, 8);
    ATTNKIT_OR_SKIP(train(in));
  }
  // As Law::whole.
  template <class Real>
  Training<Real> train(BasicInputs<Real>& in, Call call = {}, uint32_t workers = 1, uint32_t flags = 0) const {
    const Array64 out(in.arrays[mech->output()]);
    if ((causal() || flags != 0) && call.q_total.empty()) {
      call = with_totals(call, out.batch, out.rows);
      flags |= ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    }
    return Training<Real>(in, flags, call, workers);
  }
  template <class Real>
  Gradients<Real> gradients(BasicInputs<Real>& in, const Call& call = {}, uint32_t workers = 1) const {
    Training<Real> training = train(in, call, workers);
    Gradients<Real> grads = training.gradients();
    training.backward(grads, workers);
    return grads;
  }
  int flows_back(uint32_t flags, const Call& call) const;
  const attn_port& port(size_t p) const { return *mech->ports()[p]; }
  bool has(uint32_t kind) const {
    return std::any_of(mech->ports().begin(), mech->ports().end(), [=](auto* port) { return port->kind == kind; });
  }
  // Row b of the batch becomes NaN from row `from` of its sequence on.
  void spoil(Array& a, int64_t b, int64_t from) const {
    const Array old = a;
    a.set([&](int64_t row, int64_t h, int64_t i, int64_t c) {
      return row == b && i >= from ? std::numeric_limits<float>::quiet_NaN() : old.at(row, h, i, c);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Conformance, Gradient, testing::ValuesIn(subjects()), name_of);

class GradientCross : public Gradient {};
INSTANTIATE_TEST_SUITE_P(Conformance, GradientCross, testing::ValuesIn(subjects({Seat::kCross})), name_of);

// Whoever has gradients has them in every form of whole sequences that it runs.
class GradientForms : public Law {};
INSTANTIATE_TEST_SUITE_P(Conformance, GradientForms, testing::ValuesIn(subjects()), name_of);

TEST_P(GradientForms, TrainsWhateverItRuns) {
  if (!mech->plugin().backward) GTEST_SKIP() << "it has no backward pass";
  const uint32_t totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  for (const uint32_t flags : {0u, totals, uint32_t{ATTN_PREFIX}, ATTN_PREFIX | totals}) {
    attn_request r = make_request(2, 8, keys_for(8), flags, 0, 2);
    const int32_t runs = refusal(*mech, r).code;
    for (const uint8_t bits : {32, 64}) {
      r.dtype_bits = bits;
      r.flags = flags | ATTN_TRAIN;
      const Refused refused = refusal(*mech, r);
      EXPECT_EQ(runs, refused.code) << "flags " << flags << ", f" << int{bits} << ": " << refused.what();
    }
  }
}

TEST_P(Gradient, EqualsCentralDifferences) {
  Inputs in = inputs(2, 33);
  Call call = with_totals({}, 2, 33);
  call.q_len = {33, 20};
  call.k_len = cross() ? std::vector<int32_t>{static_cast<int32_t>(keys_for(33)), 17} : call.q_len;
  double worst = check_gradients(in, 0, call, false);
  if (cross()) {
    call.q_len = call.k_len = {};
    for (int i = 0; i < 66; ++i) call.visible.push_back(i % 33 / 4 * (i < 33 ? 5 : 3) + i / 33);
    if (refusal([&] { run_whole(in, ATTN_PREFIX, call); }).code == ATTN_OK)
      worst = worse(worst, check_gradients(in, ATTN_PREFIX, call, false));
  }
  RecordProperty("gradient_error", std::to_string(1e9 * worst) + "e-9");  // docs/mechanisms.md states it
}

TEST_P(Gradient, SavesNoMoreThanItsRowsAreLong) {
  const attn_block& here = mech->block();
  const Mechanism model(mech->plugin(), make_block(here.role, causal(), 4, 32, 32));
  const auto saved = [&](int64_t n) {
    const uint32_t flags = ATTN_TRAIN | ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    return Planned(model, make_request(1, n, n, flags)).info().saved_bytes;
  };
  EXPECT_LE(saved(1024), 2 * saved(512) + ATTN_ALIGN);
  RecordProperty("saved_bytes", std::to_string(saved(512)));
}

TEST_P(Gradient, AddsToWhatIsLearned) {
  if (!has(ATTN_LEARNED)) GTEST_SKIP() << "nothing of it is learned";
  Inputs64 in(inputs(2, 33));
  Training<double> training = train(in);
  const Gradients<double> start = training.gradients();
  Gradients<double> alone = start, once = start;
  for (size_t p = 0; p < start.size(); ++p)
    if (port(p).kind == ATTN_LEARNED) alone[p].set([](auto...) { return 0; });
  training.backward(alone);
  training.backward(once);
  Gradients<double> twice = once;
  training.backward(twice);
  for (size_t p = 0; p < start.size(); ++p) {
    if (port(p).kind != ATTN_LEARNED) continue;
    double largest = 1;
    for (int64_t i = 0; i < start[p].rows; ++i) largest = std::max(largest, std::abs(alone[p].at(0, 0, i, 0)));
    for (int64_t i = 0; i < start[p].rows; ++i) {
      const double s = start[p].at(0, 0, i, 0), g = alone[p].at(0, 0, i, 0);
      EXPECT_NEAR(s + g, once[p].at(0, 0, i, 0), 1e-12 * largest) << port(p).name;
      EXPECT_NEAR(s + 2 * g, twice[p].at(0, 0, i, 0), 1e-12 * largest) << port(p).name;
    }
  }
}

TEST_P(Gradient, IsZeroForPaddingWhichDoesNotMatter) {
  const int64_t n = 40, m = keys_for(n);
  Call call;
  call.q_len = {40, 17, 0, 1};
  call.k_len = cross() ? std::vector<int32_t>{static_cast<int32_t>(m), 33, 5, 0} : call.q_len;
  if (causal()) call.q_total = call.k_total = {40, 17, 1, 1};
  Inputs in = inputs(4, n);
  for (size_t p = 0; p < in.arrays.size(); ++p)
    for (int64_t b = 0; b < 4; ++b) {
      if (port(p).kind == ATTN_QUERY) spoil(in.arrays[p], b, call.q_len[static_cast<size_t>(b)]);
      if (port(p).kind == ATTN_KEY) spoil(in.arrays[p], b, call.k_len[static_cast<size_t>(b)]);
    }
  Training<float> training = train(in, call);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given;
  training.backward(grads);
  for (size_t p = 0; p < grads.size(); ++p) EXPECT_TRUE(is_given(port(p)) || all_finite(grads[p])) << port(p).name;
  for (size_t b = 0; b < 4; ++b) {
    // Past its length a row has no gradient, and before it that of a run which never saw the padding.
    const auto row = static_cast<int64_t>(b);
    Inputs alone(*mech, 1, call.q_len[b], call.k_len[b], 1);
    const auto take = [&](size_t p, const Gradients<float>& from, Array& to) {
      to.set([&](int64_t, int64_t h, int64_t i, int64_t c) { return from[p].at(row, h, i, c); });
    };
    for (size_t p = 0; p < alone.arrays.size(); ++p)
      if (is_taken(port(p))) take(p, in.arrays, alone.arrays[p]);
    Call single;
    if (causal()) single.q_total = single.k_total = {call.q_total[b]};
    Training<float> one(alone, 0, single);
    Gradients<float> own = one.gradients();
    for (size_t p = 0; p < own.size(); ++p)
      if (is_given(port(p))) take(p, given, own[p]);
    one.backward(own);
    for (size_t p = 0; p < own.size(); ++p) {
      if (!is_taken(port(p))) continue;
      for (int64_t h = 0; h < own[p].heads; ++h) {
        EXPECT_TRUE(same_bits(own[p], 0, h, grads[p], row, h, own[p].rows)) << port(p).name << " row " << b;
        for (int64_t i = own[p].rows; i < grads[p].rows; ++i)
          EXPECT_TRUE(is_zero(grads[p], row, h, i)) << port(p).name << " row " << b << ", " << i;
      }
    }
  }
}

TEST_P(GradientCross, IsZeroForWhatIsNotSeen) {
  const int64_t n = 20;
  Inputs in = inputs(2, n);
  Call call = with_totals({}, 2, n);
  int32_t last[2];
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < n; ++i) call.visible.push_back(last[b] = (i / 4) * (3 + b));
  for (size_t p = 0; p < in.arrays.size(); ++p)
    for (int64_t b = 0; b < 2; ++b)
      if (port(p).kind == ATTN_KEY && !has(ATTN_AUX_OUT)) spoil(in.arrays[p], b, last[b]);
  ATTNKIT_OR_SKIP(train(in, call, 1, ATTN_PREFIX));
  Training<float> training = train(in, call, 1, ATTN_PREFIX);
  Gradients<float> grads = training.gradients();
  for (size_t p = 0; p < grads.size(); ++p)
    if (port(p).kind == ATTN_AUX_OUT) grads[p].set([](auto...) { return 0; });  // which may be made of all keys
  training.backward(grads);
  for (size_t p = 0; p < grads.size(); ++p) {
    if (port(p).kind != ATTN_QUERY && port(p).kind != ATTN_KEY) continue;
    EXPECT_TRUE(all_finite(grads[p])) << port(p).name;
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h)
        for (int64_t i = 0; i < grads[p].rows; ++i)
          if (port(p).kind == ATTN_KEY ? i >= last[b] : i < 4) {
            EXPECT_TRUE(is_zero(grads[p], b, h, i)) << port(p).name << " row " << b << ", " << i;
          }
  }
}

// Where rows before or from a cut of a sequence do not reach output rows on its other side, no gradient comes back from
// these.  So none comes from the future, and that of a query is made of its own row's, unless queries are keys as well.
// Returns how many times that was so.
int Gradient::flows_back(uint32_t flags, const Call& call) const {
  const int64_t n = 70;
  Inputs in = inputs(2, n);
  Training<float> training = train(in, call, 1, flags);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given;
  training.backward(grads);
  const size_t out = mech->output();
  int times = 0;
  for (size_t p = 0; p < grads.size(); ++p) {
    if (port(p).kind != ATTN_QUERY && port(p).kind != ATTN_KEY) continue;
    for (const int64_t cut : {1, 17, 64})
      for (const auto& [rows, others] : {std::pair{Rows{0, cut}, Rows{cut, n}}, {Rows{cut, 1000}, Rows{0, cut}}}) {
        Inputs changed = in;
        changed.arrays[p].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
          return in.arrays[p].at(b, h, i, c) * (rows.has(i) ? -1.5f : 1);
        });
        if (!same_rows(run_whole(changed, flags, call), training.outputs()[out], others)) continue;
        ++times;
        Gradients<float> other = given;
        other[out].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
          return given[out].at(b, h, i, c) + (others.has(i) ? 1 : 0);
        });
        training.backward(other);
        EXPECT_TRUE(same_rows(grads[p], other[p], rows)) << port(p).name << " " << rows.from << " to " << rows.to;
      }
  }
  return times;
}

TEST_P(Gradient, FlowsBackOnlyWhereTheRunFlowed) {
  const int times = flows_back(0, with_totals({}, 2, 70));
  if (causal()) {
    EXPECT_GE(times, 3) << "in a causal block the future reaches no output";
  }
}

// Row b of the batch is 3 b keys behind.
TEST_P(GradientCross, FlowsBackOnlyFromQueriesThatSee) {
  Call call = with_totals({}, 2, 70);
  for (int i = 0; i < 140; ++i) call.visible.push_back(std::max(0, i % 70 - i / 70 * 3));
  Inputs in = inputs(2, 70);
  ATTNKIT_OR_SKIP(train(in, call, 1, ATTN_PREFIX));
  EXPECT_GE(flows_back(ATTN_PREFIX, call), 3) << "keys from a cut on reach no query before it";
}

TEST_P(Gradient, BatchRowsAreIndependent) {
  Inputs in = inputs(4, 33);
  Training<float> training = train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> grads = given, permuted = given;
  training.backward(grads);
  const int64_t order[] = {2, 0, 3, 1};
  const auto permute = [&](size_t p, const Gradients<float>& from, Array& to) {
    to.set([&](int64_t b, int64_t h, int64_t i, int64_t c) { return from[p].at(order[b], h, i, c); });
  };
  Inputs moved = in;
  for (size_t p = 0; p < grads.size(); ++p) {
    if (is_taken(port(p))) permute(p, in.arrays, moved.arrays[p]);
    if (is_given(port(p))) permute(p, given, permuted[p]);
  }
  train(moved).backward(permuted);
  for (size_t p = 0; p < grads.size(); ++p)
    for (int64_t b = 0; b < 4 && is_taken(port(p)); ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h)
        EXPECT_TRUE(same_bits(permuted[p], b, h, grads[p], order[b], h, grads[p].rows)) << port(p).name;
}

TEST_P(Gradient, HeadsAndRowsKeepTheirNanToThemselves) {
  Inputs in = inputs(3, 33);
  Training<float> training = train(in);
  Gradients<float> grads = training.gradients(), changed = grads;
  for (size_t p = 0; p < grads.size(); ++p)
    if (port(p).kind == ATTN_OUTPUT)
      for (int64_t c = 0; c < grads[p].width; ++c) changed[p].at(1, 0, 20, c) = std::numeric_limits<float>::quiet_NaN();
  training.backward(grads);
  training.backward(changed);
  // Raw inputs and auxiliary sequences have no heads: what enters there reaches every head of its row.
  const bool mixes = std::any_of(mech->ports().begin(), mech->ports().end(),
                                 [](const attn_port* p) { return is_taken(*p) && p->shape[1] != kHeads; });
  bool reached = false;
  for (size_t p = 0; p < grads.size(); ++p)
    for (int64_t b = 0; b < 3 && is_taken(port(p)); ++b)
      for (int64_t h = 0; h < grads[p].heads; ++h) {
        const bool same = same_bits(grads[p], b, h, changed[p], b, h, grads[p].rows);
        EXPECT_TRUE(same || (b == 1 && (h == 0 || mixes))) << port(p).name << " row " << b << " head " << h;
        reached = reached || !same;
      }
  EXPECT_TRUE(reached) << "NaN is not swallowed";
}

void expect_same(const Mechanism& mech, const Gradients<float>& a, const Gradients<float>& b) {
  for (size_t p = 0; p < a.size(); ++p)
    EXPECT_TRUE(a[p].data().empty() || b[p].data().empty() || same_bits(a[p], b[p])) << mech.ports()[p]->name;
}

TEST_P(Gradient, DoesNotDependOnWorkers) {
  for (const auto& [batch, n] : std::vector<std::pair<int64_t, int64_t>>{{3, 40}, {1, 100}}) {
    Inputs in = inputs(batch, n);
    const Gradients<float> one = gradients(in);
    for (const uint32_t workers : {2u, 5u}) {
      SCOPED_TRACE(workers);
      expect_same(*mech, one, gradients(in, {}, workers));
    }
  }
}

TEST_P(Gradient, DoesNotDependOnLayout) {
  Inputs strided = inputs(2, 63), plain = inputs(2, 63, 1, Layout::kPlain);
  expect_same(*mech, gradients(strided), gradients(plain));
}

TEST_P(Gradient, DoesNotDependOnThePlansBounds) {
  Inputs in = inputs(2, 40);
  Call call = with_totals({}, 2, 40);
  attn_request bounds = whole_request(in, ATTN_TRAIN, call, 1);
  Training<float> exact(in, bounds, call);
  bounds.batch += 5;
  bounds.queries += 60;
  bounds.keys += 60;
  bounds.workers = 3;
  Training<float> large(in, bounds, call);
  expect_same(*mech, exact.outputs(), large.outputs());
  Gradients<float> want = exact.gradients(), got = want;
  exact.backward(want);
  large.backward(got);
  expect_same(*mech, want, got);
}

TEST_P(Gradient, RepeatsFromWhatWasSaved) {
  Inputs in = inputs(2, 64);
  Training<float> training = train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> first = given, second = given;
  training.backward(first);
  Gradients<float> other = training.gradients(8);
  training.backward(other);
  training.backward(second);
  expect_same(*mech, first, second);
}

TEST_P(Gradient, SkipsWhatNobodyAskedFor) {
  Inputs in = inputs(2, 33);
  Training<float> training = train(in);
  const Gradients<float> given = training.gradients();
  Gradients<float> all = given, none = given;
  training.backward(all);
  for (size_t p = 0; p < given.size(); ++p) {
    if (is_given(port(p))) continue;
    SCOPED_TRACE(port(p).name);
    none[p] = {};
    Gradients<float> but_one = given;
    but_one[p] = {};
    training.backward(but_one);
    expect_same(*mech, all, but_one);
  }
  for (size_t p = 0; p < given.size(); ++p) {
    if (is_given(port(p))) continue;
    SCOPED_TRACE(port(p).name);
    Gradients<float> one = none;
    one[p] = given[p];
    training.backward(one);
    expect_same(*mech, all, one);
  }
  EXPECT_NO_THROW(training.backward(none));
}

TEST_P(Gradient, TrainingRunsGiveTheSameBits) {
  Inputs in = inputs(2, 64);
  const Training<float> training = train(in);
  std::map<std::string, Array> aux;
  const Array out = run_whole(in, 0, causal() ? with_totals({}, 2, 64) : Call{}, 1, &aux);
  for (size_t p = 0; p < training.outputs().size(); ++p)
    if (is_given(port(p))) {
      EXPECT_TRUE(same_bits(training.outputs()[p], port(p).kind == ATTN_OUTPUT ? out : aux.at(port(p).name)));
    }
}

TEST_P(Gradient, PowersOfTwoScaleExactly) {
  Inputs in = inputs(2, 33);
  Training<float> training = train(in);
  Gradients<float> grads = training.gradients();
  for (size_t p = 0; p < grads.size(); ++p)
    if (port(p).kind == ATTN_LEARNED) grads[p].set([](auto...) { return 0; });
  Gradients<float> scaled = grads;
  for (size_t p = 0; p < grads.size(); ++p)
    for (float& x : scaled[p].data())
      if (is_given(port(p))) x *= 256;
  training.backward(grads);
  training.backward(scaled);
  for (Array& grad : grads)
    for (float& x : grad.data()) x *= 256;
  for (size_t p = 0; p < grads.size(); ++p)
    EXPECT_TRUE(is_given(port(p)) || same_bits(grads[p], scaled[p])) << port(p).name;
}

TEST_P(Gradient, TakesEmptyAndSingleRows) {
  for (const int64_t batch : {0, 1, 2})
    for (const auto& [n, m] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {1, 0}, {0, 1}, {2, 5}}) {
      if (!cross() && n != m) continue;
      SCOPED_TRACE(testing::Message() << "B " << batch << " N " << n << " M " << m);
      Inputs in(*mech, batch, n, m, 1);
      Training<float> training = train(in);
      const Gradients<float> given = training.gradients();
      Gradients<float> grads = given;
      training.backward(grads);
      for (size_t p = 0; p < grads.size(); ++p) {
        if (grads[p].data().empty() || is_given(port(p))) continue;
        EXPECT_TRUE(all_finite(grads[p])) << port(p).name;
        if (port(p).kind == ATTN_LEARNED && (batch == 0 || n + m == 0)) {
          EXPECT_TRUE(has(ATTN_AUX_OUT) || same_bits(grads[p], given[p])) << port(p).name;
        }
        if (is_taken(port(p)) && grads[p].batch * grads[p].rows > 0 && n * m == 0 && !has(ATTN_AUX_OUT)) {
          EXPECT_TRUE(is_zero(grads[p], 0, 0, 0)) << port(p).name << ": no query saw a key";
        }
      }
    }
}

TEST_P(Gradient, ManyAtOnceAreAsOneByOne) {
  std::vector<Inputs> in;
  std::vector<Gradients<float>> alone, together(3);
  for (uint64_t seed = 1; seed <= 3; ++seed) in.push_back(inputs(2, 33, seed));
  for (Inputs& one : in) alone.push_back(gradients(one));
  std::vector<std::thread> threads;
  for (size_t t = 0; t < in.size(); ++t)
    threads.emplace_back([&, t] {
      for (int repeat = 0; repeat < 2; ++repeat) together[t] = gradients(in[t]);
    });
  for (auto& thread : threads) thread.join();
  for (size_t t = 0; t < in.size(); ++t) expect_same(*mech, alone[t], together[t]);
}

}  // namespace attnkit::test
