// The gradient of s4d, and its f64 run.
//
// With g_t the gradient of y_t, z = e^(dA), b = (z - 1) / A, G = 2 C b:
//
//   du_t = D g_t + Re sum_n G_n m_t,n,   m_t = z m_(t+1) + g_t         the filter turned round
//   dG = conj sum_t g_t h_t,   dz = conj (G sum_t g_t s_t)
//   h_t = z h_(t-1) + u_t,   s_t = z s_(t-1) + h_(t-1)                   s is the slope of h in z
//
// and of the scan from the end the same with the directions exchanged.  The slopes run along with the states, so that
// no state is ever kept.
#pragma once
#include <attnkit/kernels/gradient.hpp>
#include <cmath>
#include <complex>

#include "discretise.hpp"

namespace s4d {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::View;
using simd::kLanes;
using Complex = std::complex<double>;

constexpr int64_t kRows = 64;  // rows that pass one group of states before the next group's turn

// One state of a channel.
struct Oscillation {
  double d;
  Complex a, step, b;  // A, z - 1, b
  Oscillation(double log_step, double log_decay, double frequency)
      : d(std::exp(log_step)), a(-std::exp(log_decay), frequency) {
    const Complex x = d * a;
    const double half = std::sin(x.imag() / 2);
    step = {std::expm1(x.real()) * std::cos(x.imag()) - 2 * half * half, std::exp(x.real()) * std::sin(x.imag())};
    b = a == 0.0 ? d : step / a;
  }
  Complex z() const { return step + 1.0; }
  // db/dA = d^2 (1 + (x - 1) e^x) / x^2, x = dA; near 0 its series, sum of x^k / (k! (k + 2)).
  Complex slope() const {
    const Complex x = d * a;
    if (std::abs(x) > 0.5) return d * d * (1.0 + (x - 1.0) * z()) / (x * x);
    Complex sum = 0, power = 1;
    for (int k = 0; k < 14; ++k) {
      sum += power / (k + 2.0);
      power *= x / (k + 1.0);
    }
    return d * d * sum;
  }
};

// The numbers of a vector's channels: 16, or 8 in f64.
template <class Isa, class Real>
using Channels = simd::Vector<Real, Isa>;

// An order of rows, and whether a row enters the states before it is read or after.
struct Order {
  bool backward, enters_first;
  int64_t row(int64_t i, int64_t rows) const { return backward ? rows - 1 - i : i; }
};

// R complex numbers of each channel, real part before imaginary part in memory.
template <class Isa, class Real, int R>
struct Group {
  using V = Channels<Isa, Real>;
  V re[R], im[R];
  ATTNKIT_INLINE explicit Group(const Real* p) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      re[r] = simd::at<Isa>(p + 2 * r * kLanes);
      im[r] = simd::at<Isa>(p + (2 * r + 1) * kLanes);
    }
  }
  ATTNKIT_INLINE void put(Real* p) const {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      simd::store(re[r], p + 2 * r * kLanes);
      simd::store(im[r], p + (2 * r + 1) * kLanes);
    }
  }
  // The first grows by g times that of x.
  ATTNKIT_INLINE void add(const V& g, const Group& x) {
    re[0] += g * x.re[0];
    im[0] += g * x.im[0];
  }
  // The r-th becomes itself + step times itself + (x, y).
  ATTNKIT_INLINE void move(int r, const Group& step, const V& x, const V& y) {
    const V next = (x + step.re[r] * re[r]) + (re[r] - step.im[r] * im[r]);
    im[r] = (y + step.re[r] * im[r]) + (im[r] + step.im[r] * re[r]);
    re[r] = next;
  }
};

