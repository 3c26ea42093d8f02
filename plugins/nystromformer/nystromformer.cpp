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
#include <attnkit/kernels/stages.hpp>

#include "gradient.hpp"
#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Square;
using attnkit::View;
using attnkit::whole_doubles;
using nystromformer::Landmarks;
using nystromformer::Shape;
namespace simd = attnkit::simd;

// Scratch of a head, for rows of up to n queries and m keys.
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

struct Job {
  const Shape& shape;
  const attn_run& run;
  const attnkit::Request& bounds;
  float scale;
  attnkit::Qkv<> x;
  View<const float> conv;
};

// The least of each that a worker takes.
constexpr int64_t kRows = 64, kLandmarks = 16;
constexpr int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Packs keys and takes the means; inverts A in one piece while others make B V; mixes Z B V; then queries attend.  Rows
// that need no landmarks have the first stage and the last.
struct Head {
  const Job& job;
  int64_t b, h, queries, n, segment;
  Scratch p;

  Head(const Job& j, int64_t row, int64_t head, void* memory) : Head(j, row, head, Layout(memory)) {}
  Head(const Job& j, int64_t row, int64_t head, Layout layout)
      : job(j), b(row), h(head), p(layout, j.shape, j.bounds.queries, j.bounds.keys) {
    const attnkit::Sight sight(j.run, b, false);
    queries = sight.queries;
    n = sight.fresh;
    segment = j.shape.segment(std::max(queries, n));
  }
  bool through_landmarks() const { return segment > 1; }
  int stages() const { return queries == 0 || n == 0 ? 0 : through_landmarks() ? 4 : 2; }
  int64_t pieces(int stage) const {
    const int64_t landmarks = through_landmarks() ? pieces_of(job.shape.landmarks, kLandmarks) : 0;
    if (stage == stages() - 1) return pieces_of(queries, kRows);
    if (stage == 0) return pieces_of(n, kRows) + landmarks;
    return stage == 1 ? 1 + landmarks : landmarks;
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void*) const {
    if (stage == stages() - 1) {
      answer<Isa>(begin * kRows, std::min(end * kRows, queries));
    } else if (stage == 0) {
      const int64_t packing = pieces_of(n, kRows);
      pack<Isa>(begin * kRows, std::min(end * kRows, n));
      if (end > packing) average(landmarks(std::max(begin - packing, int64_t{0}), end - packing));
    } else if (stage == 1) {
      if (begin == 0) invert<Isa>();
      meet<Isa>(landmarks(std::max(begin - 1, int64_t{0}), end - 1));
    } else {
      mix<Isa>(landmarks(begin, end));
    }
  }

  Landmarks landmarks(int64_t begin, int64_t end) const {
    return {begin * kLandmarks, std::min(end * kLandmarks, job.shape.landmarks)};
  }
  Square square() const { return Square(job.shape.landmarks); }
  int64_t lanes() const { return simd::whole_lanes(n); }
  simd::Memory keys() const {
    const attnkit::Qkv<>& x = job.x;
    return {p.all, lanes(), x.v.row(b, h, 0), x.v.next, n, job.shape.d, job.shape.e};
  }
  // Stands for all keys of a query: the landmarks of the keys, each with its row of Z B V as a value.
  simd::Memory landmark_keys() const {
    const Shape& s = job.shape;
    return {p.landmark_k, simd::whole_lanes(s.landmarks), p.mixed, s.e, s.landmarks, s.d, s.e};
  }

  template <class Isa>
  ATTNKIT_INLINE void pack(int64_t from, int64_t to) const {
    simd::pack_keys<Isa>(
        to - from, job.shape.d, [&](int64_t j) { return job.x.k.row(b, h, from + j); }, p.all + from, lanes());
  }

