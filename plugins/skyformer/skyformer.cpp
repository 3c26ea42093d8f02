// skyformer: the Gaussian kernel of queries and keys, approximated from a few sampled rows of both.
// The slow form to compare with the paper: reference.hpp.
//
// Chen, Zeng, Ji, Yang: Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method, NeurIPS 2021,
// arXiv:2111.00035.
//
//   o ~ exp(-s^2 |Q_i - K_j|^2 / 2) v, without a denominator;  k(x, y) = exp(-s^2 |x - y|^2 / 2),  s = D^-1/4
//   A = k([Q; K], X),  X = m sampled rows of [Q; K],  M = A_X + gamma I,  delta = diag(M 1)^-1/2
//   o = A_Q delta Z delta A_K^T v,   Z ~ (delta M delta)^-1 by some steps of a fixed iteration
//
// Keys are summed to S = A_K^T v as in kernels/linear/core.hpp, queries read delta Z delta S.  All matrices of the
// iteration are polynomials of the first one, so all are symmetric and each product is computed above its diagonal and
// mirrored. A step multiplies small errors by 13/4 at most, whatever the condition of the matrix: in double the 16
// steps that the option allows leave 1e-8 of them, in single precision ten would show.  Cost per head: m (3 D + 2
// E)(N+M) + 3 D m^2 + 8 m^3 steps + 2 m^2 E flops; no state, since every query needs every key and sample.
#include <attnkit/kernels/linear/core.hpp>
#include <attnkit/kernels/pack.hpp>
#include <attnkit/kernels/product.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/stages.hpp>
#include <cmath>

#include "gradient.hpp"

namespace {

using attnkit::Layout;
using attnkit::unsupported;
using attnkit::View;
using skyformer::Model;
using skyformer::Sample;
namespace simd = attnkit::simd;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kRows = 16;  // rows of A at a time

// An m x m matrix inside a square whose side is a multiple of 16, zeros around it.  Rows are 8 doubles further apart
// than they are wide: a power of two would put a column into few sets of the cache.
struct Square {
  int64_t m, side, next;
  explicit Square(int64_t size) : m(size), side(simd::whole_lanes(size)), next(side + 8) {}
  int64_t count() const { return side * next; }
};

// Of a head: squares, the sums of rows of M and delta, samples [D][padded], S and delta Z delta S [m][E].
struct Shared {
  double *squares[5], *sums, *delta;
  float *x, *s, *u;
  Shared(Layout& layout, const Model& model) {
    for (double*& square : squares) square = layout.take<double>(Square(model.m).count());
    sums = layout.take<double>(model.m);
    delta = layout.take<double>(model.m);
    x = layout.take(model.d * model.padded());
    s = layout.take(model.m * model.e);
    u = layout.take(model.m * model.e);
  }
};

// Of a worker: rows of A, and a row of E doubles.
struct Own {
  float* weights;
  double* row;
  Own(Layout& layout, const Model& model)
      : weights(layout.take(kRows * model.padded())), row(layout.take<double>(model.e)) {}
};

// By differences: |x|^2 + |y|^2 - 2 x y would lose what is left of two near rows far from the origin.
template <class Isa, int R, int C>
ATTNKIT_INLINE void gauss(const Model& model, const float* samples, const float* rows, int64_t row_next, int64_t r,
                          int64_t i, float* weights) {
  const int64_t next = model.padded(), d = model.d;
  Vec<Isa> sums[R][C] = {};
  for (int64_t f = 0; f < d; ++f) {
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) {
      const Vec<Isa> sample = simd::at<Isa>(samples + f * next + i + c * kLanes);
#pragma GCC unroll 4
      for (int t = 0; t < R; ++t) {
        const Vec<Isa> apart = sample - rows[(r + t) * row_next + f];
        sums[t][c] += apart * apart;
      }
    }
  }
  const auto factor = static_cast<float>(-0.5 * model.scale * model.scale);
  for (int t = 0; t < R; ++t)
    for (int c = 0; c < C; ++c) {
      Vec<Isa> weight = sums[t][c] * factor;
      simd::exp(weight);
      simd::store(weight, weights + (r + t) * next + i + c * kLanes);
    }
}

