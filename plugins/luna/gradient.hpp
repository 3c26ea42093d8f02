// The gradient of luna, and its f64 run, which is made of the same blocks.
//
// Bidirectional, with w the weights of the unpack attention, A those of the pack attention and G, G' given:
//
//   dV = w^T G,   dw = G V^T,   dl = s w (dw - sum w dw),   dq = dl K,   dK = dl^T q          K = Y W_k, V = Y W_v
//   dY = dK W_k^T + dV W_v^T + dLN(G'),   dA = dY pv^T,   da = A (dA - dY . Y),   dpv = A^T dY,   dpk = da^T pq,
//   dpq = da pk
//
// Causal, with K_t and V_t the sums up to t, and sums R of the queries from j on, which are made backwards:
//
//   dw = V_t G / t,   dl = s/t w (dw - sum w dw),   dq = dl K_t,   R = sum w G^T / t,   R' = sum dl q^T
//   dv = R^T A,   dk = R'^T A,   da = w'(a) (R v + R' k),   dpk = da^T pq,   dpq = sum da pk
//
// A block of queries meets what lies before its keys through the sums and its own keys by products within what each
// query sees, so that no NaN comes from what it does not.
#pragma once
#include <attnkit/kernels/scores.hpp>
#include <limits>

#include "parts.hpp"

namespace luna {

constexpr int64_t kBlock = 64;  // queries, and keys, of a block

// to[f][i] = rows[i][f], zeros from the n-th column on.
template <class Real>
void turn(const Real* rows, int64_t row, int64_t n, int64_t d, Real* to, int64_t next) {
  std::fill(to, to + d * next, Real{0});
  attnkit::transpose_rows(rows, row, n, d, to, next);
}

// C = A B.
template <class Real>
void multiply(const simd::Factor<Real>& a, const simd::Matrix<const Real>& b, const simd::Matrix<Real>& c) {
  for (int64_t i = 0; i < c.rows; ++i) std::fill(c.data + i * c.row, c.data + i * c.row + c.columns, Real{0});
  simd::product<Real>(a, b, c);
}

// The vector from p on as what the functions of a map take, and its numbers.
template <class Real, class Isa>
using Unit = std::conditional_t<sizeof(Real) == sizeof(float), simd::Vec<Isa>, double>;
template <class Real>
constexpr int64_t kUnit = sizeof(Real) == sizeof(float) ? simd::kLanes : 1;
template <class V>
ATTNKIT_INLINE void load(const float* p, V& x) {
  x = simd::load_as<V>(p);
}
ATTNKIT_INLINE void load(const double* p, double& x) { x = *p; }
template <class V>
ATTNKIT_INLINE void store(const V& x, float* p) {
  simd::store(x, p);
}
ATTNKIT_INLINE void store(double x, double* p) { *p = x; }

// x = e^x, whole vectors of them.
template <class Isa, class Real>
ATTNKIT_INLINE void exps(Real* x, int64_t n) {
  for (int64_t i = 0; i < n; i += kUnit<Real>) {
    Unit<Real, Isa> y;
    luna::load(x + i, y);
    luna::exp(y);
    luna::store(y, x + i);
  }
}

// From the gradient of pq, which run scales, that of the projection.
template <class Real>
void unscale(const simd::Matrix<Real>& dpq) {
  const auto by = static_cast<Real>(scale(dpq.columns));
  for (int64_t r = 0; r < dpq.rows; ++r)
    for (int64_t c = 0; c < dpq.columns; ++c) dpq.data[r * dpq.row + c] *= by;
}

// A run that has what its gradient needs, or is about to.
template <class Real>
struct Pass {
  const Shape& shape;
  const attn_run& run;
  Tensors<Real> x;
  Shared<Real> known;

  Sight sight(int64_t b) const { return Sight(run, b, shape.causal); }
  Real* memory(int64_t b) const { return known.memory + b * known.memory_next; }
  // Numbers of l rows; the b-th such.
  int64_t size() const { return shape.l * shape.width(); }
  Real* rows(Real* all, int64_t b) const { return all + b * size(); }
  Real* pq(int64_t b) const { return shape.causal ? memory(b) : rows(known.pq, b); }
  // Rows of P that count.
  int64_t live(int64_t b) const {
    const Sight seen = sight(b);
    if (seen.fresh == 0) return 0;
    return shape.causal ? static_cast<int64_t>(*Causal<Real>(memory(b), shape).live) : shape.live(seen);
  }
};

template <class Real>
struct QueryGrad {
  View<const Real> o;
  View<Real> q;
};

// The queries of a head, which attend to the packed sequence.
template <class Real>
struct Unpack {
  // Scratch of a worker.
  struct Scratch {
    Real *kt, *vt, *w, *dl;  // as in Scores; weights and gradients of scores: [kBlock][lanes]
    Scratch(Layout& layout, const Shape& s)
        : kt(layout.take<Real>(s.d * luna::lanes(s))),
          vt(layout.take<Real>(s.values() * luna::lanes(s))),
          w(layout.take<Real>(kBlock * luna::lanes(s))),
          dl(layout.take<Real>(kBlock * luna::lanes(s))) {}
  };
  const Pass<Real>& pass;
  int64_t b, h;
  Scratch p;
  const Shape& s = pass.shape;
  int64_t live = pass.live(b), queries = live > 0 ? pass.sight(b).queries : 0;
  attnkit::Scores<Real> scores = attend(Packed<Real>(pass.memory(b), s));