  ATTNKIT_INLINE void average(const Landmarks& some) const {
    const Shape& s = job.shape;
    const int64_t l_lanes = simd::whole_lanes(s.landmarks), row = square().row;
    nystromformer::means(s, some, job.x.q, b, h, segment, queries, p.queries, s.d, 1);
    nystromformer::means(s, some, job.x.k, b, h, segment, n, p.keys, 1, row);
    for (int64_t i = some.begin * s.d; i < some.end * s.d; ++i) p.landmark_q[i] = static_cast<float>(p.queries[i]);
    for (int64_t f = 0; f < s.d; ++f)
      for (int64_t t = some.begin; t < some.end; ++t)
        p.landmark_k[f * l_lanes + t] = static_cast<float>(p.keys[f * row + t]);
  }

  // Z of the landmarks.
  template <class Isa>
  ATTNKIT_INLINE void invert() const {
    const Shape& s = job.shape;
    const Square sq = square();
    sq.diagonal(0, p.a);
    simd::add_product<Isa, double>({p.queries, s.d, 1}, {p.keys, s.d, sq.n, sq.row}, {p.a, sq.n, sq.n, sq.row});
    nystromformer::softmax_rows(sq, 1 / std::sqrt(static_cast<double>(s.d)), p.a);
    attnkit::inverse(sq, s.iterations, p.a, p.z, 0, p.work);
  }

  // Rows of B V, also as doubles.
  template <class Isa>
  ATTNKIT_INLINE void meet(const Landmarks& some) const {
    const Shape& s = job.shape;
    const int64_t row = whole_doubles(s.e);
    for (int64_t t = some.begin; t < some.end; t += simd::kQueries)
      simd::attend<Isa>(p.landmark_q + t * s.d, s.d, std::min(simd::kQueries, some.end - t), keys(), job.scale,
                        p.mixed + t * s.e, s.e);
    for (int64_t t = some.begin; t < some.end; ++t)
      for (int64_t c = 0; c < row; ++c) p.in[t * row + c] = c < s.e ? double{p.mixed[t * s.e + c]} : 0;
  }

  // Rows of B V become those of Z B V.
  template <class Isa>
  ATTNKIT_INLINE void mix(const Landmarks& some) const {
    const int64_t e = job.shape.e, row = whole_doubles(e), count = some.end - some.begin;
    const Square sq = square();
    double* out = p.out + some.begin * row;
    std::memset(out, 0, static_cast<size_t>(count * row) * sizeof(double));
    simd::add_product<Isa, double>({p.z + some.begin * sq.row, sq.row, 1}, {p.in, sq.n, row, row},
                                   {out, count, row, row});
    for (int64_t t = 0; t < count; ++t)
      for (int64_t c = 0; c < e; ++c) p.mixed[(some.begin + t) * e + c] = static_cast<float>(out[t * row + c]);
  }

  template <class Isa>
  ATTNKIT_INLINE void answer(int64_t from, int64_t to) const {
    const attnkit::Qkv<>& x = job.x;
    const simd::Memory seen = through_landmarks() ? landmark_keys() : keys();
    for (int64_t i = from; i < to; i += simd::kQueries)
      simd::attend<Isa>(x.q.row(b, h, i), x.q.next, std::min(simd::kQueries, to - i), seen, job.scale, x.o.row(b, h, i),
                        x.o.next);
    if (job.conv.data) convolve(from, to);
  }

  // o_i += sum_u w_u v_(i + u - kernel / 2), values past the ends being zero.
  ATTNKIT_INLINE void convolve(int64_t from, int64_t to) const {
    const Shape& s = job.shape;
    const float* w = job.conv.row(h);
    for (int64_t i = from; i < to; ++i) {
      float* o = job.x.o.row(b, h, i);
      const int64_t first = i - s.kernel / 2;
      for (int64_t j = std::max<int64_t>(0, first); j < std::min(n, first + s.kernel); ++j) {
        const float *v = job.x.v.row(b, h, j), weight = w[j - first];
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
    simd::for_stages<Head>(run, shape.heads, flops, {plan.run_bytes, 0},
                           Job{shape, run, plan.bounds, scale, {run, io}, {run, conv}});
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