// Columns [j, j + 16) of out = factor a b + diagonal I above the diagonal, and their mirror: all three matrices are
// symmetric and of one square.
template <class Isa>
ATTNKIT_INLINE void multiply(const Square& q, const double* a, const double* b, double factor, double diagonal,
                             int64_t j, double* out) {
  const int64_t end = j + kLanes;
  for (int64_t i = 0; i < end; ++i) std::memset(out + i * q.next + j, 0, kLanes * sizeof(double));
  simd::add_product<Isa, double>({a, 1, q.next}, {b + j, q.m, kLanes, q.next}, {out + j, end, kLanes, q.next});
  for (int64_t i = 0; i < end; ++i)
    for (int64_t k = j; k < end; ++k) out[i * q.next + k] *= factor;
  for (int64_t i = j; i < std::min(end, q.m); ++i) out[i * q.next + i] += diagonal;
  for (int64_t i = j; i < end; ++i)
    for (int64_t k = 0; k < i; ++k) out[i * q.next + k] = out[k * q.next + i];
}

struct Job {
  const Model& model;
  const attn_run& run;
  const float* samples;
  attnkit::Qkv<> x;
};

// One head, in stages: S; delta M delta; z, an approximate inverse of that after `steps` of z <- z f(p) from its
// transpose over its largest sum of a column, p = y z, f(p) = (13 I - p (15 I - p (7 I - p))) / 4; delta z delta S; and
// what the queries read.  p is taken on by p <- p f(p): computed anew from a mirrored z it would not commute with y,
// and the error would grow by the condition of y in each step.
struct Head {
  enum Stage { kSums, kKernel, kDelta, kMatrix, kBegin, kFirst, kSteps };  // then 4 of each step, kSolve, kRead
  enum Step { kFrom7, kFrom15, kFrom13, kNext };

  const Job& job;
  const Model& model;
  int64_t b, h, queries, keys;
  void* memory;
  Square square;