  attnkit::Scores<Real> attend(const Packed<Real>& known) const {
    return {{known.keys + h * s.d, live, s.d, s.width()},
            {known.values + h * s.values(), live, s.values(), s.heads * s.values()},
            static_cast<Real>(scale(s.d)),
            p.kt,
            p.vt};
  }

  void forward(const View<Real>& o) const {
    scores.transpose();
    for (int64_t from = 0; from < queries; from += kBlock) {
      const int64_t n = std::min(kBlock, queries - from);
      scores.weigh({pass.x.q.row(b, h, from), pass.x.q.next}, n, p.w);
      scores.mix(p.w, {o.row(b, h, from), n, s.values(), o.next});
    }
  }

  // dk, dv: gradients of the packed sequence's keys and values.
  void backward(const QueryGrad<Real>& g, Real* dk, Real* dv) const {
    scores.transpose();
    for (int64_t from = 0; from < queries; from += kBlock) {
      const int64_t n = std::min(kBlock, queries - from);
      const simd::Matrix<const Real> q{pass.x.q.row(b, h, from), n, s.d, pass.x.q.next},
          given{g.o.row(b, h, from), n, s.values(), g.o.next};
      scores.weigh({q.data, q.row}, n, p.w);
      scores.differentiate({given.data, given.row}, n, p.w, p.dl);
      if (g.q) scores.give_queries(p.dl, {g.q.row(b, h, from), n, s.d, g.q.next});
      scores.give_keys(p.dl, q, {dk + h * s.d, live, s.d, s.width()});
      scores.give_values(p.w, given, {dv + h * s.values(), live, s.values(), s.heads * s.values()});
    }
  }
};

// A head of the pack attention.
template <class Real>
struct Pack {
  // Scratch of a worker.  Of a block of keys: keys and values beside each other, [kBlock][width], and weights,
  // [kBlock][lanes]; pq and dY transposed, [width][lanes]; by row of P.
  struct Scratch {
    Real *key, *value, *dkey, *dvalue, *a, *da, *pqt, *dyt, *largest, *totals, *sums;
    Scratch(Layout& layout, const Shape& s) {
      for (Real** part : {&key, &value, &dkey, &dvalue}) *part = layout.take<Real>(kBlock * s.pack_d());
      for (Real** part : {&a, &da}) *part = layout.take<Real>(kBlock * luna::lanes(s));
      for (Real** part : {&pqt, &dyt}) *part = layout.take<Real>(s.pack_d() * luna::lanes(s));
      for (Real** part : {&largest, &totals, &sums}) *part = layout.take<Real>(luna::lanes(s));
    }
  };
  const Pass<Real>& pass;
  int64_t b, head;
  Scratch p;
  const Shape& s = pass.shape;
  int64_t keys = pass.sight(b).fresh, live = pass.live(b), lanes = simd::whole_lanes(live), width = s.width(),
          dp = s.pack_d();
  const Real* pq = pass.pq(b) + head * dp;

  // Calls body(from, n) for each block of keys, which stand with their values in p.key and p.value.
  template <class Body>
  void each(const Body& body) const {
    for (int64_t from = 0; from < keys; from += kBlock) {
      const int64_t n = std::min(kBlock, keys - from);
      for (int64_t j = 0; j < n; ++j) {
        gather(pass.x.pk, s.d, {b, from + j, head * dp, dp}, p.key + j * dp);
        gather(pass.x.pv, s.d, {b, from + j, head * dp, dp}, p.value + j * dp);
      }
      body(from, n);
    }
  }

