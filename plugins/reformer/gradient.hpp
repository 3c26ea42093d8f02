// The gradient of reformer, and its run in f64.  Which buckets tokens are in is a constant.
//
// The rounds together are one softmax, whose maximum m_i and sum z_i a run saves; with G the gradient of o, over all
// pairs of a token i and a token j that it sees, in all rounds:
//
//   p_ij = exp(s_ij - m_i) / z_i,   ds_ij = p_ij (G_i . v_j - G_i . o_i), 0 where i = j
//   dv_j += p_ij G_i,   dx_i += ds_ij k_j,   dk_j += ds_ij x_i,   dx_j += f dk_j - f^3 (x_j . dk_j) x_j,   k_j = f x_j
#pragma once
#include <attnkit/kernels/scores.hpp>
#include <limits>

#include "rounds.hpp"

namespace reformer {

using attnkit::kScoreRows;
using attnkit::View;
namespace simd = attnkit::simd;

// Scratch of a worker for rows of up to n tokens.
template <class Real>
struct GradientScratch {
  Real *factor, *mean;                  // by token: what makes a key of it, G . o
  Real *keys, *values, *dk, *dv;        // of a chunk and the one before it: [2 chunk][D] and [E], and their gradients
  Real *kt, *vt;                        // transposed
  Real *q, *g, *dq, *p, *ds;            // of a block of queries
  int32_t* tokens;                      // of the keys
  Real *max = nullptr, *sum = nullptr;  // of tokens so far; these and the rest in a run
  int32_t *buckets = nullptr, *order = nullptr, *ends = nullptr;
  double* products = nullptr;
  GradientScratch(attnkit::Layout& layout, const Shape& s, int64_t n, bool is_run) {
    const int64_t both = 2 * s.chunk, lanes = simd::whole_lanes(both);
    for (Real** part : {&factor, &mean}) *part = layout.take<Real>(n);
    for (Real** part : {&keys, &dk}) *part = layout.take<Real>(both * s.d);
    for (Real** part : {&values, &dv}) *part = layout.take<Real>(both * s.e);
    kt = layout.take<Real>(s.d * lanes);
    vt = layout.take<Real>(s.e * lanes);
    for (Real** part : {&q, &dq}) *part = layout.take<Real>(kScoreRows * s.d);
    g = layout.take<Real>(kScoreRows * s.e);
    for (Real** part : {&p, &ds}) *part = layout.take<Real>(kScoreRows * lanes);
    tokens = layout.take<int32_t>(both);
    if (!is_run) return;
    for (Real** part : {&max, &sum}) *part = layout.take<Real>(n);
    buckets = layout.take<int32_t>(n);
    order = layout.take<int32_t>(s.rounds * n);
    ends = layout.take<int32_t>(2 * s.columns);
    products = layout.take<double>(whole_doubles(s.columns));
  }
};

// One head of one batch row.
template <class Real>
struct GradientHead {
  const Shape& shape;
  int64_t b, h, n;
  const attnkit::Qkv<Real>& x;
  const GradientScratch<Real>& p;

  int64_t d = shape.d, e = shape.e, rounds = shape.rounds_of(n);

  void measure() const {
    const Real offset = static_cast<Real>(static_cast<double>(d) * shape.eps);
    for (int64_t i = 0; i < n; ++i) {
      const Real* row = x.q.row(b, h, i);
      p.factor[i] = 1 / std::sqrt(simd::dot<simd::Baseline>(row, row, d) + offset);
    }
  }

  // The keys, m of them, of chunk t of a round: its own, then those of the chunk before.
  attnkit::Scores<Real> gather(const Rounds& all, int64_t round, int64_t t) const {
    int64_t m = 0;
    for (const int64_t chunk : {t, t > 0 ? t - 1 : shape.chunks(n)})
      for (int64_t j = 0; j < all.held(chunk); ++j) p.tokens[m++] = all.tokens(round, chunk)[j];
    for (int64_t j = 0; j < m; ++j) {
      const int64_t token = p.tokens[j];
      for (int64_t f = 0; f < d; ++f) p.keys[j * d + f] = x.q.row(b, h, token)[f] * p.factor[token];
      std::copy(x.v.row(b, h, token), x.v.row(b, h, token) + e, p.values + j * e);
    }
    const attnkit::Scores<Real> seen{{p.keys, m, d, d}, {p.values, m, e, e}, Real{1}, p.kt, p.vt};
    seen.transpose();
    return seen;
  }