  Head(const Job& j, int64_t row, int64_t head, void* shared)
      : job(j), model(j.model), b(row), h(head), memory(shared), square(j.model.m) {
    const attnkit::Sight sight(j.run, b, false);
    queries = sight.queries;
    keys = sight.fresh;
  }
  int solve() const { return kSteps + 4 * static_cast<int>(model.steps); }
  int stages() const { return queries > 0 && keys > 0 ? solve() + 2 : 0; }
  int64_t pieces(int stage) const {
    const int64_t panels = square.side / kLanes;  // of 16 samples, or as many columns
    if (stage == kSums || stage == kFirst) return panels;
    if (stage == solve() + 1) return (queries + kRows - 1) / kRows;
    if (stage < kSteps || stage == solve()) return model.m;
    const int step = (stage - kSteps) % 4;
    return step == kFrom7 ? square.side : step == kNext && stage + 1 < solve() ? 2 * panels : panels;
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void* own_memory) const {
    Layout layout(memory), own_layout(own_memory);
    Shared shared(layout, model);
    const Own own(own_layout, model);
    auto [y, z, p, t, u] = shared.squares;
    if (stage >= kSteps && stage <= solve() && (stage - kSteps) / 4 % 2 != 0) {
      std::swap(z, u);
      std::swap(p, y);
    }
    if (stage == kSums)
      sum<Isa>(begin * kLanes, std::min(model.m, end * kLanes), end * kLanes, shared, own);
    else if (stage <= kMatrix)
      for (int64_t i = begin; i < end; ++i)
        stage == kKernel ? kernel(i, shared) : stage == kDelta ? mirror(i, shared) : scale(i, shared);
    else if (stage == kBegin)
      divide(begin, end, shared);
    else if (stage == kFirst)
      product<Isa>(y, z, 1, 0, begin, end, p);
    else if (stage == solve())
      for (int64_t i = begin; i < end; ++i) finish(i, z, shared, own);
    else if (stage == solve() + 1)
      for (int64_t i = begin; i < end; ++i) read<Isa>(i * kRows, shared, own);
    else if (const int step = (stage - kSteps) % 4; step == kFrom7)
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < square.next; ++j) t[i * square.next + j] = -p[i * square.next + j];
        if (i < square.m) t[i * square.next + i] += 7;
      }
    else if (step == kFrom15)
      product<Isa>(p, t, -1, 15, begin, end, u);
    else if (step == kFrom13)
      product<Isa>(p, u, -0.25, 3.25, begin, end, t);
    else {
      const int64_t panels = square.side / kLanes;
      product<Isa>(z, t, 1, 0, begin, std::min(panels, end), u);
      product<Isa>(p, t, 1, 0, std::max<int64_t>(0, begin - panels), end - panels, y);
    }
  }

 private:
  template <class Isa>
  ATTNKIT_INLINE void product(const double* a, const double* other, double factor, double diagonal, int64_t begin,
                              int64_t end, double* out) const {
    for (int64_t j = begin; j < end; ++j) multiply<Isa>(square, a, other, factor, diagonal, j * kLanes, out);
  }

  // weights[r] = k(row r, each sample from `from` to `to`, whole vectors of them), for n rows.
  template <class Isa>
  ATTNKIT_INLINE void weigh(const float* rows, int64_t row_next, int64_t n, int64_t from, int64_t to,
                            const Shared& shared, float* weights) const {
    constexpr int64_t columns = Isa::columns * kLanes;
    for (int64_t r = 0; r < n; r += r + 4 <= n ? 4 : 1) {
      int64_t i = from;
      if (r + 4 <= n) {
        for (; i + columns <= to; i += columns)
          gauss<Isa, 4, Isa::columns>(model, shared.x, rows, row_next, r, i, weights);
        for (; i < to; i += kLanes) gauss<Isa, 4, 1>(model, shared.x, rows, row_next, r, i, weights);
      }
      for (; i < to; i += kLanes) gauss<Isa, 1, 1>(model, shared.x, rows, row_next, r, i, weights);
    }
  }

  // Samples [from, to): their rows, and those of S.  padded: to whole vectors.
  template <class Isa>
  ATTNKIT_INLINE void sum(int64_t from, int64_t to, int64_t padded, const Shared& shared, const Own& own) const {
    const int64_t next = model.padded(), e = model.e;
    for (int64_t i = from; i < padded; ++i) {
      const Sample at(i < model.m ? job.samples[i] : 0.0, queries, keys);
      const float* row = (at.query ? job.x.q : job.x.k).row(b, h, at.row);
      for (int64_t f = 0; f < model.d; ++f) shared.x[f * next + i] = row[f];
    }
    std::memset(shared.s + from * e, 0, attnkit::float_bytes((to - from) * e));
    for (int64_t j = 0; j < keys; j += kRows) {
      const int64_t n = std::min(kRows, keys - j);
      weigh<Isa>(job.x.k.row(b, h, j), job.x.k.next, n, from, padded, shared, own.weights);
      attnkit::linear::Event<> events[kRows];
      for (int64_t r = 0; r < n; ++r)
        events[r] = {own.weights + r * next + from, job.x.v.row(b, h, j + r), nullptr, nullptr, nullptr, 0};
      attnkit::linear::sweep<Isa>(shared.s + from * e, to - from, e, events, n);
    }
  }

  // Row i of M from its diagonal on, zeros around it.
  ATTNKIT_INLINE void kernel(int64_t i, const Shared& shared) const {
    const double factor = -0.5 * model.scale * model.scale;
    double* row = shared.squares[0] + i * square.next;
    const int64_t rows = i + 1 < model.m ? 1 : square.side - i;
    std::memset(row, 0, static_cast<size_t>(rows * square.next) * sizeof(double));
    for (int64_t f = 0; f < model.d; ++f) {
      const float* x = shared.x + f * model.padded();
      for (int64_t j = i; j < model.m; ++j) {
        const double apart = double{x[i]} - double{x[j]};
        row[j] += apart * apart;
      }
    }
    for (int64_t j = i; j < model.m; ++j) row[j] = std::exp(row[j] * factor);
    row[i] += model.gamma;
  }

  ATTNKIT_INLINE void mirror(int64_t i, const Shared& shared) const {
    double *row = shared.squares[0] + i * square.next, sum = 0;
    for (int64_t j = 0; j < i; ++j) row[j] = shared.squares[0][j * square.next + i];
    for (int64_t j = 0; j < model.m; ++j) sum += row[j];
    shared.delta[i] = 1 / std::sqrt(sum);
  }

  ATTNKIT_INLINE void scale(int64_t i, const Shared& shared) const {
    double *row = shared.squares[0] + i * square.next, sum = 0;
    for (int64_t j = 0; j < model.m; ++j) row[j] *= shared.delta[i] * shared.delta[j];
    for (int64_t j = 0; j < model.m; ++j) sum += row[j];
    shared.sums[i] = sum;
  }

  // Rows of z = y / its largest sum.
  ATTNKIT_INLINE void divide(int64_t begin, int64_t end, const Shared& shared) const {
    double largest = 0;
    for (int64_t i = 0; i < model.m; ++i) largest = shared.sums[i] > largest ? shared.sums[i] : largest;
    if (end == model.m) end = square.side;
    for (int64_t i = begin * square.next; i < end * square.next; ++i)
      shared.squares[1][i] = shared.squares[0][i] / largest;
  }

  // Row i of u = delta z delta S.
  ATTNKIT_INLINE void finish(int64_t i, const double* z, const Shared& shared, const Own& own) const {
    const int64_t e = model.e;
    std::memset(own.row, 0, static_cast<size_t>(e) * sizeof(double));
    for (int64_t j = 0; j < model.m; ++j) {
      const double weight = z[i * square.next + j] * shared.delta[j];
      for (int64_t c = 0; c < e; ++c) own.row[c] += weight * double{shared.s[j * e + c]};
    }
    for (int64_t c = 0; c < e; ++c) shared.u[i * e + c] = static_cast<float>(shared.delta[i] * own.row[c]);
  }

  // Queries from i on.
  template <class Isa>
  ATTNKIT_INLINE void read(int64_t i, const Shared& shared, const Own& own) const {
    const int64_t n = std::min(kRows, queries - i), next = model.padded();
    weigh<Isa>(job.x.q.row(b, h, i), job.x.q.next, n, 0, next, shared, own.weights);
    attnkit::linear::Event<> events[kRows];
    for (int64_t r = 0; r < n; ++r) {
      float* o = job.x.o.row(b, h, i + r);
      std::memset(o, 0, attnkit::float_bytes(model.e));
      events[r] = {nullptr, nullptr, own.weights + r * next, o, nullptr, 0};
    }
    attnkit::linear::sweep<Isa>(shared.u, model.m, model.e, events, n);
  }
};