  // The sums of what is known of the row.
  void forward() const {
    const Packed<Real> known(pass.memory(b), s);
    Real *largest = known.largest + head * s.l, *totals = known.totals + head * s.l, *sums = known.sums + head * dp;
    for (int64_t r = 0; r < s.l; ++r) {
      largest[r] = std::numeric_limits<Real>::lowest();
      totals[r] = 0;
      std::fill(sums + r * width, sums + r * width + dp, Real{0});
    }
    each([&](int64_t, int64_t n) {
      for (int64_t j = 0; j < n; ++j)
        for (int64_t r = 0; r < s.l; ++r) {
          const Real score = simd::dot<simd::Baseline>(p.key + j * dp, pq + r * width, dp),
                     top = std::max(largest[r], score);
          const Real factor = std::exp(largest[r] - top), weight = std::exp(score - top);
          largest[r] = top;
          totals[r] = totals[r] * factor + weight;
          for (int64_t c = 0; c < dp; ++c)
            sums[r * width + c] = sums[r * width + c] * factor + weight * p.value[j * dp + c];
        }
    });
  }

  // dy: of Y; dpq: of pq; both of this row.
  void backward(const Real* dy, const View<Real>& dpk, const View<Real>& dpv, Real* dpq) const {
    const Packed<Real> known(pass.memory(b), s);
    const Real* y = pass.rows(pass.known.packed, b) + head * dp;
    dy += head * dp;
    dpq += head * dp;
    turn(pq, width, live, dp, p.pqt, lanes);
    turn(dy, width, live, dp, p.dyt, lanes);
    for (int64_t r = 0; r < lanes; ++r) {
      p.largest[r] = r < live ? known.largest[head * s.l + r] : 0;
      p.totals[r] = r < live ? known.totals[head * s.l + r] : 1;
      p.sums[r] = r < live ? simd::dot<simd::Baseline>(dy + r * width, y + r * width, dp) : 0;
    }
    each([&](int64_t from, int64_t n) {
      multiply<Real>({p.key, dp}, {p.pqt, dp, lanes, lanes}, {p.a, n, lanes, lanes});
      multiply<Real>({p.value, dp}, {p.dyt, dp, lanes, lanes}, {p.da, n, lanes, lanes});
      attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t j = 0; j < n; ++j) {
          Real *a = p.a + j * lanes, *da = p.da + j * lanes;
          for (int64_t r = 0; r < lanes; ++r) a[r] -= p.largest[r];
          exps<decltype(isa)>(a, lanes);
          for (int64_t r = 0; r < lanes; ++r) {
            a[r] /= p.totals[r];
            da[r] = a[r] * (da[r] - p.sums[r]);
          }
        }
      });
      simd::product<Real>({p.da, 1, lanes}, {p.key, n, dp, dp}, {dpq, live, dp, width});
      multiply<Real>({p.da, lanes}, {pq, live, dp, width}, {p.dkey, n, dp, dp});
      multiply<Real>({p.a, lanes}, {dy, live, dp, width}, {p.dvalue, n, dp, dp});
      for (int64_t j = 0; j < n; ++j) {
        scatter(p.dkey + j * dp, s.d, {b, from + j, head * dp, dp}, dpk);
        scatter(p.dvalue + j * dp, s.d, {b, from + j, head * dp, dp}, dpv);
      }
    });
    unscale<Real>({dpq, live, dp, width});
  }

  // Added where it is not skipped.
  static void scatter(const Real* from, int64_t d, const Slice& slice, const View<Real>& to) {
    if (!to) return;
    for_parts(to, d, slice, [from](Real* part, int64_t n, int64_t at) {
      for (int64_t c = 0; c < n; ++c) part[c] += from[at + c];
    });
  }
};

template <class Real>
struct RecurrentGrad {
  View<const Real> o;
  View<Real> q, k, v, pk;
};

// A head of a causal row.
template <class Real>
struct Recurrence {
  // Queries, and keys, of a block: the pairs of a block cost as much as the sums do where there are about as many rows
  // of P as of a block.
  static constexpr int64_t kRows = 32;
  // Scratch of a worker.  Of a block of keys: A and the slope of its map, [kRows][lanes], A^T, K^T and V^T; pairs of a
  // query and a key, [kRows][kRows].  K_t, V_t, R' and R, with the l rows as columns and as rows.  Of all queries the
  // weights and their gradients.
  struct Scratch {
    int64_t row;  // of d or e numbers
    Real *a, *slope, *da, *at, *kt, *vt, *qk, *gv, *pairs, *pqt, *keys, *values, *flat, *rk, *rv, *rkt, *rvt, *w, *dl;
    Scratch(Layout& layout, const Shape& s, int64_t queries) : row(simd::whole_lanes(std::max(s.d, s.values()))) {
      const int64_t lanes = luna::lanes(s);
      for (Real** part : {&a, &slope, &da, &at}) *part = layout.take<Real>(kRows * lanes);
      for (Real** part : {&kt, &vt}) *part = layout.take<Real>(row * kRows);
      for (Real** part : {&qk, &gv, &pairs}) *part = layout.take<Real>(kRows * kRows);
      for (Real** part : {&pqt, &keys, &values, &flat, &rk, &rv, &rkt, &rvt}) *part = layout.take<Real>(row * lanes);
      for (Real** part : {&w, &dl}) *part = layout.take<Real>(queries * lanes);
    }
  };
  const Pass<Real>& pass;
  int64_t b, h;
  Scratch p;
  const Shape& s = pass.shape;
  const Tensors<Real>& x = pass.x;
  Sight sight = pass.sight(b);
  int64_t live = pass.live(b), lanes = simd::whole_lanes(live), width = s.width(), d = s.d, e = s.values();
  const Real *pq = pass.pq(b) + h * d, by = static_cast<Real>(scale(d));

