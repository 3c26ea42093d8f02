// nystromformer: softmax attention through landmarks, the means of segments of the sequence.
// The slow form to compare with the paper: reference.hpp.
//
// Xiong et al.: Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention, AAAI 2021, arXiv:2102.03902,
// Eq. 13 and 14.
//
//   O = softmax(Q L_k^T / sqrt(D)) Z softmax(L_q K^T / sqrt(D)) V  (+ conv V),   Z ~ pinv(A)
//   A = softmax(L_q L_k^T / sqrt(D)),   row t of L_q, L_k: the mean of positions [t s, (t+1) s), s = N / l, l landmarks
//   Z_0 = A^T / (largest column sum of A),   Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z))), 6 times
//
// A row that is not a multiple of l long is padded to one with zeros, which enter the means; s = 1 is exact softmax.
// Cost per head: l (2 (D+E) + 5)(N + M + l) + 8 * 6 l^3 flops.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/work.hpp>

#include "gradient.hpp"
#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Square;
using attnkit::View;
using attnkit::whole_doubles;
using nystromformer::Shape;
namespace simd = attnkit::simd;

// A worker's scratch for rows of up to n queries and m keys.
struct Scratch {
  float* all;  // keys, transposed
  // l x l; landmarks of queries and keys; l x E.  Not there when no row needs landmarks.
  double *a = nullptr, *z = nullptr, *work = nullptr, *queries = nullptr, *keys = nullptr, *in = nullptr,
         *out = nullptr;
  float *landmark_q = nullptr, *landmark_k = nullptr, *mixed = nullptr;
  Scratch(Layout& layout, const Shape& s, int64_t n, int64_t m) : all(layout.take(s.d * simd::whole_lanes(m))) {
    if (s.segment(std::max(n, m)) <= 1) return;
    const int64_t l = s.landmarks, square = Square(l).size(), wide = l * whole_doubles(s.e);
    a = layout.take<double>(square);
    z = layout.take<double>(square);
    work = layout.take<double>(3 * square);
    queries = layout.take<double>(l * s.d);
    keys = layout.take<double>(s.d * whole_doubles(l));
    in = layout.take<double>(wide);
    out = layout.take<double>(wide);
    landmark_q = layout.take(l * s.d);
    landmark_k = layout.take(s.d * simd::whole_lanes(l));
    mixed = layout.take(l * s.e);
  }
};

// One run; called for each head of each batch row.
struct Run {
  const Shape& shape;
  const attn_run& run;
  const attnkit::Request& bounds;
  float scale;
  attnkit::Qkv<> x;
  View<const float> conv;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t b, int64_t h, void* memory) const {
    const Shape& s = shape;
    const attnkit::Sight sight(run, b, false);
    const int64_t queries = sight.queries, n = sight.fresh, lanes = simd::whole_lanes(n);
    if (queries == 0 || n == 0) return;
    Layout layout(memory);
    const Scratch scratch(layout, s, bounds.queries, bounds.keys);
    const int64_t segment = s.segment(std::max(queries, n));
    simd::pack_keys<Isa>(
        n, s.d, [&](int64_t j) { return x.k.row(b, h, j); }, scratch.all, lanes);
    simd::Memory keys{scratch.all, lanes, x.v.row(b, h, 0), x.v.next, n, s.d, s.e};
    if (segment > 1) keys = through_landmarks<Isa>(b, h, segment, queries, keys, scratch);
    for (int64_t i = 0; i < queries; i += simd::kQueries)
      simd::attend<Isa>(x.q.row(b, h, i), x.q.next, std::min(simd::kQueries, queries - i), keys, scale,
                        x.o.row(b, h, i), x.o.next);
    if (conv.data) convolve(b, h, queries, n);
  }

  // Stands for all keys of a query: the landmarks of the keys, each with its row of Z B V as a value.
  template <class Isa>
  ATTNKIT_INLINE simd::Memory through_landmarks(int64_t b, int64_t h, int64_t segment, int64_t queries,
                                                const simd::Memory& all, const Scratch& p) const {
    const Shape& s = shape;
    const int64_t l = s.landmarks, lanes = simd::whole_lanes(l);
    const Square square(l);
    nystromformer::means(s, x.q, b, h, segment, queries, p.queries, s.d, 1);
    nystromformer::means(s, x.k, b, h, segment, all.n, p.keys, 1, square.row);
    for (int64_t i = 0; i < l * s.d; ++i) p.landmark_q[i] = static_cast<float>(p.queries[i]);
    for (int64_t f = 0; f < s.d; ++f)
      for (int64_t t = 0; t < l; ++t) p.landmark_k[f * lanes + t] = static_cast<float>(p.keys[f * square.row + t]);
    square.diagonal(0, p.a);
    simd::add_product<Isa, double>({p.queries, s.d, 1}, {p.keys, s.d, l, square.row}, {p.a, l, l, square.row});
    nystromformer::softmax_rows(square, 1 / std::sqrt(static_cast<double>(s.d)), p.a);
    attnkit::inverse(square, s.iterations, p.a, p.z, 0, p.work);
    for (int64_t t = 0; t < l; t += simd::kQueries)
      simd::attend<Isa>(p.landmark_q + t * s.d, s.d, std::min(simd::kQueries, l - t), all, scale, p.mixed + t * s.e,
                        s.e);
    mix<Isa>(square, p);
    return {p.landmark_k, lanes, p.mixed, s.e, l, s.d, s.e};
  }

  // The l rows of B V become those of Z B V.
  template <class Isa>
  ATTNKIT_INLINE void mix(const Square& square, const Scratch& p) const {
    const int64_t l = square.n, e = shape.e, row = whole_doubles(e);
    for (double* matrix : {p.in, p.out}) std::memset(matrix, 0, static_cast<size_t>(l * row) * sizeof(double));
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) p.in[t * row + c] = double{p.mixed[t * e + c]};
    simd::add_product<Isa, double>({p.z, square.row, 1}, {p.in, l, row, row}, {p.out, l, row, row});
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) p.mixed[t * e + c] = static_cast<float>(p.out[t * row + c]);
  }

  // o_i += sum_u w_u v_(i + u - kernel / 2), values past the ends being zero.
  ATTNKIT_INLINE void convolve(int64_t b, int64_t h, int64_t queries, int64_t n) const {
    const Shape& s = shape;
    const float* w = conv.row(h);
    for (int64_t i = 0; i < queries; ++i) {
      float* o = x.o.row(b, h, i);
      const int64_t first = i - s.kernel / 2;
      for (int64_t j = std::max<int64_t>(0, first); j < std::min(n, first + s.kernel); ++j) {
        const float *v = x.v.row(b, h, j), weight = w[j - first];
        for (int64_t c = 0; c < s.e; ++c) o[c] += weight * v[c];
      }
    }
  }
};