struct Skyformer {
  static constexpr attnkit::About about{
      .name = "skyformer",
      .summary = "a Gaussian kernel by the Nystrom method over sampled queries and keys: linear cost, encoders only",
      .citation = "Chen et al., Skyformer, NeurIPS 2021, arXiv:2111.00035",
      .state_revision = "1"};
  struct Plan {
    simd::Staged staged;
    uint64_t backward_bytes;  // of a worker
  };

  static attnkit::Options options() {
    return {attnkit::Option::integer("samples", 128, 1, 1024, "m, rows sampled from queries and keys, half from each"),
            attnkit::Option::real("gamma", 0.1, 0, 1e6, "added to the diagonal, which rows sampled twice make needful"),
            attnkit::Option::integer("iterations", 6, 1, 16, "steps of the iteration for the inverse"),
            attnkit::Option::real("scale", 0, 0, 1e6, "multiplies queries and keys; 0 means D^-1/4")};
  }

  Skyformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        model{attnkit::Widths(b), values.integer("samples"), values.integer("iterations"), values.real("scale"),
              values.real("gamma")} {
    if (model.scale == 0) model.scale = std::pow(static_cast<double>(model.d), -0.25);
    io.q = ports.query("q", model.d, "queries");
    io.k = ports.key("k", model.d, "keys");
    io.v = ports.key("v", model.e, "values");
    samples = ports.table("samples", {model.m}, "places of the sampled rows: 0 to 1 in queries, 1 to 2 in keys");
    io.o = ports.output("o", model.e, "values weighted by the kernel");
  }