  // Queries [from, to), all of which see keys [0, begin), and some of [begin, end), at most kRows of them.
  struct Block {
    int64_t from, to, begin, end;
    // Which of its keys each query sees, and which queries see each key.
    simd::Span seen[kRows], readers[kRows];
    int64_t queries() const { return to - from; }
    int64_t keys() const { return end - begin; }
  };
  Block block(int64_t from) const {
    const int64_t to = std::min(from + kRows, sight.queries), end = sight.seen(to - 1);
    Block q{from, to, from > 0 ? sight.seen(from - 1) : std::max<int64_t>(0, end - kRows), end, {}, {}};
    for (int64_t i = 0; i < q.queries(); ++i)
      q.seen[i] = {0, std::clamp<int64_t>(sight.seen(from + i) - q.begin, 0, q.keys())};
    simd::turn_spans(q.seen, q.queries(), q.keys(), q.readers);
    return q;
  }
  simd::Matrix<const Real> rows(const View<const Real>& view, int64_t from, int64_t to, int64_t columns) const {
    return {view.row(b, h, from), to - from, columns, view.next};
  }
  static simd::Factor<Real> left(const simd::Matrix<const Real>& m) { return {m.data, m.row}; }
  static simd::Factor<Real> transposed(const simd::Matrix<const Real>& m) { return {m.data, 1, m.row}; }