// y += Re readout . states while rows u pass R states.
template <class Isa, int R, class Real>
ATTNKIT_INLINE void filter(const Real* steps, const Real* readouts, Real* states, const Order& order, const Real* u,
                           Real* y, int64_t rows) {
  const Group<Isa, Real, R> step(steps), readout(readouts);
  Group<Isa, Real, R> state(states);
  using V = Channels<Isa, Real>;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = order.row(i, rows) * kLanes;
    const V x = simd::at<Isa>(u + t);
    V sum = simd::at<Isa>(y + t);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      if (!order.enters_first) sum = (sum + readout.re[r] * state.re[r]) - readout.im[r] * state.im[r];
      state.move(r, step, x, V{});
      if (order.enters_first) sum = (sum + readout.re[r] * state.re[r]) - readout.im[r] * state.im[r];
    }
    simd::store(sum, y + t);
  }
  state.put(states);
}

// The gradients of one state of 16 channels: h, its slope s, and the sums of g h and g s.
struct Lesson {
  double h[2 * kLanes], s[2 * kLanes], gh[2 * kLanes], gs[2 * kLanes];
};

// Rows u pass a state of 8 of the channels, from `lane` on, in f64: rounded to f32, steps and states would be off by as
// much as the slopes are longer than the states, row after row.
template <class Isa, class Real>
ATTNKIT_INLINE void correlate(const double* steps, Lesson& lesson, int64_t lane, const Order& order, const Real* u,
                              const Real* g, int64_t rows) {
  using One = Group<Isa, double, 1>;
  using V = Channels<Isa, double>;
  const One step(steps + lane);
  One h(lesson.h + lane), s(lesson.s + lane), gh(lesson.gh + lane), gs(lesson.gs + lane);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t t = order.row(i, rows) * kLanes + lane;
    const V x = simd::load_as<V>(u + t), given = simd::load_as<V>(g + t);
    const auto add = [&]() __attribute__((always_inline)) {
      gh.add(given, h);
      gs.add(given, s);
    };
    if (!order.enters_first) add();
    s.move(0, step, h.re[0], h.im[0]);
    h.move(0, step, x, V{});
    if (order.enters_first) add();
  }
  h.put(lesson.h + lane);
  s.put(lesson.s + lane);
  gh.put(lesson.gh + lane);
  gs.put(lesson.gs + lane);
}

// Scratch of a worker, for 16 channels.  Of all states: steps, readouts by direction, filtered states, and what is
// learned by direction.  Rows: what enters, gradients, results.
template <class Real>
struct Work {
  double* exact;  // the steps in f64
  Real *steps, *readouts[2], *states, *u, *g, *y;
  Lesson* lessons[2];
  double* skip;
  Work(Layout& layout, const Shape& s) {
    const int64_t numbers = 2 * kLanes * s.half;
    exact = layout.take<double>(numbers);
    for (Real** part : {&steps, &readouts[0], &readouts[1], &states}) *part = layout.take<Real>(numbers);
    for (Lesson** part : {&lessons[0], &lessons[1]}) *part = layout.take<Lesson>(s.half);
    for (Real** part : {&u, &g, &y}) *part = layout.take<Real>(kRows * kLanes);
    skip = layout.take<double>(kLanes);
  }
};

// Sixteen channels, or the last ones, of all batch rows.
template <class Real>
struct Block {
  const Shape& shape;
  const attn_run& run;
  bool causal;
  Learned<const Real> learned;
  View<const Real> x;
  int64_t first;
  Work<Real> p;
  int64_t here = std::min(kLanes, shape.channels - first), numbers = 2 * kLanes * shape.half;

  Oscillation oscillation(int64_t c, int64_t n) const {
    return {double{learned.log_step[first + c]}, double{learned.log_decay.row(first + c)[n]},
            double{learned.frequency.row(first + c)[n]}};
  }
  Complex readout(int64_t direction, int64_t c, int64_t n) const {
    const Real* row = learned.readout[direction].row(0, first + c, n);
    return {double{row[0]}, double{row[1]}};
  }

