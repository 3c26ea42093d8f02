#include "support/gradient.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

namespace attnkit::test {

namespace {

// A gradient that should be zero is what rounding leaves: none is held to its own size where that is less than this
// part of the largest one's.
constexpr double kLeast = 1e-3;

// Calls f with each place of an array.
template <class Real, class F>
void each(const BasicArray<Real>& a, const F& f) {
  for (int64_t b = 0; b < a.batch; ++b)
    for (int64_t h = 0; h < a.heads; ++h)
      for (int64_t i = 0; i < a.rows; ++i)
        for (int64_t c = 0; c < a.width; ++c) f(b, h, i, c);
}

// Largest and RMS of a gradient's numbers.
struct Size {
  explicit Size(const Array64& a) {
    double sum = 0, count = 0;
    each(a, [&](auto... at) {
      largest = worse(std::abs(a.at(at...)), largest);
      sum += a.at(at...) * a.at(at...);
      ++count;
    });
    norm = std::sqrt(sum);
    rms = count > 0 ? std::sqrt(sum / count) : 0;
  }
  double largest = 0, norm = 0, rms = 0;
};

// What backward added to or wrote into each gradient.
template <class Real>
std::vector<Array64> made(const Mechanism& mech, const Gradients<Real>& before, const Gradients<Real>& after) {
  std::vector<Array64> made;
  for (size_t p = 0; p < after.size(); ++p) {
    made.emplace_back(after[p]);
    if (mech.ports()[p]->kind == ATTN_LEARNED)
      each(made[p], [&](auto... at) { made[p].at(at...) -= double{before[p].at(at...)}; });
  }
  return made;
}

// The sum of output times its gradient in each batch row, as a function of the inputs.
class Loss {
 public:
  Loss(Inputs64& in, const attn_request& request, const Call& call, const Gradients<double>& given)
      : plan_(*in.mech, request), call_(call), bound_(plan_, in, call_), given_(given) {}
  Row operator()() {
    bound_.run();
    Row sums(static_cast<size_t>(bound_.get().batch));
    for (size_t p = 0; p < bound_.outputs.size(); ++p)
      each(bound_.outputs[p], [&](int64_t b, int64_t h, int64_t i, int64_t c) {
        const double g = given_[p].at(b, h, i, c);
        if (!std::isnan(g)) sums[static_cast<size_t>(b)] += g * bound_.outputs[p].at(b, h, i, c);
      });
    return sums;
  }