  // A and its slope of keys [from, to).
  void load(int64_t from, int64_t to) const {
    const int64_t n = to - from;
    multiply<Real>({x.pk.row(b, h, from), x.pk.next}, {p.pqt, d, lanes, lanes}, {p.a, n, lanes, lanes});
    attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      for (int64_t i = 0; i < n * lanes; i += kUnit<Real>) {
        Unit<Real, decltype(isa)> a, slope;
        luna::load(p.a + i, a);
        activate(s.map, a, slope);
        luna::store(a, p.a + i);
        luna::store(slope, p.slope + i);
      }
      for (int64_t i = 0; i < n; ++i) std::fill(p.a + i * lanes + live, p.a + (i + 1) * lanes, Real{0});
    });
  }

  // Besides A^T, K^T and V^T.
  void load(const Block& q) const {
    load(q.begin, q.end);
    turn(p.a, lanes, q.keys(), live, p.at, kRows);
    turn(x.k.row(b, h, q.begin), x.k.next, q.keys(), d, p.kt, kRows);
    turn(x.v.row(b, h, q.begin), x.v.next, q.keys(), e, p.vt, kRows);
  }

  // to = a b^T for the queries and keys of a block; bt: [inner][kRows].
  static void pair(const Block& q, const simd::Factor<Real>& a, const Real* bt, int64_t inner, Real* to) {
    const int64_t columns = simd::whole_lanes(q.keys());
    multiply<Real>(a, {bt, inner, columns, kRows}, {to, q.queries(), columns, kRows});
  }

  // Keys [from, to), which are loaded, enter K_t and V_t.
  void append(int64_t from, int64_t to) const {
    const simd::Matrix<const Real> a{p.a, to - from, lanes, lanes};
    simd::product<Real>(transposed(rows(x.k, from, to, d)), a, {p.keys, d, lanes, lanes});
    simd::product<Real>(transposed(rows(x.v, from, to, e)), a, {p.values, e, lanes, lanes});
  }

  // Calls body(block) for each block of queries with K_t and V_t up to its keys, its keys loaded, its weights in p.w.
  template <class Body>
  void scan(const Body& body) const {
    for (Real* part : {p.keys, p.values}) std::fill(part, part + p.row * lanes, Real{0});
    turn(pq, width, live, d, p.pqt, lanes);
    int64_t appended = 0;
    for (int64_t from = 0; from < sight.queries; from += kRows) {
      const Block q = block(from);
      for (int64_t to; appended < q.begin; appended = to) {
        to = std::min(appended + kRows, q.begin);
        load(appended, to);
        append(appended, to);
      }
      load(q);
      Real* w = p.w + from * lanes;
      const auto queries = left(rows(x.q, q.from, q.to, d));
      multiply<Real>(queries, {p.keys, d, lanes, lanes}, {w, q.queries(), lanes, lanes});
      pair(q, queries, p.kt, d, p.qk);
      simd::product_within<Real>(q.seen, {p.qk, kRows}, {p.a, q.keys(), lanes, lanes}, {w, q.queries(), lanes, lanes});
      attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t i = 0; i < q.queries(); ++i)
          attnkit::softmax<decltype(isa)>(w + i * lanes, live, by / static_cast<Real>(sight.seen(from + i)));
      });
      body(q);
      append(q.begin, q.end);
      appended = q.end;
    }
  }

  // to += by . the sums as queries of a block see them; of these are columns of the sums and rows of keys or values.
  void read(const Block& q, const Real* by, const Real* sums, const View<const Real>& of, int64_t columns,
            const View<Real>& to) const {
    const simd::Matrix<Real> rows_to{to.row(b, h, q.from), q.queries(), columns, to.next};
    turn(sums, lanes, columns, live, p.flat, p.row);
    simd::product<Real>({by, lanes}, {p.flat, live, columns, p.row}, rows_to);
    pair(q, {by, lanes}, p.at, live, p.pairs);
    simd::product_within<Real>(q.seen, {p.pairs, kRows}, rows(of, q.begin, q.end, columns), rows_to);
  }

  void forward(const View<Real>& o) const {
    for (int64_t i = 0; i < sight.queries; ++i) std::fill(o.row(b, h, i), o.row(b, h, i) + e, Real{0});
    if (live == 0) return;
    scan([&](const Block& q) {
      Real* w = p.w + q.from * lanes;
      for (int64_t i = 0; i < q.queries(); ++i)
        for (int64_t r = 0; r < live; ++r) w[i * lanes + r] /= static_cast<Real>(sight.seen(q.from + i));
      read(q, w, p.values, x.v, e, o);
    });
  }

  // dpq: of this row.
  void backward(const RecurrentGrad<Real>& g, Real* dpq) const {
    dpq += h * d;
    if (live == 0 || sight.queries == 0) return;
    scan([&](const Block& q) {
      Real *w = p.w + q.from * lanes, *dl = p.dl + q.from * lanes;
      const auto given = left(rows(g.o, q.from, q.to, e));
      multiply<Real>(given, {p.values, e, lanes, lanes}, {dl, q.queries(), lanes, lanes});
      pair(q, given, p.vt, e, p.gv);
      simd::product_within<Real>(q.seen, {p.gv, kRows}, {p.a, q.keys(), lanes, lanes}, {dl, q.queries(), lanes, lanes});
      attnkit::in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t i = 0; i < q.queries(); ++i) {
          const auto t = static_cast<Real>(sight.seen(q.from + i));
          const Real mean = simd::dot<decltype(isa)>(w + i * lanes, dl + i * lanes, lanes);
          for (int64_t r = i * lanes; r < (i + 1) * lanes; ++r) {
            dl[r] = w[r] * (dl[r] - mean) * (by / (t * t));
            w[r] /= t;
          }
        }
      });
      if (g.q) read(q, dl, p.keys, x.k, d, g.q);
    });
    for (Real* part : {p.rk, p.rv, p.rkt, p.rvt}) std::fill(part, part + p.row * lanes, Real{0});
    int64_t end = 0;
    for (int64_t from = (sight.queries - 1) / kRows * kRows; from >= 0; from -= kRows) {
      const Block q = block(from);
      const simd::Matrix<const Real> queries = rows(x.q, q.from, q.to, d), given = rows(g.o, q.from, q.to, e);
      give(g, q.begin, q.end, &q, dpq);
      end = q.begin;
      simd::product<Real>({p.dl + from * lanes, 1, lanes}, queries, {p.rk, live, d, p.row});
      simd::product<Real>({p.w + from * lanes, 1, lanes}, given, {p.rv, live, e, p.row});
      turn(p.rk, p.row, live, d, p.rkt, lanes);
      turn(p.rv, p.row, live, e, p.rvt, lanes);
    }
    for (int64_t from = 0; from < end; from += kRows) give(g, from, std::min(from + kRows, end), nullptr, dpq);
    unscale<Real>({dpq, live, d, width});
  }

  // Gradients of keys [from, to): through the sums of queries, and of the block q that sees some of them if there is
  // one.
  void give(const RecurrentGrad<Real>& g, int64_t from, int64_t to, const Block* q, Real* dpq) const {
    const int64_t n = to - from;
    const simd::Matrix<const Real> k = rows(x.k, from, to, d), v = rows(x.v, from, to, e);
    const simd::Matrix<Real> da{p.da, n, lanes, lanes};
    if (q)
      load(*q);
    else
      load(from, to);
    multiply<Real>(left(k), {p.rkt, d, lanes, lanes}, da);
    simd::product<Real>(left(v), {p.rvt, e, lanes, lanes}, da);
    const auto add = [&](const View<Real>& to_rows, const simd::Factor<Real>& a, const simd::Matrix<const Real>& rows,
                         const simd::Span* spans = nullptr) {
      if (!to_rows) return;
      const simd::Matrix<Real> sums{to_rows.row(b, h, from), n, rows.columns, to_rows.next};
      spans ? simd::product_within<Real>(spans, a, rows, sums) : simd::product<Real>(a, rows, sums);
    };
    add(g.k, {p.a, lanes}, {p.rk, live, d, p.row});
    add(g.v, {p.a, lanes}, {p.rv, live, e, p.row});
    if (q) {
      const simd::Matrix<const Real> queries = rows(x.q, q->from, q->to, d), given = rows(g.o, q->from, q->to, e);
      const Real *w = p.w + q->from * lanes, *dl = p.dl + q->from * lanes;
      pair(*q, left(queries), p.kt, d, p.qk);
      pair(*q, left(given), p.vt, e, p.gv);
      simd::product_within<Real>(q->readers, {p.qk, 1, kRows}, {dl, q->queries(), lanes, lanes}, da);
      simd::product_within<Real>(q->readers, {p.gv, 1, kRows}, {w, q->queries(), lanes, lanes}, da);
      pair(*q, {dl, lanes}, p.at, live, p.pairs);
      add(g.k, {p.pairs, 1, kRows}, queries, q->readers);
      pair(*q, {w, lanes}, p.at, live, p.pairs);
      add(g.v, {p.pairs, 1, kRows}, given, q->readers);
    }
    for (int64_t i = 0; i < n * lanes; ++i) p.da[i] *= p.slope[i];
    add(g.pk, {p.da, lanes}, {pq, live, d, width});
    simd::product<Real>({p.da, 1, lanes}, rows(x.pk, from, to, d), {dpq, live, d, width});
  }
};

