// The gradient of the linear core, in two scans over blocks of queries and keys.
//
// With G the gradient of o, x_i = a_i . z_i as the run saved it, and g' the guard's slope:
//
//   u_i = G_i / g(x_i),   w_i = -g'(x_i) (G_i . o_i) / g(x_i)
//   da_i = S_i u_i + w_i z_i                        forward, S and z as in the run
//   R_j = sum a u^T, r_j = sum w a over the queries that see key j
//   db_j = R_j v_j + r_j,   dv_j = R_j^T b_j        backward, keys in reverse
//
// A block of queries meets the keys that all of them see through S, or R, and those that some of them see by masked
// products: O(N) time, and memory for S, R and one block of each.  Nothing is ever subtracted from a sum.
#ifndef ATTNKIT_KERNELS_LINEAR_GRADIENT_HPP
#define ATTNKIT_KERNELS_LINEAR_GRADIENT_HPP
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/kernels/linear/core.hpp>
#include <attnkit/kernels/product.hpp>

namespace attnkit::linear {

// A map with a derivative; one with LEARNED ports says which.
template <class Map>
concept Differentiable = requires(const Map& map) {
  map.learned();
}
|| requires(const Map& map, const At<simd::Baseline>& at, float* x) { map.query_gradient(x, at, x, x, x); };

constexpr int64_t kBlock = 32;  // queries, and keys, of a block

// Scratch of a worker.
template <class Real>
struct GradientScratch {
  int64_t row, e;          // numbers from row to row of features and of values
  Real *a, *b, *da, *db;   // [kBlock][row]: features of queries and keys, and their gradients
  Real *u, *w, *dv;        // [kBlock][e], [kBlock], [kBlock][e]
  Real *at, *ut;           // a and u, transposed: [][kBlock]
  Real *scores, *weights;  // [keys][queries] of a block: a_i . b_j, and u_i . v_j + w_i
  Real *s, *st, *z;        // R, [features][e]; S or R transposed, [e][row]; z or r
  Real* dx;                // of one row of queries or keys
  GradientScratch(Layout& layout, const Shape& shape)
      : row(simd::whole_lanes(shape.row())), e(simd::whole_lanes(shape.e)) {
    for (Real** part : {&a, &b, &da, &db, &at}) *part = layout.take<Real>(kBlock * row);
    for (Real** part : {&u, &dv, &ut}) *part = layout.take<Real>(kBlock * e);
    for (Real** part : {&scores, &weights}) *part = layout.take<Real>(kBlock * kBlock);
    for (Real** part : {&s, &st}) *part = layout.take<Real>(row * e);
    w = layout.take<Real>(kBlock);
    z = layout.take<Real>(row);
    dx = layout.take<Real>(shape.d);
  }
};

// One backward call; called for each head of keys of each batch row, whose heads of queries follow one another.
template <class Map, class Real>
struct Gradient {
  const Shape& shape;
  const Guard& guard;
  const Map& map;
  bool causal;
  const attn_run& run;
  Qkv<Real> x;
  QkvGrad<Real> g;
  int64_t learned_floats;
  Real* learned;  // [batch][heads][learned_floats]

  void operator()(int64_t b, int64_t kv, void* memory) const {
    Layout layout(memory);
    const GradientScratch<Real> scratch(layout, shape);
    const Sight sight(run, b, causal);
    for (int64_t n = 0; n < shape.group(); ++n) {
      const int64_t h = kv * shape.group() + n, item = b * shape.heads + h;
      Real* sums = learned + item * learned_floats;
      std::fill(sums, sums + learned_floats, Real{0});
      const Head head{*this, b, h, kv, n == 0, sight, scratch, static_cast<const Real*>(run.saved) + item * run.queries,
                      sums};
      head();
    }
  }

  // Queries [from, to), all of which see keys [0, lo), and some keys up to hi.
  struct Block {
    int64_t from, to, lo, hi;
    int64_t size() const { return to - from; }
  };

  struct Head {
    static constexpr Real kOne = 1;
    const Gradient& all;
    int64_t b, h, kv;
    bool starts;  // the gradients of keys and values; otherwise adds to them
    Sight sight;
    GradientScratch<Real> p;
    const Real* saved;
    Real* learned;

    const Shape& shape() const { return all.shape; }
    // Columns of the features for S that products take.
    int64_t columns() const { return shape().split ? shape().features : p.row; }

    void operator()() const {
      std::memset(p.a, 0, static_cast<size_t>(reinterpret_cast<char*>(p.dx) - reinterpret_cast<char*>(p.a)));
      int64_t first = 0;
      while (first < sight.queries && sight.seen(first) <= 0) ++first;
      const int64_t top = first < sight.queries ? sight.seen(sight.queries - 1) : 0;
      clear(all.g.q, h, 0, first, shape().d);
      clear(all.g.q, h, sight.queries, all.run.queries, shape().d);
      clear(all.g.k, kv, top, all.run.keys, shape().d);
      clear(all.g.v, kv, top, all.run.keys, shape().e);
      if (top == 0) return;
      if (all.g.q || all.learned_floats > 0) forward(first);
      if (all.g.k || all.g.v || all.learned_floats > 0) reverse(first, top);
    }

