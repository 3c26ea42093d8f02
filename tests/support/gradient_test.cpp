// The checks of gradients must pass what is right and fail whatever is not.
#include "support/gradient.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <attnkit/plugin.hpp>

namespace attnkit::test {
namespace {

enum class Fault { kNone, kWrongFactor, kPaddedRows, kFuture, kLeftAsItWas, kSaved, kInput, kGap, kScratch };
Fault fault = Fault::kNone;

// o_i = sum_j max(q_i . k_j, 0) v_j over the keys that query i sees, with a kink where a product is 0.
struct Weighed {
  static constexpr About about{.name = "weighed", .summary = "s", .citation = "c", .state_revision = "1"};
  static constexpr bool clears_gradients = true;
  struct Plan {
    bool wide;
  };
  static Options options() { return {}; }
  Weighed(const attn_block& b, const Values&, Ports& list)
      : width(b), causal(b.causal != 0), ports(list.qkv(width, "the sum")) {}

  Plan plan(const Request& r, Info& info) const {
    info.saved_bytes = info.backward_scratch_bytes = r.trains() ? ATTN_ALIGN : 0;
    return {r.is_f64()};
  }

  void run(const Plan& plan, const attn_run& run) const { plan.wide ? forward<double>(run) : forward<float>(run); }
  void backward(const Plan& plan, const attn_grad& grad) const {
    plan.wide ? gradients<double>(grad) : gradients<float>(grad);
  }

  // Calls f(b, h, i, j) for each pair of a query and a key that it sees.
  template <class F>
  void pairs(const attn_run& run, const F& f) const {
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < run.queries; ++i) {
          const Sight sight(run, b, causal && fault != Fault::kFuture);
          if (i < sight.queries || fault == Fault::kPaddedRows)
            for (int64_t j = 0; j < sight.seen(i); ++j) f(b, h, i, j);
        }
  }
  template <class Real>
  static Real dot(const Real* x, const Real* y, int64_t n) {
    Real sum = 0;
    for (int64_t c = 0; c < n; ++c) sum += x[c] * y[c];
    return sum;
  }

  template <class Real>
  void forward(const attn_run& run) const {
    const View<const Real> q(run, ports.q), k(run, ports.k), v(run, ports.v);
    const View<Real> o(run, ports.o);
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < width.heads; ++h)
        for (int64_t i = 0; i < run.queries; ++i) std::fill_n(o.row(b, h, i), width.e, Real{0});
    const Fault injected = std::exchange(fault, Fault::kNone);  // the run itself is right
    pairs(run, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
      const Real weight = std::max(dot(q.row(b, h, i), k.row(b, h, j), width.d), Real{0});
      for (int64_t c = 0; c < width.e; ++c) o.row(b, h, i)[c] += weight * v.row(b, h, j)[c];
    });
    fault = injected;
  }

  template <class Real>
  void gradients(const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    const View<const Real> q(run, ports.q), k(run, ports.k), v(run, ports.v), g(grad, ports.o);
    const View<Real> dq(grad, ports.q), dk(grad, ports.k), dv(grad, ports.v);
    const auto clear = [&](const View<Real>& to, int64_t rows, int64_t n) {
      for (int64_t b = 0; b < run.batch; ++b)
        for (int64_t h = 0; h < width.heads; ++h)
          for (int64_t i = fault == Fault::kLeftAsItWas ? 1 : 0; i < rows; ++i)
            std::fill_n(to.row(b, h, i), n, Real{0});
    };
    clear(dq, run.queries, width.d);
    clear(dk, run.keys, width.d);
    clear(dv, run.keys, width.e);
    pairs(run, [&](int64_t b, int64_t h, int64_t i, int64_t j) {
      const Real weight = dot(q.row(b, h, i), k.row(b, h, j), width.d);
      if (weight <= 0) return;
      const Real dw = dot(g.row(b, h, i), v.row(b, h, j), width.e) * Real(fault == Fault::kWrongFactor ? 1.0001 : 1);
      for (int64_t c = 0; c < width.d; ++c) {
        dq.row(b, h, i)[c] += dw * k.row(b, h, j)[c];
        dk.row(b, h, j)[c] += dw * q.row(b, h, i)[c];
      }
      for (int64_t c = 0; c < width.e; ++c) dv.row(b, h, j)[c] += weight * g.row(b, h, i)[c];
    });
    if (fault == Fault::kSaved) *static_cast<char*>(run.saved) += 1;
    if (fault == Fault::kInput) const_cast<Real*>(q.row(0, 0, 0))[0] += 1;
    if (fault == Fault::kGap) dq.row(0, width.heads - 1, 0)[width.d] = 0;
    if (fault == Fault::kScratch) static_cast<char*>(run.exec->scratch)[ATTN_ALIGN] = 0;
  }

  Widths width;
  bool causal;
  QkvPorts ports;
};

double checked(Fault injected, const char* only = nullptr) {
  fault = injected;
  GradientCheck check;
  check.allowed = [only](const Situation& s) { return only == nullptr || s.name == std::string(only); };
  const double error = check_gradients(Table<Weighed>::table(), {}, check);
  fault = Fault::kNone;
  return error;
}

TEST(Gradient, PassesWhatIsRightAtKinksToo) { EXPECT_LE(checked(Fault::kNone), 1e-7); }

TEST(Gradient, FailsWhatIsWrong) {
  const auto fails = [](Fault injected, const char* only) {
    testing::TestPartResultArray failures;
    {
      const testing::ScopedFakeTestPartResultReporter reporter(
          testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
      checked(injected, only);
    }
    return failures.size() > 0;
  };
  for (const char* situation : {"cross", "small cross"}) {
    EXPECT_FALSE(fails(Fault::kNone, situation));
    EXPECT_TRUE(fails(Fault::kWrongFactor, situation)) << situation;
    EXPECT_TRUE(fails(Fault::kLeftAsItWas, situation)) << situation;
  }
  for (const char* situation : {"cross padded", "small cross padded"})
    EXPECT_TRUE(fails(Fault::kPaddedRows, situation)) << situation;
  for (const char* situation : {"causal", "small causal"}) EXPECT_TRUE(fails(Fault::kFuture, situation)) << situation;
  EXPECT_TRUE(fails(Fault::kNone, "no such situation"));
}

TEST(Gradient, FailsWhatWritesElsewhere) {
  for (const Fault injected : {Fault::kSaved, Fault::kInput, Fault::kGap, Fault::kScratch}) {
    EXPECT_THROW(checked(injected, "small cross"), conformance::Violation) << static_cast<int>(injected);
    fault = Fault::kNone;
  }
}

}  // namespace
}  // namespace attnkit::test