// An f64 run, one batch row after another.
struct Forward {
  using Real = double;
  Pass<Real> pass;
  View<Real> o, next;
  const Shape& s = pass.shape;
  const Tensors<Real>& x = pass.x;

  // out = by (rows W^T + bias)
  void project(const Real* rows, int64_t row, const View<const Real>& weight, const View<const Real>& bias,
               int64_t outputs, double by, Real* out) const {
    for (int64_t i = 0; i < s.l; ++i)
      for (int64_t c = 0; c < outputs; ++c)
        out[i * outputs + c] = static_cast<Real>(by) *
                               (simd::dot<simd::Baseline>(rows + i * row, weight.row(c), s.width()) + bias.data[c]);
  }

  void operator()(int64_t b, void* scratch) const {
    const int64_t width = s.width(), fresh = pass.sight(b).fresh;
    if (fresh > 0)
      project(x.p.row(b, 0, 0), x.p.next, x.pq_weight, x.pq_bias, width, scale(s.causal ? s.d : s.pack_d()),
              pass.pq(b));
    if (s.causal) {
      *Causal<Real>(pass.memory(b), s).live = static_cast<Real>(x.live(b, s));
      for (int64_t h = 0; h < s.heads; ++h) {
        Layout layout(scratch);
        Recurrence<Real>{pass, b, h, {layout, s, pass.run.queries}}.forward(o);
      }
      return;
    }
    for (int64_t h = 0; fresh > 0 && h < s.pack_heads; ++h) {
      Layout layout(scratch);
      Pack<Real>{pass, b, h, {layout, s}}.forward();
    }
    finish(b);
    for (int64_t h = 0; h < s.heads; ++h) {
      Layout layout(scratch);
      Unpack<Real>{pass, b, h, {layout, s}}.forward(o);
    }
  }

  // The packed sequence, its keys and values, and P'.
  void finish(int64_t b) const {
    const Packed<Real> known(pass.memory(b), s);
    const int64_t width = s.width(), live = pass.live(b);
    for (int64_t i = 0; s.gives() && i < s.l; ++i) std::fill(next.row(b, 0, i), next.row(b, 0, i) + width, Real{0});
    if (live == 0) return;
    Real* packed = pass.rows(pass.known.packed, b);
    for (int64_t i = 0; i < s.l; ++i) {
      Real* y = packed + i * width;
      for (int64_t c = 0; c < width; ++c) y[c] = known.sums[i * width + c] / known.totals[c / s.pack_d() * s.l + i];
      if (s.gives() && i < live)
        normalise(y, x.p.row(b, 0, i), width, x.norm_weight.data, x.norm_bias.data, next.row(b, 0, i));
    }
    project(packed, width, x.k_weight, x.k_bias, width, 1, known.keys);
    if (!s.tied) project(packed, width, x.v_weight, x.v_bias, s.heads * s.e, 1, known.values);
  }
};