struct Nystromformer : nystromformer::Model {
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // of a worker in scratch
    attnkit::Request bounds;
  };

  Nystromformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports) : Model(b, values, ports) {
    if (conv) learned.add(conv, shape.kernel, true);
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    Plan plan{0, 0, r};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      plan.backward_bytes = Layout::measure<nystromformer::GradientScratch<decltype(real)>>(shape, r.queries, r.keys);
    });
    plan.run_bytes =
        info.scratch(r, r.is_f64() ? plan.backward_bytes : Layout::measure<Scratch>(shape, r.queries, r.keys));
    info.train(r, 0, plan.backward_bytes, r.real_bytes(r.batch * shape.heads * shape.kernel));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto flops = static_cast<double>(shape.flops(run.queries, run.keys));
    if (attnkit::is_f64(run, io.o)) {
      const attnkit::Qkv<double> x(run, io);
      heads<double>(plan, run, x, [&](const auto& head, int64_t) { head.write(x.o); });
      return;
    }
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)));
    simd::for_heads(run, shape.heads, {flops, plan.run_bytes},
                    Run{shape, run, plan.bounds, scale, {run, io}, {run, conv}});
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    attnkit::with_real(attnkit::is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      auto* sums =
          reinterpret_cast<Real*>(static_cast<char*>(run.exec->scratch) + plan.backward_bytes * plan.bounds.workers);
      std::fill(sums, sums + run.batch * shape.heads * shape.kernel, Real{0});
      const attnkit::Qkv<Real> x(run, io);
      const attnkit::QkvGrad<Real> g(grad, io);
      heads<Real>(plan, run, x, [&](const auto& head, int64_t item) { head(g, sums + item * shape.kernel); });
      learned.collect(grad, shape.heads, sums);
    });
  }

  // Calls body(head, item) for all that have rows.
  template <class Real, class Body>
  void heads(const Plan& plan, const attn_run& run, const attnkit::Qkv<Real>& x, const Body& body) const {
    const auto flops = 3 * static_cast<double>(shape.flops(run.queries, run.keys));
    attnkit::for_each_head(run, shape.heads, {flops, plan.backward_bytes}, [&](int64_t b, int64_t h, void* memory) {
      const attnkit::Sight sight(run, b, false);
      if (sight.queries == 0 || sight.fresh == 0) return;
      Layout layout(memory);
      const nystromformer::GradientScratch<Real> scratch(layout, shape, plan.bounds.queries, plan.bounds.keys);
      const View<const Real> filter(run, conv);
      body(nystromformer::GradientHead<Real>{shape, b, h, sight.queries, sight.fresh, x, filter, scratch},
           b * shape.heads + h);
    });
  }

  attnkit::Learned learned;
};

}  // namespace

ATTNKIT_PLUGIN(Nystromformer)
