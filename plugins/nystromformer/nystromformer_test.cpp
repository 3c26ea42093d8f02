// nystromformer against its own float64 form, called through the ABI.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference.hpp"
#include "support/cost.hpp"
#include "support/gradient.hpp"
#include "support/refusal.hpp"
#include "support/suite.hpp"

namespace attnkit::test {
namespace {

const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

Truth truth_of(const Form& form, Inputs& in, const std::vector<int32_t>& lengths) {
  const Array &q = in["q"], &k = in["k"], &v = in["v"];
  const Scene scene{q.batch, q.heads, q.rows, k.rows, v.width, false, lengths, lengths, {}};
  Truth truth{scene, {}, {}};
  for (int64_t b = 0; b < q.batch; ++b)
    for (int64_t h = 0; h < q.heads; ++h) {
      const int64_t n = lengths.empty() ? q.rows : lengths[static_cast<size_t>(b)];
      Matrix o;
      if (n > 0) o = form(rows_of(q, b, h, n), rows_of(k, b, h, n), rows_of(v, b, h, n), static_cast<size_t>(h));
      o.resize(static_cast<size_t>(q.rows), Row(static_cast<size_t>(v.width)));
      for (const Row& row : o) truth.o.insert(truth.o.end(), row.begin(), row.end());
    }
  return truth;
}

double check(Form form, const std::function<void(Inputs&)>& prepare = nullptr) {
  const auto encoders = [](const Situation& s) { return s.block.role == ATTN_ENCODER_SELF; };
  return worst_situation(encoders, [&](const Situation& s) {
    const Mechanism mech(plugin(), s.block, form.settings());
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    if (prepare) prepare(in);
    for (size_t h = 0; h < form.filters.size(); ++h)
      for (size_t u = 0; u < form.filters[h].size(); ++u)
        form.filters[h][u] = in["conv"].at(0, 0, static_cast<int64_t>(h * form.filters[h].size() + u), 0);
    const double error = error_of(run_whole(in, 0, s.call()), truth_of(form, in, s.k_len));
    EXPECT_LE(error, kGate) << "landmarks " << form.landmarks << " length " << form.length;
    return error;
  });
}

TEST(Nystromformer, EqualsItsFloat64Form) { record_error(worse(check({}), check({.landmarks = 8}))); }

TEST(Nystromformer, HasOptions) {
  for (const int64_t landmarks : {1, 7, 32, 50, 99, 128}) check({.landmarks = landmarks});
  for (const int64_t iterations : {1, 3, 10}) check({.landmarks = 16, .iterations = iterations});
  for (const int64_t length : {104, 160}) check({.landmarks = 8, .length = length});
  check({.landmarks = 100, .length = 100});
}

TEST(Nystromformer, ConvolvesValues) {
  check({.landmarks = 8, .filters = Matrix(2, Row(35))});
  check({.landmarks = 64, .filters = Matrix(2, Row(1))});
  check({.landmarks = 200, .filters = Matrix(2, Row(255))});
}

TEST(Nystromformer, HasGradients) {
  double worst = check_gradients(plugin());
  for (Form form : {Form{.landmarks = 2}, {.landmarks = 8, .iterations = 1}, {.landmarks = 8, .length = 104}}) {
    worst = worse(worst, check_gradients(plugin(), form.settings()));
    form.filters = Matrix(1, Row(5));
    worst = worse(worst, check_gradients(plugin(), form.settings()));
  }
  record_error(worst);
}

// Without conv there is no such port, and no other stands for it, whatever a kernel's width is.
TEST(Nystromformer, HasNoFilterWithoutConv) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, 24, 40);
  const Mechanism without(plugin(), block, {{"landmarks", int64_t{8}}}),
      unused(plugin(), block, {{"landmarks", int64_t{8}}, {"kernel", int64_t{5}}}),
      with(plugin(), block, {{"landmarks", int64_t{8}}, {"kernel", int64_t{5}}, {"conv", true}});
  EXPECT_EQ(4u, unused.ports().size());
  Inputs a(without, 1, 50, 50, 1), b(unused, 1, 50, 50, 1), c(with, 1, 50, 50, 1);
  const Array out = run_whole(a, 0, {});
  EXPECT_TRUE(same_bits(out, run_whole(b, 0, {})));
  EXPECT_FALSE(same_bits(out, run_whole(c, 0, {})));
  for (float& w : c["conv"].data()) w = 0;
  EXPECT_EQ(0, rms_ratio(run_whole(c, 0, {}), out)) << "a filter of zeros adds nothing";
}