// One backward call.
template <class Real>
struct Backward {
  // Scratch of all workers, by batch row: gradients of K, V, Y, pq and P, l rows each, and of the norm.
  struct Sums {
    Real *dk, *dv, *dy, *dpq, *dp, *norm;
    Sums(Layout& layout, const Shape& s, int64_t batch) {
      const int64_t size = batch * s.l * s.width();
      for (Real** part : {&dk, &dy}) *part = layout.take<Real>(s.causal ? 0 : size);
      for (Real** part : {&dpq, &dp}) *part = layout.take<Real>(size);
      dv = s.tied ? dk : layout.take<Real>(s.causal ? 0 : batch * s.l * s.heads * s.e);
      norm = layout.take<Real>(s.gives() ? batch * 2 * s.width() : 0);
    }
  };

  Pass<Real> pass;
  const attn_grad& grad;
  const Ports& io;
  uint64_t bytes;  // scratch of a worker
  Sums sums;
  const Shape& s = pass.shape;
  const Tensors<Real>& x = pass.x;
  int64_t l = s.l, width = s.width(), value_width = s.heads * s.values();

  static uint64_t worker_bytes(const Shape& s, int64_t queries) {
    if (s.causal) return Layout::measure<typename Recurrence<Real>::Scratch>(s, queries);
    return std::max(Layout::measure<typename Unpack<Real>::Scratch>(s),
                    Layout::measure<typename Pack<Real>::Scratch>(s));
  }

  View<Real> view(Port port) const { return View<Real>(grad, port); }

  // Calls body(b, item, layout) for n items of every batch row, of about this many flops each.
  template <class Body>
  void each(int64_t n, double flops, const Body& body) const {
    attnkit::for_each_head(pass.run, n, {flops, bytes}, [&](int64_t b, int64_t item, void* scratch) {
      Layout layout(scratch);
      body(b, item, layout);
    });
  }

  void operator()() const {
    const int64_t blocks = (width + kBlock - 1) / kBlock;
    const double keys = static_cast<double>(pass.run.keys), queries = static_cast<double>(pass.run.queries);
    const auto rows = static_cast<double>(l * width), squares = 2 * kBlock * rows;
    each(1, rows, [&](int64_t b, int64_t, Layout&) { begin(b); });
    if (s.causal) {
      const RecurrentGrad<Real> g{{grad, io.o}, view(io.q), view(io.k), view(s.tied ? io.k : io.v), view(io.pk)};
      each(s.heads, 24 * (keys + queries) * static_cast<double>(l * s.d), [&](int64_t b, int64_t h, Layout& layout) {
        Recurrence<Real>{pass, b, h, {layout, s, pass.run.queries}}.backward(g, pass.rows(sums.dpq, b));
      });
    } else {
      const QueryGrad<Real> g{{grad, io.o}, view(io.q)};
      each(s.heads, 10 * queries * static_cast<double>(l * s.d), [&](int64_t b, int64_t h, Layout& layout) {
        Unpack<Real>{pass, b, h, {layout, s}}.backward(g, pass.rows(sums.dk, b), sums.dv + b * l * value_width);
      });
      each(blocks, 2 * squares, [&](int64_t b, int64_t block, Layout&) { of_packed(b, block * kBlock); });
      const View<Real> dpk = view(io.pk), dpv = view(s.tied ? io.pk : io.pv);
      each(s.pack_heads, 10 * keys * rows / static_cast<double>(s.pack_heads),
           [&](int64_t b, int64_t head, Layout& layout) {
             Pack<Real>{pass, b, head, {layout, s}}.backward(pass.rows(sums.dy, b), dpk, dpv, pass.rows(sums.dpq, b));
           });
    }
    each(blocks, squares, [&](int64_t b, int64_t block, Layout&) { of_p(b, block * kBlock); });
    learned();
  }

  // Clears the sums of a batch row; what P' gives to Y and P.
  void begin(int64_t b) const {
    for (Real* part : {sums.dpq, sums.dp}) std::fill(pass.rows(part, b), pass.rows(part, b) + pass.size(), Real{0});
    if (s.causal) return;
    for (Real* part : {sums.dk, sums.dy}) std::fill(pass.rows(part, b), pass.rows(part, b) + pass.size(), Real{0});
    std::fill(sums.dv + b * l * value_width, sums.dv + (b + 1) * l * value_width, Real{0});
    if (!s.gives()) return;
    const View<const Real> given(grad, io.p_out);
    Real* norm = sums.norm + b * 2 * width;
    std::fill(norm, norm + 2 * width, Real{0});
    for (int64_t i = 0; i < pass.live(b); ++i) {
      const int64_t at = b * pass.size() + i * width;
      normalise_gradient(pass.known.packed + at, x.p.row(b, 0, i), given.row(b, 0, i), norm, sums.dy + at);
      std::copy_n(sums.dy + at, width, sums.dp + at);
    }
  }