  void discretise() const {
    const auto put = [](const Complex& value, auto* to, int64_t n, int64_t c) {
      using Number = std::decay_t<decltype(*to)>;
      to[2 * n * kLanes + c] = static_cast<Number>(value.real());
      to[(2 * n + 1) * kLanes + c] = static_cast<Number>(value.imag());
    };
    for (Real* part : {p.steps, p.readouts[0], p.readouts[1]}) std::fill(part, part + numbers, Real{0});
    std::fill(p.exact, p.exact + numbers, 0.0);
    for (int64_t c = 0; c < here; ++c)
      for (int64_t n = 0; n < shape.half; ++n) {
        const Oscillation o = oscillation(c, n);
        put(o.step, p.steps, n, c);
        put(o.step, p.exact, n, c);
        for (int64_t k = 0; k < shape.directions; ++k) put(2.0 * readout(k, c, n) * o.b, p.readouts[k], n, c);
      }
  }

  // Calls body(t, rows) with each tile of rows, in their order.
  template <class Body>
  static void tiles(int64_t rows, bool backward, const Body& body) {
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t t = backward ? (rows - 1 - i) / kRows * kRows : i;
      body(t, std::min(kRows, rows - t));
    }
  }

  // Calls body(row, i) with the queries i that read rows [t, t + rows): each its own, or the last one.
  template <class Body>
  void queries(const Sight& sight, int64_t t, int64_t rows, const Body& body) const {
    const int64_t begin = causal ? sight.q_pos : 0;
    for (int64_t row = t; row < t + rows; ++row)
      for (int64_t i = std::max<int64_t>(0, row - begin), end = row + 1 < sight.fresh ? row - begin + 1 : sight.queries;
           i < std::min(end, sight.queries); ++i)
        body(row - t, i);
  }

  // The number of channel c in the row of query i, whose heads need not lie beside each other.
  template <class T>
  T& number(const View<T>& view, int64_t b, int64_t i, int64_t c) const {
    const int64_t width = shape.channels / shape.heads;
    return view.row(b, (first + c) / width, i)[(first + c) % width];
  }

  void load_rows(int64_t b, int64_t t, int64_t rows) const {
    for (int64_t i = 0; i < rows; ++i) {
      const Real* row = x.row(b, 0, t + i) + first;
      std::copy(row, row + here, p.u + i * kLanes);
      std::fill(p.u + i * kLanes + here, p.u + (i + 1) * kLanes, Real{0});
    }
  }

  void load_gradients(const View<const Real>& given, int64_t b, const Sight& sight, int64_t t, int64_t rows) const {
    std::fill(p.g, p.g + rows * kLanes, Real{0});
    queries(sight, t, rows, [&](int64_t row, int64_t i) {
      for (int64_t c = 0; c < here; ++c) p.g[row * kLanes + c] += number(given, b, i, c);
    });
  }

  // p.y = skip rows if it begins; then the filter's results are added to it.
  void pass(int64_t direction, const Order& order, const Real* in, int64_t rows, bool begins) const {
    for (int64_t i = 0; i < rows * kLanes; ++i)
      p.y[i] = begins && i % kLanes < here ? learned.skip[first + i % kLanes] * in[i] : 0;
    attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      constexpr int R = decltype(isa)::rows / 2;
      const auto some = [&](auto count, int64_t n, int64_t lane) __attribute__((always_inline)) {
        const int64_t at = 2 * n * kLanes + lane;
        filter<decltype(isa), count>(p.steps + at, p.readouts[direction] + at, p.states + at, order, in + lane,
                                     p.y + lane, rows);
      };
      for (int64_t lane = 0; lane < kLanes; lane += simd::Lanes<Real>::count) {
        int64_t n = 0;
        for (; n + R <= shape.half; n += R) some(std::integral_constant<int, R>{}, n, lane);
        for (; n < shape.half; ++n) some(std::integral_constant<int, 1>{}, n, lane);
      }
    });
  }

  void learn(int64_t direction, const Order& order, int64_t rows) const {
    attnkit::in_vectors<float>([&](auto isa) __attribute__((always_inline)) {  // vectors, of doubles too
      for (int64_t n = 0; n < shape.half; ++n)
        for (const int64_t lane : {int64_t{0}, kDoubles})
          correlate<decltype(isa)>(p.exact + 2 * n * kLanes, p.lessons[direction][n], lane, order, p.u, p.g, rows);
    });
    for (int64_t i = 0; direction == 0 && i < rows * kLanes; ++i) p.skip[i % kLanes] += double{p.u[i]} * double{p.g[i]};
  }

  // o, in a run.
  void forward(const View<Real>& o) const {
    discretise();
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t k = 0; k < shape.directions; ++k) {
        const Sight sight(run, b, causal);
        const Order order{k == 1, k == 0};
        std::fill(p.states, p.states + numbers, Real{0});
        tiles(sight.fresh, order.backward, [&](int64_t t, int64_t rows) {
          load_rows(b, t, rows);
          pass(k, order, p.u, rows, k == 0);
          queries(sight, t, rows, [&](int64_t row, int64_t i) {
            for (int64_t c = 0; c < here; ++c) {
              Real& to = number(o, b, i, c);
              to = (k == 0 ? 0 : to) + p.y[row * kLanes + c];
            }
          });
        });
      }
  }

  // given: of o.  Adds to dx and to those of `to` that are not skipped.
  void backward(const View<const Real>& given, const View<Real>& dx, const Learned<Real>& to) const {
    discretise();
    for (Lesson* lessons : p.lessons) std::fill(lessons, lessons + shape.half, Lesson{});
    std::fill(p.skip, p.skip + kLanes, 0.0);
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t k = 0; k < shape.directions; ++k) {
        const Sight sight(run, b, causal);
        const Order order{k == 1, k == 0}, turned{k == 0, k == 0};
        for (int64_t n = 0; n < shape.half; ++n) std::memset(p.lessons[k][n].h, 0, offsetof(Lesson, gh));
        tiles(sight.fresh, order.backward, [&](int64_t t, int64_t rows) {
          load_rows(b, t, rows);
          load_gradients(given, b, sight, t, rows);
          learn(k, order, rows);
        });
        if (!dx) continue;
        std::fill(p.states, p.states + numbers, Real{0});
        tiles(sight.fresh, turned.backward, [&](int64_t t, int64_t rows) {
          load_gradients(given, b, sight, t, rows);
          pass(k, turned, p.g, rows, k == 0);
          for (int64_t i = 0; i < rows; ++i)
            for (int64_t c = 0; c < here; ++c) dx.row(b, 0, t + i)[first + c] += p.y[i * kLanes + c];
        });
      }
    for (int64_t c = 0; c < here; ++c) give(c, to);
  }

  // The gradients of channel c's tensors, from those of z, of b and of C.
  void give(int64_t c, const Learned<Real>& to) const {
    const auto add = [](Real& sum, double x) { sum += static_cast<Real>(x); };
    double step = 0;
    for (int64_t n = 0; n < shape.half; ++n) {
      const auto sum = [c](const double* sums) { return Complex{sums[c], sums[kLanes + c]}; };
      const Oscillation o = oscillation(c, n);
      Complex dz = 0, db = 0;
      for (int64_t k = 0; k < shape.directions; ++k) {
        const Complex twice = 2.0 * readout(k, c, n), dc = 2.0 * std::conj(o.b * sum(p.lessons[k][n].gh));
        dz += std::conj(twice * o.b * sum(p.lessons[k][n].gs));
        db += std::conj(twice * sum(p.lessons[k][n].gh));
        if (!to.readout[k]) continue;
        Real* row = to.readout[k].row(0, first + c, n);
        add(row[0], dc.real());
        add(row[1], dc.imag());
      }
      const Complex da = std::conj(o.d * o.z()) * dz + std::conj(o.slope()) * db;
      step += o.d * (std::conj(o.a * o.z()) * dz + std::conj(o.z()) * db).real();
      if (to.log_decay) add(to.log_decay.row(first + c)[n], o.a.real() * da.real());
      if (to.frequency) add(to.frequency.row(first + c)[n], da.imag());
    }
    if (to.log_step) add(to.log_step[first + c], step);
    if (to.skip) add(to.skip[first + c], p.skip[c]);
  }
};

}  // namespace s4d
