// The gradient of linformer, and its run in f64.
//
// With G the gradient of o, p_i the weights of query i and R, T those of Kbar, Vbar as the queries that see key j made
// them:
//
//   ds_i = D^-1/2 p_i (Vbar G_i - p_i . Vbar G_i),   dq_i = Kbar^T ds_i
//   R_j = sum ds_i q_i^T, T_j = sum p_i G_i^T over the queries that see key j
//   dk_j = R_j^T E_j,   dv_j = T_j^T F_j,   dE_j = R_j k_j,   dF_j = T_j v_j
//
// Kbar and Vbar grow with the keys, R and T in reverse: in the prefix form p and ds of all queries wait in between.
#pragma once
#include <attnkit/kernels/scores.hpp>

#include "shape.hpp"

namespace linformer {

using attnkit::Qkv;
using attnkit::QkvGrad;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t kRows = attnkit::kScoreRows;

// Scratch of one head.
template <class Real>
struct GradientScratch {
  Real *k, *v, *dk, *dv;  // Kbar, Vbar, R, T: [rank][D], [rank][E]
  Real *kt, *vt;          // transposed
  Real *p, *ds;           // [rows][lanes]
  Real* block;            // keys or values of a block, transposed
  Real* learned;          // the gradient of E, then, where there is one, of F: [rank][keys]
  GradientScratch(attnkit::Layout& layout, const Shape& s, int64_t rows, int64_t learned_numbers) {
    for (Real** part : {&k, &dk}) *part = layout.take<Real>(s.rank * s.d);
    for (Real** part : {&v, &dv}) *part = layout.take<Real>(s.rank * s.e);
    kt = layout.take<Real>(s.d * s.lanes());
    vt = layout.take<Real>(s.e * s.lanes());
    for (Real** part : {&p, &ds}) *part = layout.take<Real>(rows * s.lanes());
    block = layout.take<Real>(std::max(s.d, s.e) * kRows);
    learned = layout.take<Real>(learned_numbers);
  }
};

// One head of one batch row.
template <class Real>
struct GradientHead {
  const Shape& shape;
  const attn_run& run;
  int64_t b, h;
  const Qkv<Real>& x;
  View<const Real> e, f;  // without f, e serves both
  const GradientScratch<Real>& p;

  using Out = simd::Matrix<Real>;
  using In = simd::Matrix<const Real>;

  attnkit::Sight sight{run, b, false};
  attnkit::Scores<Real> scores{{p.k, shape.rank, shape.d, shape.d},
                               {p.v, shape.rank, shape.e, shape.e},
                               static_cast<Real>(1 / std::sqrt(static_cast<double>(shape.d))),
                               p.kt,
                               p.vt};

  In rows_of(const View<const Real>& rows, int64_t from, int64_t n, int64_t width) const {
    return {rows.row(b, h, from), n, width, rows.next};
  }
  simd::Factor<Real> factor(const View<const Real>& rows, int64_t from) const {
    return {rows.row(b, h, from), rows.next};
  }
  const View<const Real>& of_values() const { return f ? f : e; }

  // Calls body(first, n) for blocks of queries that see the same keys, whose scores are ready.
  template <class Body>
  void forward(const Body& body) const {
    for (Real* part : {p.k, p.v}) std::fill(part, part + shape.rank * (part == p.k ? shape.d : shape.e), Real{0});
    int64_t waiting = 0;
    sight.walk(
        false,
        [&](int64_t from, int64_t to) {
          for (; from < to; from += kRows) {
            const int64_t n = std::min(kRows, to - from);
            simd::product<Real>({e.row(0, h, 0) + from, e.next}, rows_of(x.k, from, n, shape.d),
                                {p.k, shape.rank, shape.d, shape.d});
            simd::product<Real>({of_values().row(0, h, 0) + from, of_values().next}, rows_of(x.v, from, n, shape.e),
                                {p.v, shape.rank, shape.e, shape.e});
          }
          scores.transpose();
        },
        [&](int64_t i) {
          ++waiting;
          if (waiting < kRows && i + 1 < sight.queries && sight.seen(i + 1) == sight.seen(i)) return;
          body(i + 1 - waiting, waiting);
          waiting = 0;
        });
  }

  void write(const View<Real>& o) const {
    forward([&](int64_t i, int64_t n) {
      scores.weigh(factor(x.q, i), n, p.p);
      scores.mix(p.p, {o.row(b, h, i), n, shape.e, o.next});
    });
  }