// Padding makes landmarks of zeros, all equal, so A lacks directions that every step magnifies.
TEST(Nystromformer, StaysAccurateWhenLandmarksAreEqual) {
  const double error = check({.landmarks = 40, .iterations = 16}, [](Inputs& in) {
    for (const char* name : {"q", "k"})
      for (float& x : in[name].data()) x *= 4;
  });
  record_error(error);
  check({.landmarks = 16, .iterations = 16}, [](Inputs& in) {
    for (const char* name : {"q", "k"}) in[name].set([](int64_t, int64_t, int64_t, int64_t) { return 0.5f; });
  });
}

TEST(Nystromformer, SurvivesScoresOfHundreds) {
  const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 32, 32), Form{.landmarks = 8}.settings());
  Inputs in(mech, 1, 64, 64, 1);
  for (const char* name : {"q", "k"})
    for (float& x : in[name].data()) x *= 20;
  EXPECT_TRUE(all_finite(run_whole(in, 0, {})));
}

TEST(Nystromformer, EqualsTheGoldenCases) {
  double worst = 0;
  for (Golden& g : golden("nystrom")) {
    g.role = ATTN_ENCODER_SELF;
    const Form form{.landmarks = g.params["landmarks"], .iterations = g.params["iters"]};
    EXPECT_LE(largest_difference(form(g.q, g.k, g.v), g.o), 1e-12) << g.name;
    const auto n = static_cast<int64_t>(g.q.size());
    const Mechanism mech(plugin(), g.block(), form.settings());
    Inputs in(mech, 1, n, n, 1);
    put(g.q, in["q"]);
    put(g.k, in["k"]);
    put(g.v, in["v"]);
    const double error = error_of(run_whole(in, 0, {}), truth_of(form, in, {}));
    EXPECT_LE(error, kGate) << g.name;
    worst = worse(worst, error);
  }
  record_error(worst);
}

// With as many landmarks as positions the mechanism is softmax attention, and padding does not make it anything else.
TEST(Nystromformer, IsSoftmaxForRowsUpToTheLandmarks) {
  const Mechanism exact(plugin(), make_block(ATTN_ENCODER_SELF, false, 2, 24, 40), {{"landmarks", int64_t{4096}}});
  for (const int64_t n : {1, 63, 64}) {
    const Mechanism mech(plugin(), exact.block());
    Inputs in(mech, 2, n, n, 1), same(exact, 2, n, n, 1);
    EXPECT_TRUE(same_bits(run_whole(in, 0, {}), run_whole(same, 0, {}))) << n;
  }
  const Mechanism mech(plugin(), exact.block());
  Inputs in(mech, 2, 65, 65, 1), other(exact, 2, 65, 65, 1);
  EXPECT_GT(rms_ratio(run_whole(in, 0, {}), run_whole(other, 0, {})), 1e-3) << "65 positions need landmarks";
}