  // From the gradient of LN(y + p), given, that of y; adds to those of the norm.
  void normalise_gradient(const Real* y, const Real* p, const Real* given, Real* norm, Real* to) const {
    const Moments of = moments(y, p, width);
    double mean = 0, slope = 0;
    const auto at = [&](int64_t c) { return (double{y[c]} + p[c] - of.mean) * of.factor; };
    for (int64_t c = 0; c < width; ++c) {
      const double g = double{given[c]} * x.norm_weight.data[c];
      mean += g / static_cast<double>(width);
      slope += g * at(c) / static_cast<double>(width);
      norm[c] += static_cast<Real>(given[c] * at(c));
      norm[width + c] += given[c];
    }
    for (int64_t c = 0; c < width; ++c)
      to[c] = static_cast<Real>((double{given[c]} * x.norm_weight.data[c] - mean - at(c) * slope) * of.factor);
  }

  // Columns [from, from + kBlock) of dY += dK W_k^T + dV W_v^T.
  void of_packed(int64_t b, int64_t from) const {
    through(pass.rows(sums.dk, b), x.k_weight, width, from, pass.rows(sums.dy, b));
    if (!s.tied) through(sums.dv + b * l * value_width, x.v_weight, value_width, from, pass.rows(sums.dy, b));
  }

  void through(const Real* given, const View<const Real>& weight, int64_t outputs, int64_t from, Real* to) const {
    const int64_t columns = std::min(kBlock, width - from);
    simd::product<Real>({given, outputs}, {weight.row() + from, outputs, columns, weight.next},
                        {to + from, l, columns, width});
  }

  // The same columns of dP += dpq W_pq^T.
  void of_p(int64_t b, int64_t from) const {
    Real* dp = pass.rows(sums.dp, b);
    through(pass.rows(sums.dpq, b), x.pq_weight, width, from, dp);
    if (const View<Real> to = view(io.p_in); x.aux && to)
      for (int64_t i = 0; i < l; ++i)
        std::copy_n(dp + i * width + from, std::min(kBlock, width - from), to.row(b, 0, i) + from);
  }

  // Adds to the gradients of LEARNED ports, batch row by batch row.
  void learned() const {
    dense(io.pq_weight, io.pq_bias, sums.dpq, width, [this](int64_t b) { return Rows{x.p.row(b, 0, 0), x.p.next}; });
    const auto packed = [this](int64_t b) { return Rows{pass.rows(pass.known.packed, b), width}; };
    if (!s.causal) dense(io.k_weight, io.k_bias, sums.dk, width, packed);
    if (!s.causal && !s.tied) dense(io.v_weight, io.v_bias, sums.dv, value_width, packed);
    const View<Real> start = view(io.start), weight = view(io.norm_weight), bias = view(io.norm_bias);
    for (int64_t b = 0; b < pass.run.batch; ++b) {
      for (int64_t i = 0; start && !x.aux && i < l; ++i) add(pass.rows(sums.dp, b) + i * width, start.row(i));
      if (weight) add(sums.norm + b * 2 * width, weight.row());
      if (bias) add(sums.norm + (b * 2 + 1) * width, bias.row());
    }
  }

  void add(const Real* from, Real* to) const {
    for (int64_t c = 0; c < width; ++c) to[c] += from[c];
  }

  struct Rows {
    const Real* data;
    int64_t next;
  };
  // Of y = x W^T + bias; given: of y, [batch][l][outputs]; in(b): the rows of x.
  template <class In>
  void dense(Port weight, Port bias, const Real* given, int64_t outputs, const In& in) const {
    const View<Real> dw = view(weight), db = view(bias);
    const auto block = [&](int64_t item, void*) {
      const int64_t from = item * kBlock, columns = std::min(kBlock, outputs - from);
      for (int64_t b = 0; b < pass.run.batch; ++b) {
        const Real* of = given + b * l * outputs + from;
        const int64_t live = pass.live(b);
        const Rows rows = in(b);
        if (dw)
          simd::product<Real>({of, 1, outputs}, {rows.data, live, width, rows.next},
                              {dw.row(from), columns, width, dw.next});
        for (int64_t r = 0; db && r < live; ++r)
          for (int64_t c = 0; c < columns; ++c) db.data[from + c] += of[r * outputs + c];
      }
    };
    const double flops = 2.0 * static_cast<double>(pass.run.batch * l * width * kBlock);
    attnkit::for_each_item(pass.run, (outputs + kBlock - 1) / kBlock, {flops, 0}, block);
  }
};

}  // namespace luna