  void operator()(const QkvGrad<Real>& g) const {
    const bool prefix = sight.visible != nullptr;
    const int64_t lanes = shape.lanes();
    for (Real* part : {p.dk, p.dv}) std::fill(part, part + shape.rank * (part == p.dk ? shape.d : shape.e), Real{0});
    std::fill(p.learned, p.learned + (f ? 2 : 1) * shape.rank * run.keys, Real{0});
    const auto sum = [&](int64_t i, int64_t n) {
      const int64_t at = prefix ? i * lanes : 0;
      scores.give_keys(p.ds + at, rows_of(x.q, i, n, shape.d), {p.dk, shape.rank, shape.d, shape.d});
      scores.give_values(p.p + at, rows_of(g.o, i, n, shape.e), {p.dv, shape.rank, shape.e, shape.e});
    };
    forward([&](int64_t i, int64_t n) {
      const int64_t at = prefix ? i * lanes : 0;
      scores.weigh(factor(x.q, i), n, p.p + at);
      scores.differentiate(factor(g.o, i), n, p.p + at, p.ds + at);
      if (g.q) scores.give_queries(p.ds + at, {g.q.row(b, h, i), n, shape.d, g.q.next});
      if (!prefix) sum(i, n);
    });
    int64_t end = sight.queries > 0 ? std::max<int64_t>(0, sight.seen(sight.queries - 1)) : 0;
    for (int64_t i = sight.queries - 1, n = 1; prefix && i >= 0 && sight.seen(i) > 0; i -= n) {
      give(sight.seen(i), end, g);
      end = sight.seen(i);
      for (n = 1; n < kRows && i >= n && sight.seen(i - n) == end; ++n) {
      }
      sum(i + 1 - n, n);
    }
    give(0, end, g);
  }

  // The gradients of keys [from, to) and of their columns, which R and T are complete for.
  void give(int64_t from, int64_t to, const QkvGrad<Real>& g) const {
    for (int64_t n; from < to; from += n) {
      n = std::min(kRows, to - from);
      give_rows(x.k, from, n, {p.dk, shape.rank, shape.d, shape.d}, e, p.learned, g.k);
      give_rows(x.v, from, n, {p.dv, shape.rank, shape.e, shape.e}, of_values(),
                p.learned + (f ? shape.rank * run.keys : 0), g.v);
    }
  }
  void give_rows(const View<const Real>& rows, int64_t from, int64_t n, const In& sums, const View<const Real>& matrix,
                 Real* learned, const View<Real>& to) const {
    if (to)
      simd::product<Real>({matrix.row(0, h, 0) + from, 1, matrix.next}, sums,
                          {to.row(b, h, from), n, sums.columns, to.next});
    attnkit::transpose_rows(rows.row(b, h, from), rows.next, n, sums.columns, p.block, kRows);
    simd::product<Real>({sums.data, sums.row}, {p.block, sums.columns, n, kRows},
                        {learned + from, shape.rank, n, run.keys});
  }
};

// One backward call.  As many heads at a time as there are workers; what they give E and F is added in their order.
template <class Real>
struct Gradient {
  const Shape& shape;
  const attn_grad& grad;
  int64_t rows, numbers;  // of GradientScratch
  uint64_t head_bytes;
  Qkv<Real> x;
  QkvGrad<Real> g;
  View<const Real> e, f;
  View<Real> de, df;
  Real* sums;  // [heads, where each has its own][E, then F][rank][keys]

  int64_t first = 0, heads = 0;  // of those at a time

  const attn_run& run() const { return *grad.run; }
  int64_t lines() const { return (f ? 2 : 1) * shape.rank; }  // of keys, that a head gives E and F
  int64_t sums_of(int64_t item) const { return e.head ? item % shape.heads * lines() : 0; }
  GradientScratch<Real> scratch(int64_t item) const {
    attnkit::Layout layout(static_cast<char*>(run().exec->scratch) + static_cast<uint64_t>(item - first) * head_bytes);
    return {layout, shape, rows, numbers};
  }

  void operator()() {
    const int64_t all = run().batch * shape.heads, keys = run().keys;
    const double flops = 3 * static_cast<double>(shape.flops(run().queries, keys));
    std::fill(sums, sums + (e.head ? shape.heads : 1) * lines() * keys, Real{0});
    for (; first < all; first += heads) {
      heads = std::min<int64_t>(run().exec->workers, all - first);
      attnkit::for_each(*run().exec, heads, flops, give, this);
      attnkit::for_each(*run().exec, lines(), static_cast<double>(heads * keys), add, this);
    }
    for (int64_t h = 0; h < (e.head ? shape.heads : 1); ++h)
      for (int64_t t = 0; t < lines(); ++t)
        if (const View<Real>& to = t < shape.rank ? de : df)
          for (int64_t j = 0; j < keys; ++j) to.row(0, h, t % shape.rank)[j] += sums[(h * lines() + t) * keys + j];
  }

  static void give(uintptr_t arg, int64_t begin, int64_t end, uint32_t) {
    const auto& all = *reinterpret_cast<const Gradient*>(arg);
    for (int64_t item = all.first + begin; item < all.first + end; ++item) {
      const GradientScratch<Real> own = all.scratch(item);
      GradientHead<Real>{all.shape, all.run(), item / all.shape.heads, item % all.shape.heads, all.x, all.e,
                         all.f,     own}(all.g);
    }
  }
  static void add(uintptr_t arg, int64_t begin, int64_t end, uint32_t) {
    const auto& all = *reinterpret_cast<const Gradient*>(arg);
    const int64_t keys = all.run().keys;
    for (int64_t item = all.first; item < all.first + all.heads; ++item) {
      const Real* learned = all.scratch(item).learned;
      Real* sums = all.sums + all.sums_of(item) * keys;
      for (int64_t i = begin * keys; i < end * keys; ++i) sums[i] += learned[i];
    }
  }
};

}  // namespace linformer