// The laws of the conformance tests run short rows, which are exact softmax; here every row has landmarks.
TEST(Nystromformer, KeepsRowsAndHeadsApart) {
  const Form forms[] = {
      {.landmarks = 8}, {.landmarks = 8, .length = 64}, {.landmarks = 8, .filters = Matrix(3, Row(5))}};
  for (const Form& form : forms) {
    const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, 3, 24, 40), form.settings());
    Inputs in(mech, 4, 50, 50, 1), plain(mech, 4, 50, 50, 1, Layout::kPlain);
    Call call;
    call.q_len = call.k_len = {50, 17, 0, 31};
    const Array out = run_whole(in, 0, call);
    EXPECT_TRUE(all_finite(out));
    EXPECT_TRUE(same_bits(out, run_whole(plain, 0, call))) << "layout";
    for (const uint32_t workers : {2u, 5u}) EXPECT_TRUE(same_bits(out, run_whole(in, 0, call, workers))) << workers;
    call.queries = call.keys = 50;
    EXPECT_TRUE(same_bits(out, Planned(mech, make_request(9, 64, 64)).run(in, call))) << "larger bounds";
    Inputs spoilt = in;
    for (const char* name : {"q", "k", "v"})
      spoilt[name].set([&](int64_t b, int64_t h, int64_t i, int64_t c) {
        const bool bad = (b == 1 && h == 2) || i >= call.k_len[static_cast<size_t>(b)];
        return bad ? std::numeric_limits<float>::quiet_NaN() : in[name].at(b, h, i, c);
      });
    const Array got = run_whole(spoilt, 0, call);
    EXPECT_TRUE(std::isnan(got.at(1, 2, 3, 0)));
    for (int64_t b = 0; b < 4; ++b)
      for (int64_t h = 0; h < 3; ++h)
        if (b != 1 || h != 2) {
          EXPECT_TRUE(same_bits(got, b, h, out, b, h, 50)) << b << " " << h;
        }
    for (int64_t b = 0; b < 4; ++b) {
      const int64_t n = call.k_len[static_cast<size_t>(b)];
      Inputs alone(mech, 1, n, n, 1);
      for (const char* name : {"q", "k", "v"})
        alone[name].set([&](int64_t, int64_t h, int64_t i, int64_t c) { return in[name].at(b, h, i, c); });
      const Array single = run_whole(alone, 0, {});
      for (int64_t h = 0; h < 3; ++h) EXPECT_TRUE(same_bits(single, 0, h, out, b, h, n)) << b;
    }
  }
}

// Packing and means, the inverse beside B V, Z B V, and the queries; without landmarks the first and the last.
TEST(Nystromformer, SharesTheStagesOfOneHead) {
  const attn_block block = make_block(ATTN_ENCODER_SELF, false, 1, 64, 40);
  const Settings settings = {{"conv", true}, {"landmarks", int64_t{150}}};
  EXPECT_EQ((std::vector<int64_t>{20, 11, 10, 10}), check_pieces(Mechanism(plugin(), block, settings), 640));
  EXPECT_EQ((std::vector<int64_t>{3, 3}), check_pieces(Mechanism(plugin(), block, settings), 140));
}

TEST(Nystromformer, RefusesAllButWholeBidirectionalSelfAttention) {
  const auto says = [](uint32_t role, bool causal, uint32_t flags, const char* what) {
    expect_refused(Mechanism(plugin(), make_block(role, causal, 2, 24, 24)), make_request(1, 4, 4, flags), what);
  };
  for (const uint32_t flags : {0u, ATTN_STREAM, ATTN_PREFIX}) {
    says(ATTN_DECODER_CROSS, false, flags, "there is no cross attention");
    says(ATTN_DECODER_SELF, true, flags, "there is no causal form");
    says(ATTN_ENCODER_SELF, true, flags, "there is no causal form");
  }
  says(ATTN_ENCODER_SELF, false, ATTN_STREAM, "bidirectional self attention cannot stream");
  says(ATTN_ENCODER_SELF, false, ATTN_PREFIX, "a query cannot see a part of it");
}

