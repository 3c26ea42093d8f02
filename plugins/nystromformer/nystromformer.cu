// nystromformer on CUDA: the mathematics of nystromformer.cpp.
#include <attnkit/kernels/cuda/attend_gradient.hpp>
#include <attnkit/kernels/cuda/train_halves.hpp>

#include "cuda/gradient.hpp"
#include "model.hpp"

namespace {

using namespace nystromformer::cuda;
using attnkit::Layout;
using attnkit::View;
namespace softmax = attnkit::cuda::attend;

// Keys of one type, whatever queries are of.
template <class K>
struct KeysOf : softmax::Everywhere {
  static constexpr bool kDecodes = false;
  template <class T>
  using Key = K;
};

// Of a run, which keeps no steps of Z, and of a gradient, which keeps all.
template <class Real>
struct Scratch {
  const bool landmarks;      // can a row need them?
  const int64_t rows, kept;  // of a head in what queries attend to; steps
  int32_t *own, *seen;
  Real *k, *mixed, *q = nullptr, *bv = nullptr;
  double *wide_q = nullptr, *wide_k = nullptr, *sums = nullptr;
  double *a = nullptr, *z = nullptr, *y = nullptr, *u = nullptr, *w = nullptr;
  Scratch(Layout& layout, const nystromformer::Shape& s, int64_t batch, int64_t queries, int64_t keys,
          int64_t steps = 0)
      : landmarks(s.segment(std::max(queries, keys)) > 1), rows(landmarks ? s.landmarks : keys), kept(steps) {
    const int64_t all = batch * s.heads * rows;
    for (int32_t** part : {&own, &seen}) *part = layout.take<int32_t>(batch);
    k = layout.take<Real>(all * s.d);
    mixed = layout.take<Real>(all * s.e);
    if (!landmarks) return;
    q = layout.take<Real>(all * s.d);
    bv = layout.take<Real>(all * s.e);
    for (double** part : {&wide_q, &wide_k}) *part = layout.take<double>(all * s.d);
    sums = layout.take<double>(all);
    z = layout.take<double>((kept + 1) * all * rows);
    for (double** part : {&a, &y, &u, &w}) *part = layout.take<double>(all * rows);
  }
};

template <class Real>
struct GradientScratch : Scratch<Real> {
  Real *o, *lse, *given_out, *dk, *dmixed, *learned, *lse_of_landmarks = nullptr, *dq = nullptr, *dbv = nullptr;
  double *to = nullptr, *given = nullptr, *dy = nullptr, *dz = nullptr;
  GradientScratch(Layout& layout, const nystromformer::Shape& s, int64_t batch, int64_t queries, int64_t keys)
      : Scratch<Real>(layout, s, batch, queries, keys, s.iterations) {
    const int64_t pairs = batch * s.heads, all = pairs * this->rows;
    o = layout.take<Real>(pairs * queries * s.e);
    lse = layout.take<Real>(pairs * queries);
    given_out = layout.take<Real>(pairs * std::max(queries, this->rows));
    dk = layout.take<Real>(all * s.d);
    dmixed = layout.take<Real>(all * s.e);
    learned = layout.take<Real>(pairs * s.kernel);
    if (!this->landmarks) return;
    lse_of_landmarks = layout.take<Real>(all);
    dq = layout.take<Real>(all * s.d);
    dbv = layout.take<Real>(all * s.e);
    for (double** part : {&to, &given, &dy, &dz}) *part = layout.take<double>(all * this->rows);
  }
};

struct Nystromformer : nystromformer::Model {
  static constexpr attnkit::About about = on_cuda(Model::about);
  using Model::Model;
  struct Plan {
    int keys;  // of a tile
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    const Plan plan{softmax::plan(shape, r, info)};
    const auto measure = [&](auto real) {
      using Real = decltype(real);
      info.scratch_bytes = Layout::measure<Scratch<Real>>(shape, r.batch, r.queries, r.keys);
      info.train(r, 0, 0, Layout::measure<GradientScratch<Real>>(shape, r.batch, r.queries, r.keys));
    };
    if (r.is_f64())
      measure(double{});
    else
      measure(float{});
    return plan;
  }