    void clear(const View<Real>& to, int64_t head, int64_t from, int64_t end, int64_t width) const {
      for (int64_t i = from; to && i < end; ++i)
        std::memset(to.row(b, head, i), 0, static_cast<size_t>(width) * sizeof(Real));
    }

    // A row of the gradient of keys or values.
    void give(const View<Real>& to, int64_t j, const Real* row, int64_t width) const {
      Real* sum = to.row(b, kv, j);
      if (starts) return static_cast<void>(std::copy(row, row + width, sum));
      for (int64_t c = 0; c < width; ++c) sum[c] += row[c];
    }

    Block block(int64_t from) const {
      const int64_t to = std::min(from + kBlock, sight.queries);
      return {from, to, sight.seen(from), sight.seen(to - 1)};
    }

    // a, u and w of a block of queries, and a and u transposed.
    void load_queries(const Block& q) const {
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t i = 0; i < q.size(); ++i) {
          const int64_t n = q.from + i;
          all.map.query(all.x.q.row(b, h, n), At<decltype(isa)>{{b, h, sight.q_pos + n}}, p.a + i * p.row);
          const Real *given = all.g.o.row(b, h, n), *o = all.x.o.row(b, h, n);
          const Real den = all.guard(saved[n]);
          for (int64_t c = 0; c < shape().e; ++c) p.u[i * p.e + c] = given[c] / den;
          p.w[i] = -all.guard.slope(saved[n]) * simd::dot<decltype(isa)>(given, o, shape().e) / den;
        }
      });
      transpose_rows(p.a, p.row, q.size(), shape().features, p.at, kBlock);
      transpose_rows(p.u, p.e, q.size(), shape().e, p.ut, kBlock);
    }

    void load_keys(int64_t from, int64_t to) const {
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t j = from; j < to; ++j)
          all.map.key(all.x.k.row(b, kv, j), At<decltype(isa)>{{b, kv, j}}, p.b + (j - from) * p.row);
      });
    }

    // weights and scores of a block of queries and keys [from, to), 0 where a query does not see a key.
    void weigh(const Block& q, int64_t from, int64_t to, bool with_scores) const {
      const int64_t keys = to - from, lanes = simd::whole_lanes(q.size()), e = shape().e, f = shape().features;
      std::fill(p.scores, p.scores + keys * kBlock, Real{0});
      for (int64_t j = 0; j < keys; ++j) {
        Real* row = p.weights + j * kBlock;
        if (shape().split == 0)
          std::copy(p.w, p.w + kBlock, row);
        else
          std::fill(row, row + kBlock, Real{0});
      }
      simd::product<Real>({all.x.v.row(b, kv, from), all.x.v.next}, {p.ut, e, lanes, kBlock},
                          {p.weights, keys, lanes, kBlock});
      if (with_scores) simd::product<Real>({p.b, p.row}, {p.at, f, lanes, kBlock}, {p.scores, keys, lanes, kBlock});
      int64_t unseen = 0;
      for (int64_t j = 0; j < keys; ++j) {
        while (unseen < q.size() && sight.seen(q.from + unseen) <= from + j) ++unseen;
        for (Real* matrix : {p.weights, p.scores}) std::fill_n(matrix + j * kBlock, unseen, Real{0});
      }
    }

    // With features of their own for z: what is left of weights, w_i where query i sees key j, into scores.
    void weigh_sums(const Block& q, int64_t from, int64_t to) const {
      int64_t unseen = 0;
      for (int64_t j = 0; j < to - from; ++j) {
        while (unseen < q.size() && sight.seen(q.from + unseen) <= from + j) ++unseen;
        Real* to_row = p.scores + j * kBlock;
        for (int64_t i = 0; i < q.size(); ++i) to_row[i] = i < unseen ? 0 : p.w[i];
      }
    }

    // Keys [from, to), whose features are loaded, enter S and z.
    void append(int64_t from, int64_t to) const {
      simd::product<Real>({all.x.v.row(b, kv, from), 1, all.x.v.next}, {p.b, to - from, columns(), p.row},
                          {p.st, shape().e, columns(), p.row});
      simd::product<Real>({&kOne, 0, 0}, {p.b + shape().split, to - from, shape().features, p.row},
                          {p.z, 1, shape().features, p.row});
    }

    void forward(int64_t first) const {
      const int64_t split = shape().split, features = shape().features;
      int64_t appended = 0;
      for (int64_t from = first; from < sight.queries; from += kBlock) {
        const Block q = block(from);
        for (int64_t to; appended < q.lo; appended = to) {
          to = std::min(appended + kBlock, q.lo);
          load_keys(appended, to);
          append(appended, to);
        }
        load_queries(q);
        std::fill(p.da, p.da + q.size() * p.row, Real{0});
        simd::product<Real>({p.u, p.e}, {p.st, shape().e, columns(), p.row}, {p.da, q.size(), columns(), p.row});
        simd::product<Real>({p.w, 1}, {p.z, 1, features, p.row}, {p.da + split, q.size(), features, p.row});
        for (int64_t to; appended < q.hi; appended = to) {
          to = std::min(appended + kBlock, q.hi);
          load_keys(appended, to);
          weigh(q, appended, to, false);
          simd::product<Real>({p.weights, 1, kBlock}, {p.b, to - appended, columns(), p.row},
                              {p.da, q.size(), columns(), p.row});
          if (split) {
            weigh_sums(q, appended, to);
            simd::product<Real>({p.scores, 1, kBlock}, {p.b + split, to - appended, features, p.row},
                                {p.da + split, q.size(), features, p.row});
          }
          append(appended, to);
        }
        in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
          for (int64_t i = 0; i < q.size(); ++i) {
            const int64_t n = from + i;
            const Real* row = all.x.q.row(b, h, n);
            const At<decltype(isa)> at{{b, h, sight.q_pos + n}};
            Real* to = all.g.q ? all.g.q.row(b, h, n) : p.dx;
            if constexpr (requires { all.map.learned(); })
              all.map.query_gradient(row, at, p.a + i * p.row, p.da + i * p.row, to, learned);
            else
              all.map.query_gradient(row, at, p.a + i * p.row, p.da + i * p.row, to);
          }
        });
      }
    }

    // Keys [from, to): their gradients through R and r, and through the products with the block of queries q if there
    // is one.
    void give_keys(int64_t from, int64_t to, const Block* q) const {
      const int64_t keys = to - from, split = shape().split, features = shape().features, e = shape().e;
      load_keys(from, to);
      std::fill(p.db, p.db + keys * p.row, Real{0});
      std::fill(p.dv, p.dv + keys * p.e, Real{0});
      simd::product<Real>({all.x.v.row(b, kv, from), all.x.v.next}, {p.st, e, columns(), p.row},
                          {p.db, keys, columns(), p.row});
      simd::product<Real>({&kOne, 0, 0}, {p.z, 1, features, p.row}, {p.db + split, keys, features, p.row});
      simd::product<Real>({p.b, p.row}, {p.s, features, p.e, p.e}, {p.dv, keys, p.e, p.e});
      if (q) {
        weigh(*q, from, to, true);
        simd::product<Real>({p.weights, kBlock}, {p.a, q->size(), columns(), p.row}, {p.db, keys, columns(), p.row});
        simd::product<Real>({p.scores, kBlock}, {p.u, q->size(), p.e, p.e}, {p.dv, keys, p.e, p.e});
        if (split) {
          weigh_sums(*q, from, to);
          simd::product<Real>({p.scores, kBlock}, {p.a + split, q->size(), features, p.row},
                              {p.db + split, keys, features, p.row});
        }
      }
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t j = 0; j < keys; ++j) {
          const Real* row = all.x.k.row(b, kv, from + j);
          const At<decltype(isa)> at{{b, kv, from + j}};
          if constexpr (requires { all.map.learned(); })
            all.map.key_gradient(row, at, p.b + j * p.row, p.db + j * p.row, p.dx, learned);
          else
            all.map.key_gradient(row, at, p.b + j * p.row, p.db + j * p.row, p.dx);
          if (all.g.k) give(all.g.k, from + j, p.dx, shape().d);
        }
      });
      for (int64_t j = 0; all.g.v && j < keys; ++j) give(all.g.v, from + j, p.dv + j * p.e, e);
    }

    void reverse(int64_t first, int64_t top) const {
      const int64_t split = shape().split, features = shape().features;
      for (Real* part : {p.s, p.st}) std::fill(part, part + p.row * p.e, Real{0});
      std::fill(p.z, p.z + p.row, Real{0});
      int64_t end = top;  // keys from here on have their gradients
      const auto give_from = [&](int64_t from, const Block* q) {
        while (end > from) {
          const int64_t begin = std::max(from, end - kBlock);
          give_keys(begin, end, q);
          end = begin;
        }
      };
      for (int64_t from = first + (sight.queries - 1 - first) / kBlock * kBlock; from >= first; from -= kBlock) {
        const Block q = block(from);
        give_from(q.hi, nullptr);
        load_queries(q);
        give_from(q.lo, &q);
        simd::product<Real>({p.a, 1, p.row}, {p.u, q.size(), p.e, p.e}, {p.s, features, p.e, p.e});
        transpose_rows(p.s, p.e, features, shape().e, p.st, p.row);
        simd::product<Real>({p.w, 0}, {p.a + split, q.size(), features, p.row}, {p.z, 1, features, p.row});
      }
      give_from(0, nullptr);
    }
  };
};

}  // namespace attnkit::linear
#endif