TEST(Nystromformer, RefusesOptionsThatContradict) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 2, 24, 24);
  const auto says = [&block](const Settings& settings, const char* option, const std::string& sentence) {
    expect_refused(plugin(), block, settings, sentence, option);
    EXPECT_EQ(sentence, refusal([&] { Mechanism(plugin(), block, settings); }).what());
  };
  says({{"length", int64_t{100}}}, "length",
       "length 100 is not a multiple of landmarks 64: segments are equally long, choose a multiple, or 0");
  says({{"kernel", int64_t{34}}}, "kernel",
       "kernel 34 is even and would shift the sequence by half a position: choose an odd one");
  const Mechanism mech(plugin(), block, {{"length", int64_t{128}}});
  EXPECT_NO_THROW(Planned(mech, make_request(1, 128, 128)));
  const std::string sentence = "length = 128 cannot hold a sequence of 129: shorten it, or set a larger length, or 0";
  expect_refused(mech, make_request(1, 129, 129), sentence);
  EXPECT_EQ(sentence, refusal(mech, make_request(1, 129, 129)).what());
}

TEST(Nystromformer, FillsLikeAConvolution) {
  const auto block = make_block(ATTN_ENCODER_SELF, false, 64, 24, 24);
  EXPECT_EQ(-1, Mechanism(plugin(), block).find("conv"));
  const Mechanism mech(plugin(), block, {{"conv", true}});
  Inputs in(mech, 1, 1, 1, 42), other(mech, 1, 1, 1, 43);
  const Array& w = in["conv"];
  const Moments of = moments(w);
  EXPECT_EQ(64 * 35, w.rows);
  EXPECT_LE(of.largest, 1 / std::sqrt(35.0));
  EXPECT_GE(of.largest, 0.99 / std::sqrt(35.0));
  EXPECT_NEAR(0, of.mean, 0.01);
  EXPECT_NEAR(1.0 / 3 / 35, of.square, 5e-4);
  EXPECT_EQ(-0x1.b6853cp-5f, w.at(0, 0, 0, 0));
  EXPECT_FALSE(same_bits(w, other["conv"]));
}

// Counts the multiply-adds of matrix products, a softmax as 5 per score.
struct Counter {
  uint64_t flops = 0;
  void product(int64_t rows, int64_t inner, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < inner; ++j)
        for (int64_t x = 0; x < columns; ++x) flops += 2;
  }
  void softmax(int64_t rows, int64_t inner, int64_t columns) {
    product(rows, inner, columns);
    for (int64_t i = 0; i < rows * columns; ++i) flops += 5;
  }
};

TEST(Nystromformer, DeclaresTheWorkAndBytesThatItHas) {
  const int64_t heads = 3, d = 24, e = 40, l = 8, iterations = 4, kernel = 5;
  for (const int64_t n : {8, 30})
    for (const bool conv : {false, true}) {
      const Mechanism mech(plugin(), make_block(ATTN_ENCODER_SELF, false, heads, d, e),
                           {{"landmarks", l}, {"iterations", iterations}, {"conv", conv}, {"kernel", kernel}});
      Counter count;
      for (int64_t h = 0; h < heads; ++h) {
        if (n <= l) {
          count.softmax(n, d, n);
          count.product(n, n, e);
        } else {
          count.softmax(n, d, l);
          count.softmax(l, d, l);
          count.softmax(l, d, n);
          for (int64_t step = 0; step < 4 * iterations; ++step) count.product(l, l, l);
          count.product(l, n, e);
          count.product(l, l, e);
          count.product(n, l, e);
        }
        for (int64_t u = 0; u < kernel && conv; ++u) count.product(n, 1, e);
      }
      SCOPED_TRACE(n);
      Inputs in(mech, 2, n, n, 1);
      const uint64_t filters = conv ? bytes_of(in, {"conv"}) : 0;
      expect_cost(mech, make_request(2, n, n),
                  {2 * count.flops, bytes_of(in, {"q", "k", "v"}) + filters, bytes_of(in, {"o"})});
    }
}

}  // namespace
}  // namespace attnkit::test