  // The first half uniform in [0, 1), the rest in [1, 2), by 24 and 23 bits, so that none rounds up to the bound.
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) {
      const bool query = i < count / 2;
      const auto bits = static_cast<double>(random.bits() >> (query ? 40 : 41));
      data[i] = static_cast<float>(query ? bits * 0x1p-24 : 1 + bits * 0x1p-23);
    }
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    check(r);
    if (works(r))
      info.count(r, r.batch * model.heads, static_cast<uint64_t>(model.flops(r.queries + r.keys)));
    else
      info.bytes_read = 0;
    Plan plan{simd::Staged::measure<Shared, Own>(model), 0};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      plan.backward_bytes = Layout::measure<skyformer::GradientScratch<decltype(real)>>(model);
    });
    info.scratch(r, r.is_f64() ? plan.backward_bytes : plan.staged.worker_bytes());
    info.train(r, 0, plan.backward_bytes);
    return plan;
  }

  // Otherwise a run only writes zeros.
  static bool works(const auto& r) { return r.batch > 0 && r.queries > 0 && r.keys > 0; }

  void check(const attnkit::Request& r) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw unsupported(
          "Skyformer samples its landmarks from the queries and keys of one sequence and is not defined across two: "
          "use it in encoder.self, and a mechanism such as softmax, linear or relu here");
    if (block.causal)
      throw unsupported(
          "Skyformer passes every value through rows sampled from the whole sequence, later ones included, so it "
          "cannot be causal: make the block bidirectional, or use a mechanism such as softmax, linear or relu");
    if (r.streams())
      throw unsupported(
          "Skyformer cannot stream: its sampled rows are places in the whole sequence, and each new token would move "
          "them: run whole sequences");
    if (r.shows_prefixes())
      throw unsupported(
          "Skyformer has no prefix form: its sampled rows may lie beyond what a query is to see: run it without "
          "ATTN_PREFIX");
  }

  void run(const Plan& plan, const attn_run& run) const {
    const float* places = View<const float>(run, samples).data;
    for (int64_t i = 0; i < model.m && works(run); ++i)
      if (!(places[i] >= 0 && places[i] < 2))
        throw attnkit::invalid("samples[", i, "] is ", double{places[i]},
                               ": a place among the queries is 0 to 1, one among the keys 1 to 2")
            .at(samples.where());
    if (attnkit::is_f64(run, io.o)) {
      const attnkit::Qkv<double> x(run, io);
      heads(plan, run, x, [&](const auto& head) { head.write(x.o); });
      return;
    }
    simd::for_stages<Head>(run, model.heads, model.flops(run.queries + run.keys), plan.staged,
                           Job{model, run, places, {run, io}});
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    attnkit::with_real(attnkit::is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      const attnkit::QkvGrad<Real> g(grad, io);
      heads(plan, run, attnkit::Qkv<Real>(run, io), [&](const auto& head) { head(g); });
    });
  }

  // Calls body(head) for all that have rows.
  template <class Real, class Body>
  void heads(const Plan& plan, const attn_run& run, const attnkit::Qkv<Real>& x, const Body& body) const {
    const double flops = 3 * model.flops(run.queries + run.keys);
    attnkit::for_each_head(run, model.heads, {flops, plan.backward_bytes}, [&](int64_t b, int64_t h, void* memory) {
      const attnkit::Sight sight(run, b, false);
      if (sight.queries == 0 || sight.fresh == 0) return;
      Layout layout(memory);
      const skyformer::GradientScratch<Real> scratch(layout, model);
      const float* places = View<const float>(run, samples).data;
      body(skyformer::GradientHead<Real>{model, b, h, sight.queries, sight.fresh, x, places, scratch});
    });
  }

  attn_block block;
  Model model;
  attnkit::QkvPorts io;
  attnkit::Port samples;
};

}  // namespace

ATTNKIT_PLUGIN(Skyformer)
