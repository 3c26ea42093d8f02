#include "core/conformance/difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnkit::core::conformance {

namespace {

using Row = std::vector<double>;

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

}  // namespace

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

template std::vector<Array64> made(const Mechanism&, const Gradients<float>&, const Gradients<float>&);
template std::vector<Array64> made(const Mechanism&, const Gradients<double>&, const Gradients<double>&);

double largest_of(const Array64& a) { return Size(a).largest; }

namespace {

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
  for (const double step : {1e-5, 1e-4, 1e-6, 3e-7, 1e-7}) {
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

// RMS of a gradient each of whose outputs' rows had a random sign: what it is made of does not cancel there.  A LEARNED
// gradient is a sum over all rows, a few numbers of which can be far smaller than that.  Zeros where there is none.
std::vector<double> uncancelled(const Mechanism& mech, Training<double>& training, const Gradients<double>& before) {
  constexpr int draws = 4;
  std::vector<double> squares(before.size());
  if (std::ranges::none_of(mech.ports(), [](const attn_port* p) { return p->kind == ATTN_LEARNED; })) return squares;
  for (uint64_t draw = 0; draw < draws; ++draw) {
    Gradients<double> grads = before;
    for (size_t p = 0; p < grads.size(); ++p) {
      if (!is_given(*mech.ports()[p])) continue;
      BasicArray<double>& g = grads[p];
      Random random(100 * draw + p);
      for (int64_t b = 0; b < g.batch; ++b)
        for (int64_t h = 0; h < g.heads; ++h)
          for (int64_t i = 0; i < g.rows; ++i)
            if ((random.bits() & 1) != 0)
              for (int64_t c = 0; c < g.width; ++c) g.at(b, h, i, c) *= -1;
    }
    training.backward(grads);
    const std::vector<Array64> got = made(mech, before, grads);
    for (size_t p = 0; p < got.size(); ++p) squares[p] += Size(got[p]).rms * Size(got[p]).rms / draws;
  }
  for (double& x : squares) x = std::sqrt(x);
  return squares;
}

// f32 against f64: the outputs, then the gradients.  A gradient much of which cancels has the rounding errors of what
// it was made of: a LEARNED one is not held to less than what it is uncancelled, another to a tenth of the largest.
void check_f32(Inputs& in, Training<double>& exact, const Gradients<double>& given, const std::vector<Array64>& want,
               uint32_t flags, const Call& call, double gate, double largest, std::vector<std::string>& problems) {
  const auto hold = [&](double error, double limit, const char* what, size_t p) {
    if (error <= limit) return;
    problems.push_back(fmt::format("f32 {} {} is {:.2g} from that of f64, at most {:.2g}", what,
                                   in.mech->ports()[p]->name, error, limit));
  };
  const auto& ports = in.mech->ports();
  Training<float> training(in, flags, call);
  for (size_t p = 0; p < ports.size(); ++p)
    if (is_given(*ports[p])) hold(error_of(training.outputs()[p], exact.outputs()[p]), gate / 2, "output", p);
  const Gradients<float> before = training.gradients();
  Gradients<float> grads = before;
  training.backward(grads);
  const std::vector<Array64> got = made(*in.mech, before, grads);
  const std::vector<double> terms = uncancelled(*in.mech, exact, given);
  for (size_t p = 0; p < ports.size(); ++p)
    if (!is_given(*ports[p]) && !grads[p].data().empty())
      hold(error_of(got[p], want[p], std::max(largest / 10, ports[p]->kind == ATTN_LEARNED ? terms[p] : 0)), gate,
           "gradient of", p);
}

}  // namespace

Differences differences(Inputs& in, uint32_t flags, const Call& call, bool every_element, double gate) {
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
  double largest = 0, rms = 0;
  Differences found;
  for (size_t p = 0; p < got.size(); ++p)
    if (asked(p)) {
      if (!all_finite(got[p]))
        found.problems.push_back(fmt::format("the gradient of {} is not finite", mech.ports()[p]->name));
      largest = std::max(largest, Size(got[p]).largest);
      rms = std::max(rms, Size(got[p]).rms);
    }
  for (size_t p = 0; p < got.size(); ++p) {
    if (!asked(p)) continue;
    const bool stored = mech.ports()[p]->kind == ATTN_LEARNED;
    const Size own(got[p]);
    const double size = std::max(every_element ? own.largest : own.norm, largest * kMinGradient);
    if (size == 0) continue;  // no gradient at all: nothing was given or seen
    const double error = (every_element ? element_error : direction_error)(loss, wide.arrays[p], got[p], stored, size);
    if (!(error <= kDifferenceGate))
      found.problems.push_back(fmt::format("the gradient of {} is {:.2g} from the central difference, at most {:.2g}",
                                           mech.ports()[p]->name, error, kDifferenceGate));
    found.worst = worse(found.worst, error);
  }
  check_f32(in, training, before, got, flags, call, gate, rms, found.problems);
  return found;
}

}  // namespace attnkit::core::conformance