 private:
  Planned plan_;
  Call call_;
  Bound<double> bound_;
  const Gradients<double>& given_;
};

using Move = std::function<void(Array64& x, double step)>;

// The largest distance in any batch row, or in their sum, between a central difference along a move and what it should
// be, over the gradient's size.  Some steps straddle a kink, and the smallest leave little but rounding; a wrong
// gradient is wrong with all of them.
double difference(Loss& loss, Array64& x, const Move& move, const Row& want, bool sum, double size) {
  const Array64 old = x;
  double best = std::numeric_limits<double>::infinity();
  for (const double step : {1e-5, 1e-4, 1e-6, 1e-7}) {
    move(x, step);
    Row above = loss();
    x = old;
    move(x, -step);
    const Row below = loss();
    x = old;
    double off = 0, total = 0;
    for (size_t b = 0; b < above.size(); ++b) {
      const double slope = (above[b] - below[b]) / (2 * step);
      total += slope;
      if (!sum) off = worse(off, std::abs(slope - want[b]));
    }
    if (sum) off = std::abs(total - want[0]);
    if (off < best) best = off;
    if (best <= size * kDifferenceGate / 100) break;
  }
  return best / size;
}

// Of each element, in all batch rows at once: these know nothing of each other.  Of a stored tensor, of some 256.
double element_error(Loss& loss, Array64& x, const Array64& gradient, bool stored, double size) {
  double worst = 0;
  const int64_t every = stored ? (x.rows + 255) / 256 : 1;
  for (int64_t h = 0; h < x.heads; ++h)
    for (int64_t i = 0; i < x.rows; i += every)
      for (int64_t c = 0; c < x.width; ++c) {
        Row want;
        for (int64_t b = 0; b < x.batch; ++b) want.push_back(gradient.at(b, h, i, c));
        const Move move = [&](Array64& a, double step) {
          for (int64_t b = 0; b < a.batch; ++b) a.at(b, h, i, c) += step;
        };
        worst = worse(worst, difference(loss, x, move, want, stored, size));
      }
  return worst;
}

double direction_error(Loss& loss, Array64& x, const Array64& gradient, bool stored, double size) {
  double worst = 0;
  for (const uint64_t seed : {11, 12}) {
    Array64 direction = x;
    direction.randomize(seed);
    Row want(static_cast<size_t>(x.batch));
    each(x, [&](int64_t b, auto... at) {
      want[static_cast<size_t>(b)] += gradient.at(b, at...) * direction.at(b, at...);
    });
    const Move move = [&](Array64& a, double step) {
      each(a, [&](auto... at) { a.at(at...) += step * direction.at(at...); });
    };
    worst = worse(worst, difference(loss, x, move, want, stored, size));
  }
  return worst;
}

// RMS of a - b over RMS of b, or over least where that is larger.
template <class Real>
double error_of(const BasicArray<Real>& a, const Array64& b, double least = 0) {
  double sum = 0, count = 0;
  each(b, [&](auto... at) {
    const double off = double{a.at(at...)} - b.at(at...);
    sum += off * off;
    ++count;
  });
  return sum == 0 ? 0 : std::sqrt(sum / count) / std::max(Size(b).rms, least);
}

// f32 against f64: the outputs, then the gradients.  A gradient much of which cancels has the rounding errors of what
// it was made of, which is of the size of the largest gradient: none is held to less than a tenth of what that one is.
void check_f32(Inputs& in, Training<double>& exact, const std::vector<Array64>& want, uint32_t flags, const Call& call,
               double gate, double largest) {
  const auto& ports = in.mech->ports();
  Training<float> training(in, flags, call);
  for (size_t p = 0; p < ports.size(); ++p)
    if (is_given(*ports[p])) {
      EXPECT_LE(error_of(training.outputs()[p], exact.outputs()[p]), gate / 2) << "f32 output " << ports[p]->name;
    }
  const Gradients<float> before = training.gradients();
  Gradients<float> grads = before;
  training.backward(grads);
  const std::vector<Array64> got = made(*in.mech, before, grads);
  for (size_t p = 0; p < ports.size(); ++p)
    if (!is_given(*ports[p]) && !grads[p].data().empty()) {
      EXPECT_LE(error_of(got[p], want[p], largest / 10), gate) << "f32 gradient of " << ports[p]->name;
    }
}

}  // namespace

double check_gradients(Inputs& in, uint32_t flags, const Call& call, bool every_element, double gate) {
  const Mechanism& mech = *in.mech;
  Inputs64 wide(in);
  Training<double> training(wide, flags, call);
  const Gradients<double> before = training.gradients();
  Gradients<double> grads = before;
  training.backward(grads);
  const std::vector<Array64> got = made(mech, before, grads);
  Call whole = call;
  Loss loss(wide, whole_request(wide, flags, whole, 1), whole, before);
  const auto asked = [&](size_t p) { return !is_given(*mech.ports()[p]) && !grads[p].data().empty(); };
  double largest = 0, rms = 0, worst = 0;
  for (size_t p = 0; p < got.size(); ++p)
    if (asked(p)) {
      EXPECT_TRUE(all_finite(got[p])) << mech.ports()[p]->name;
      largest = std::max(largest, Size(got[p]).largest);
      rms = std::max(rms, Size(got[p]).rms);
    }
  for (size_t p = 0; p < got.size(); ++p) {
    if (!asked(p)) continue;
    const bool stored = mech.ports()[p]->kind == ATTN_LEARNED;
    const Size own(got[p]);
    const double size = std::max(every_element ? own.largest : own.norm, largest * kLeast);
    if (size == 0) continue;  // no gradient at all: nothing was given or seen
    const double error = (every_element ? element_error : direction_error)(loss, wide.arrays[p], got[p], stored, size);
    EXPECT_LE(error, kDifferenceGate) << "gradient of " << mech.ports()[p]->name;
    worst = worse(worst, error);
  }
  check_f32(in, training, got, flags, call, gate, rms);
  return worst;
}

double check_gradients(const attn_plugin& plugin, const Settings& settings, const GradientCheck& check) {
  double worst = 0;
  int checked = 0;
  for (const bool small : {true, false})
    for (const Situation& s : small ? small_situations() : situations()) {
      if (check.allowed && !check.allowed(s)) continue;
      SCOPED_TRACE(s.name);
      std::optional<Mechanism> mech;
      Call call = s.call();
      const uint32_t flags = s.prefix ? ATTN_PREFIX : 0;
      try {
        mech.emplace(plugin, s.block, settings);
        Inputs in(*mech, s.batch, s.queries, s.keys, 3);
        Planned(*mech, whole_request(in, flags, call, 1));
      } catch (const Refused& refused) {
        if (refused.code != ATTN_UNSUPPORTED) throw;
        continue;
      }
      Inputs in(*mech, s.batch, s.queries, s.keys, 3);
      if (check.prepare) check.prepare(in);
      const bool aux = std::any_of(mech->ports().begin(), mech->ports().end(),
                                   [](const attn_port* port) { return port->kind == ATTN_AUX_IN; });
      for (const bool without_aux : aux ? std::vector{false, true} : std::vector{false}) {
        call.without_aux = without_aux;
        worst = worse(worst, check_gradients(in, flags, call, small, check.gate));
        ++checked;
      }
    }
  EXPECT_GT(checked, 0) << "no situation is one that the mechanism takes";
  return worst;
}

namespace {

template <class Real>
void fill(BasicInputs<Real>& in, const ByPort& numbers) {
  for (const auto& [name, rows] : numbers) {
    const uint32_t kind = in.mech->ports()[static_cast<size_t>(in.mech->find(name))]->kind;
    kind == ATTN_LEARNED || kind == ATTN_TABLE ? put(flat(rows), in[name]) : put(rows, in[name]);
  }
}

}  // namespace

double check_golden_gradients(const Mechanism& mech, const Call& call, const ByPort& inputs, const Matrix& given,
                              const ByPort& gradients) {
  const auto rows = [&](uint32_t kind) {
    for (const auto& [name, numbers] : inputs)
      if (mech.ports()[static_cast<size_t>(mech.find(name))]->kind == kind) return static_cast<int64_t>(numbers.size());
    return static_cast<int64_t>(given.size());
  };
  const uint32_t flags = call.visible.empty() ? 0 : ATTN_PREFIX;
  Inputs in(mech, 1, static_cast<int64_t>(given.size()), rows(ATTN_KEY), 1);
  fill(in, inputs);
  Inputs64 exact(in);
  fill(exact, inputs);
  Training<double> training(exact, flags, call);
  Gradients<double> before = training.gradients();
  for (size_t p = 0; p < before.size(); ++p)
    if (is_given(*mech.ports()[p])) before[p].set([](auto...) { return 0; });
  put(given, before[mech.output()]);
  Gradients<double> grads = before;
  training.backward(grads);
  const std::vector<Array64> got = made(mech, before, grads);
  double worst = 0, largest = 0;
  for (const Array64& gradient : got) largest = std::max(largest, Size(gradient).largest);
  for (const auto& [name, numbers] : gradients) {
    const auto p = static_cast<size_t>(mech.find(name));
    Array64 want = got[p];
    mech.ports()[p]->kind == ATTN_LEARNED ? put(flat(numbers), want) : put(numbers, want);
    double off = 0;
    each(want, [&](auto... at) { off = worse(off, std::abs(got[p].at(at...) - want.at(at...))); });
    const double error = off / std::max(Size(want).largest, largest * kLeast);
    EXPECT_LE(error, 1e-12) << "gradient of " << name;
    worst = worse(worst, error);
  }
  check_gradients(in, flags, call, true);
  return worst;
}

}  // namespace attnkit::test