  // Calls body(keys, tokens, count) for blocks of tokens, whose queries are gathered and scores in p, and end() after
  // each chunk.
  template <class Body, class End>
  void walk(const int32_t* order, const Body& body, const End& end) const {
    const Rounds all{shape, n, rounds, order};
    for (int64_t round = 0; round < rounds; ++round)
      for (int64_t t = 0; t < shape.chunks(n); ++t) {
        const attnkit::Scores<Real> seen = gather(all, round, t);
        for (int64_t from = 0; from < all.held(t); from += kScoreRows) {
          const int64_t count = std::min(kScoreRows, all.held(t) - from);
          const int32_t* tokens = all.tokens(round, t) + from;
          for (int64_t i = 0; i < count; ++i)
            std::copy(x.q.row(b, h, tokens[i]), x.q.row(b, h, tokens[i]) + d, p.q + i * d);
          std::fill(p.p, p.p + count * seen.lanes, Real{0});
          simd::product<Real>({p.q, d}, {p.kt, d, seen.lanes, seen.lanes}, {p.p, count, seen.lanes, seen.lanes});
          hide(seen, tokens, count, p.p, kSelf);
          body(seen, tokens, count);
        }
        end(seen);
      }
  }
  // Sets what tokens have with themselves.
  void hide(const attnkit::Scores<Real>& seen, const int32_t* tokens, int64_t count, Real* scores, Real to) const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < seen.k.rows; ++j)
        if (p.tokens[j] == tokens[i]) scores[i * seen.lanes + j] = to;
  }

  // The order of all rounds.
  void hash(const View<const float>& rotations) const {
    const int64_t half = shape.buckets_of(n) / 2, columns = whole_doubles(half);
    for (int64_t round = 0; round < rounds; ++round) {
      for (int64_t i = 0; i < n && !shape.plain(n); ++i) {
        std::fill(p.products, p.products + columns, 0.0);
        for (int64_t f = 0; f < d; ++f)
          for (int64_t k = 0; k < half; ++k)
            p.products[k] += double{x.q.row(b, h, i)[f]} * double{rotations.row(h, f, round)[k]};
        p.buckets[i] = bucket<simd::Baseline>(p.products, half, columns);
      }
      sort(shape, n, p.buckets, p.ends, p.order + round * n);
    }
  }

  void write(const View<const float>& rotations, const View<Real>& o) const {
    measure();
    hash(rotations);
    std::fill(p.max, p.max + n, -std::numeric_limits<Real>::infinity());
    std::fill(p.sum, p.sum + n, Real{0});
    for (int64_t i = 0; i < n; ++i) std::fill(o.row(b, h, i), o.row(b, h, i) + e, Real{0});
    const auto merge = [&](const attnkit::Scores<Real>& seen, const int32_t* tokens, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        Real* scores = p.p + i * seen.lanes;
        const Real max = std::max(p.max[tokens[i]], *std::max_element(scores, scores + seen.k.rows));
        const Real down = std::exp(p.max[tokens[i]] - max);
        p.max[tokens[i]] = max;
        p.sum[tokens[i]] = p.sum[tokens[i]] * down + attnkit::weigh<simd::Baseline>(scores, seen.k.rows, Real{1}, max);
        for (int64_t c = 0; c < e; ++c) o.row(b, h, tokens[i])[c] *= down;
        simd::product<Real>({scores, seen.lanes}, seen.v, {o.row(b, h, tokens[i]), 1, e, o.next});
      }
    };
    walk(p.order, merge, [](const auto&) {});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < e; ++c) o.row(b, h, i)[c] /= p.sum[i];
  }

  void save(const Saved<Real>& to) const {
    std::copy(p.max, p.max + n, to.max);
    std::copy(p.sum, p.sum + n, to.sum);
    std::copy(p.order, p.order + rounds * n, to.order);
  }

  void operator()(const Saved<Real>& saved, const attnkit::QkvGrad<Real>& g) const {
    measure();
    for (int64_t i = 0; i < n; ++i) p.mean[i] = simd::dot<simd::Baseline>(g.o.row(b, h, i), x.o.row(b, h, i), e);
    std::fill(p.dk, p.dk + 2 * shape.chunk * d, Real{0});
    std::fill(p.dv, p.dv + 2 * shape.chunk * e, Real{0});
    const auto block = [&](const attnkit::Scores<Real>& seen, const int32_t* tokens, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        std::copy(g.o.row(b, h, tokens[i]), g.o.row(b, h, tokens[i]) + e, p.g + i * e);
      std::fill(p.ds, p.ds + count * seen.lanes, Real{0});
      simd::product<Real>({p.g, e}, {p.vt, e, seen.lanes, seen.lanes}, {p.ds, count, seen.lanes, seen.lanes});
      attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t token = tokens[i];
          Real *weights = p.p + i * seen.lanes, *to = p.ds + i * seen.lanes;
          attnkit::weigh<decltype(isa)>(weights, seen.k.rows, Real{1}, saved.max[token]);
          for (int64_t j = 0; j < seen.k.rows; ++j) {
            weights[j] /= saved.sum[token];
            to[j] = weights[j] * (to[j] - p.mean[token]);
          }
        }
      });
      hide(seen, tokens, count, p.ds, 0);
      seen.give_values(p.p, {p.g, count, e, e}, {p.dv, seen.k.rows, e, e});
      if (!g.q) return;
      seen.give_keys(p.ds, {p.q, count, d, d}, {p.dk, seen.k.rows, d, d});
      std::fill(p.dq, p.dq + count * d, Real{0});
      seen.give_queries(p.ds, {p.dq, count, d, d});
      for (int64_t i = 0; i < count; ++i) add(p.dq + i * d, d, g.q.row(b, h, tokens[i]));
    };
    // Adds the gradients of a chunk's keys and values to those of their tokens.
    const auto end = [&](const attnkit::Scores<Real>& seen) {
      for (int64_t j = 0; j < seen.k.rows; ++j) {
        const int64_t token = p.tokens[j];
        const Real *row = x.q.row(b, h, token), factor = p.factor[token];
        Real *dk = p.dk + j * d, *dv = p.dv + j * e;
        if (g.v) add(dv, e, g.v.row(b, h, token));
        if (g.q) {
          const Real along = factor * factor * simd::dot<simd::Baseline>(row, dk, d);
          for (int64_t f = 0; f < d; ++f) g.q.row(b, h, token)[f] += factor * (dk[f] - along * row[f]);
        }
        std::fill(dk, dk + d, Real{0});
        std::fill(dv, dv + e, Real{0});
      }
    };
    walk(saved.order, block, end);
  }
  static void add(const Real* from, int64_t width, Real* to) {
    for (int64_t f = 0; f < width; ++f) to[f] += from[f];
  }
};

}  // namespace reformer