  void run(const Plan& plan, const attn_run& r) const {
    if (r.batch == 0 || r.queries == 0) return;
    with_type<true>(io.o.of(r.ports), [&](auto type) {
      using T = decltype(type);
      Layout layout(r.exec->scratch);
      const Scratch<RealOf<T>> scratch(layout, shape, r.batch, r.queries, r.keys);
      const View<T> o(r, io.o);
      attend<T>(plan, r, scratch, o);
      if (conv) convolve<T>(r, View<const T>(r, io.v), o, false);
    });
  }

  void backward(const Plan& plan, const attn_grad& g) const {
    if (g.run->batch == 0) return;
    with_type<true>(io.o.of(g.run->ports), [&](auto type) {
      using T = decltype(type);
      if constexpr (sizeof(T) >= sizeof(float)) backward_in<T>(plan, g);
    });
  }

 private:
  template <class T>
  Rows<T> rows_of(T* data, int64_t rows, int64_t width) const {
    View<T> view;
    view.data = data;
    view.batch = shape.heads * rows * width;
    view.head = rows * width;
    view.next = width;
    return view;
  }
  Sizes sizes() const {
    return {static_cast<int>(shape.heads), static_cast<int>(shape.d), static_cast<int>(shape.e),
            static_cast<int>(shape.landmarks), shape.length};
  }
  int pairs(const attn_run& r) const { return static_cast<int>(r.batch * shape.heads); }
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.d)); }

  template <class Argument>
  void start(const attn_run& r, void (*kernel)(Argument), int64_t blocks, unsigned threads, const Argument& w) const {
    if (blocks > 0) launch(about.name, kernel, {dim3(static_cast<unsigned>(blocks)), threads}, *r.exec, w);
  }

  // Of landmarks to keys, and of queries to landmarks.
  template <class Real>
  static attn_run landmarks_to_keys(attn_run r, const Scratch<Real>& p) {
    r.queries = p.rows;
    r.q_len = p.own;
    return r;
  }
  template <class Real>
  static attn_run queries_to_landmarks(attn_run r, const Scratch<Real>& p) {
    r.keys = p.rows;
    r.k_len = p.seen;
    return r;
  }
  template <class T, class K>
  void weigh(const Plan& plan, const attn_run& r, const Rows<const T>& q, const Rows<const K>& k,
             const Rows<const K>& v, const Rows<T>& o, RealOf<T>* lse) const {
    softmax::run(about.name, *r.exec,
                 softmax::Work<T, KeysOf<K>>{softmax::Sizes(shape),
                                             q,
                                             k,
                                             v,
                                             o,
                                             Lengths(r, false),
                                             States(r),
                                             lse,
                                             nullptr,
                                             static_cast<RealOf<T>>(scale()),
                                             pairs(r),
                                             0,
                                             {}},
                 plan.keys);
  }

  // out = diagonal I + factor left right + times plus, of l rows.
  template <class Out>
  struct Rest {
    double diagonal = 0, factor = 1, times = 0;
    const Out* plus = nullptr;
  };
  template <class Left, class Right, class Out>
  void multiply(const attn_run& r, const int32_t* own, const Matrix<Left>& left, const Matrix<Right>& right,
                int64_t depth, int64_t columns, Out* out, const Rest<Out>& rest = {}) const {
    const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile; };
    start(r, product_kernel<Left, Right, Out>, pairs(r) * tiles(shape.landmarks) * tiles(columns), kMultipliers,
          Product<Left, Right, Out>{left, right, static_cast<int>(shape.landmarks), static_cast<int>(depth),
                                    static_cast<int>(columns), out, rest.diagonal, rest.factor, rest.times, rest.plus,
                                    own, static_cast<int>(shape.heads)});
  }
  template <class T>
  Matrix<T> matrix(const T* data, int64_t width) const {
    return {data, static_cast<int>(shape.landmarks), static_cast<int>(width)};
  }
  template <class Real>
  auto squares(const attn_run& r, const Scratch<Real>& p) const {
    return [this, &r, &p](const double* a, const double* b, double* to, const Rest<double>& rest = {}) {
      const int64_t l = shape.landmarks;
      multiply(r, p.own, matrix(a, l), matrix(b, l), l, l, to, rest);
    };
  }
  template <class Real>
  Squares squares_of(const Scratch<Real>& p) const {
    return {p.a, p.z, p.sums, p.own, static_cast<int>(shape.heads), static_cast<int>(shape.landmarks), scale()};
  }

  // y = a z, u = -(15 I - y (7 I - y)), w = 13 I + y u.
  template <class Real>
  void step(const attn_run& r, const Scratch<Real>& p, const double* z, double* y) const {
    const auto square = squares(r, p);
    square(p.a, z, y);
    square(y, y, p.u, {-15, -1, 7, y});
    square(y, p.u, p.w, {13});
  }

  // o without the convolution.  lse: log sums of the softmaxes of queries and of landmarks, if they are kept.
  template <class T>
  void attend(const Plan& plan, const attn_run& r, const Scratch<RealOf<T>>& p, const Rows<T>& o,
              RealOf<T>* lse = nullptr, RealOf<T>* lse_of_landmarks = nullptr) const {
    using Real = RealOf<T>;
    const int64_t l = shape.landmarks, d = shape.d, e = shape.e;
    const View<const T> q(r, io.q), k(r, io.k), v(r, io.v);
    start(r, means_kernel<T>, pairs(r) * std::max<int64_t>(p.rows, 1), kThreads / 2,
          Means<T>{sizes(), q, k, v, Lengths(r, false), static_cast<int>(p.rows), p.wide_q, p.wide_k, p.q, p.k, p.mixed,
                   p.own, p.seen});
    if (p.landmarks) {
      multiply(r, p.own, matrix(p.wide_q, d), matrix(p.wide_k, d).transposed(), d, l, p.a);
      start(r, begin_kernel, pairs(r), kThreads, squares_of(p));
      double *z = p.z, *y = p.y;
      for (int64_t x = 0; x < shape.iterations; ++x) {
        step(r, p, z, y);
        double* const next = p.kept > 0 ? z + pairs(r) * l * l : y;
        squares(r, p)(z, p.w, next, {0, 0.25});
        if (p.kept == 0) y = z;
        z = next;
      }
      weigh<Real, T>(plan, landmarks_to_keys(r, p), rows_of<const Real>(p.q, l, d), k, v, rows_of(p.bv, l, e),
                     lse_of_landmarks);
      multiply(r, p.own, matrix(z, l), matrix(p.bv, e), l, e, p.mixed);
    }
    if (r.queries > 0)
      weigh<T, Real>(plan, queries_to_landmarks(r, p), q, rows_of<const Real>(p.k, p.rows, d),
                     rows_of<const Real>(p.mixed, p.rows, e), o, lse);
  }

  template <class T>
  Convolution<T> convolution(const attn_run& r, const Rows<const T>& in, const Rows<T>& out, bool turned) const {
    const int64_t tiles = ((turned ? r.keys : r.queries) + kConvolved - 1) / kConvolved;
    return {in,
            out,
            View<const RealOf<T>>(r, conv),
            Lengths(r, false),
            static_cast<int>(shape.heads),
            static_cast<int>(shape.e),
            static_cast<int>(shape.kernel),
            static_cast<int>(tiles),
            turned};
  }
  template <class T>
  void convolve(const attn_run& r, const Rows<const T>& in, const Rows<T>& out, bool turned) const {
    const Convolution<T> w = convolution<T>(r, in, out, turned);
    start(r, convolve_kernel<T>, int64_t{pairs(r)} * w.tiles, kThreads, w);
  }

  template <class Real>
  void backward_in(const Plan& plan, const attn_grad& g) const {
    const attn_run& r = *g.run;
    Layout layout(r.exec->scratch);
    const GradientScratch<Real> p(layout, shape, r.batch, r.queries, r.keys);
    const View<const Real> given(g, io.o), v(r, io.v);
    const View<Real> dq(g, io.q), dk(g, io.k), dv(g, io.v);
    const Rows<Real> o = rows_of(p.o, r.queries, shape.e);
    attend<Real>(plan, r, p, o, p.lse, p.lse_of_landmarks);
    differentiate<Real>(queries_to_landmarks<Real>(r, p), p, View<const Real>(r, io.q),
                        rows_of<const Real>(p.k, p.rows, shape.d), rows_of<const Real>(p.mixed, p.rows, shape.e),
                        rows_of<const Real>(p.o, r.queries, shape.e), given, dq, rows_of(p.dk, p.rows, shape.d),
                        rows_of(p.dmixed, p.rows, shape.e), p.lse);
    if (p.landmarks) through_landmarks<Real>(r, p, dk, dv);
    const int64_t tiles = (std::max(r.queries, r.keys) + kConvolved - 1) / kConvolved;
    start(r, spread_kernel<Real>, pairs(r) * tiles, kThreads,
          Spread<Real>{sizes(), dq, dk, dv, Lengths(r, false), static_cast<int>(p.rows), p.dq, p.dk, p.dmixed,
                       static_cast<int>(tiles)});
    if (!conv) return;
    if (dv.data) convolve<Real>(r, given, dv, true);
    const View<Real> filter(g, conv);
    if (!filter.data) return;
    const Lesson<Real> lesson{convolution<Real>(r, v, View<Real>{}, false), given, p.learned, filter, r.batch};
    start(r, learn_kernel<Real>, pairs(r) * ((shape.kernel + kTaps - 1) / kTaps), kThreads, lesson);
    start(r, collect_kernel<Real>, (shape.heads * shape.kernel + kThreads - 1) / kThreads, kThreads, lesson);
  }

  template <class Real>
  void differentiate(const attn_run& r, const GradientScratch<Real>& p, const Rows<const Real>& q,
                     const Rows<const Real>& k, const Rows<const Real>& v, const Rows<const Real>& o,
                     const Rows<const Real>& given, const Rows<Real>& dq, const Rows<Real>& dk, const Rows<Real>& dv,
                     const Real* lse) const {
    softmax::run_backward(about.name, *r.exec,
                          softmax::GradientWork<Real, softmax::Everywhere>{softmax::Sizes(shape), q, k, v, o, given, dq,
                                                                           dk, dv, Lengths(r, false), lse, p.given_out,
                                                                           static_cast<Real>(scale()), pairs(r)});
  }

  // From the gradients of U and of the landmarks of keys: those of B's keys and values, and of all landmarks.
  template <class Real>
  void through_landmarks(const attn_run& r, const GradientScratch<Real>& p, const Rows<Real>& dk,
                         const Rows<Real>& dv) const {
    const int64_t l = shape.landmarks, d = shape.d, e = shape.e, all = pairs(r) * l * l;
    const auto square = squares<Real>(r, p);
    multiply(r, p.own, matrix(p.z + shape.iterations * all, l).transposed(), matrix(p.dmixed, e), l, e, p.dbv);
    // Back through the steps, gradients of squares transposed as in kernels/inverse.hpp; `given`, once it has been
    // multiplied, is the memory of that of u.
    multiply(r, p.own, matrix(p.bv, e), matrix(p.dmixed, e).transposed(), e, l, p.given);
    double *given = p.given, *dz = p.dz, *const dw = p.w, *const dy = p.dy;
    for (int64_t x = shape.iterations; x-- > 0;) {
      const double* const z = p.z + x * all;
      step<Real>(r, p, z, p.y);
      square(p.w, given, dz, {0, 0.25});
      square(given, z, dw, {0, 0.25});
      double* const du = given;
      square(dw, p.y, du);
      square(p.u, dw, dy, {0, 1, 7, du});
      square(p.y, du, dy, {0, -1, 1, dy});
      square(du, p.y, dy, {0, -1, 1, dy});
      square(z, dy, p.to, {0, 1, 1, x + 1 < shape.iterations ? p.to : nullptr});
      square(dy, p.a, dz, {0, 1, 1, dz});
      std::swap(given, dz);
    }
    start(r, end_kernel, pairs(r), kThreads, Slope{squares_of<Real>(p), given, p.to});
    differentiate<Real>(landmarks_to_keys<Real>(r, p), p, rows_of<const Real>(p.q, l, d), View<const Real>(r, io.k),
                        View<const Real>(r, io.v), rows_of<const Real>(p.bv, l, e), rows_of<const Real>(p.dbv, l, e),
                        rows_of(p.dq, l, d), dk, dv, p.lse_of_landmarks);
    multiply(r, p.own, matrix(p.to, l).transposed(), matrix(p.wide_k, d), l, d, p.dq, {0, 1, 1, p.dq});
    multiply(r, p.own, matrix(p.to, l), matrix(p.wide_q, d), l, d, p.dk, {0, 1, 1, p.dk});
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::TrainsHalves<Nystromformer>)
