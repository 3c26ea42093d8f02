// The gradient of the linear core, in two scans over blocks of queries and keys.
//
// With G the gradient of o, x_i = a_i . z_i as the run saved it, and g' the guard's slope:
//
//   u_i = G_i / g(x_i),   w_i = -g'(x_i) (G_i . o_i) / g(x_i)
//   da_i = S_i u_i + w_i z_i                        forward, S and z as in the run
//   R_j = sum a u^T, r_j = sum w a over the queries that see key j
//   db_j = R_j v_j + r_j,   dv_j = R_j^T b_j        backward, keys in reverse
//
// Both are lists of events like those of the run, append then read, that tiles of S^T, of R and of R^T in registers
// walk: O(N) time, and memory for S or R and kBlock events.  Nothing is ever subtracted from a sum.
#ifndef ATTNKIT_KERNELS_LINEAR_GRADIENT_HPP
#define ATTNKIT_KERNELS_LINEAR_GRADIENT_HPP
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/kernels/linear/core.hpp>

namespace attnkit::linear {

// A map with a derivative; one with LEARNED ports says which.
template <class Map>
concept Differentiable = requires(const Map& map) {
  map.learned();
}
|| requires(const Map& map, const At<simd::Baseline>& at, float* x) { map.query_gradient(x, at, x, x, x); };

constexpr int64_t kBlock = 32;  // events that are swept together

// Append k v^T; then read q into o.
template <class Real>
struct Term {
  const Real *k, *v, *q;
  Real* o;
};

// All of s, [rows][columns], against n terms; compiled once.
template <class Real>
__attribute__((noinline)) void sweep_terms(Real* s, int64_t rows, int64_t columns, const Term<Real>* terms, int64_t n) {
  in_vectors<Real>([&](auto isa) __attribute__((always_inline)) { sweep<decltype(isa)>(s, rows, columns, terms, n); });
}

// Scratch of a worker.
template <class Real>
struct GradientScratch {
  int64_t row, e;  // numbers from row to row of features and of values
  // Of each event: features of its query and of its key, the gradient of one of them and its part from z; u, the value,
  // and its gradient.
  Real *a, *b, *given, *rest, *u, *v, *dv;
  Real *s, *st, *z;  // R, [features][e]; S or R transposed, [e][row]; z or r
  Real* dx;          // of one row of queries or keys
  GradientScratch(Layout& layout, const Shape& shape)
      : row(simd::whole_lanes(shape.row())), e(simd::whole_lanes(shape.e)) {
    // Rows that are used together stand a few lines off from equal places of a page, where they would share a set of
    // the cache.
    constexpr int64_t apart = 5 * simd::kLanes;
    for (Real** part : {&a, &b, &given, &rest}) *part = layout.take<Real>(kBlock * row + apart);
    for (Real** part : {&u, &v, &dv}) *part = layout.take<Real>(kBlock * e + apart);
    for (Real** part : {&s, &st}) *part = layout.take<Real>(row * e);
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

  struct Head {
    const Gradient& all;
    int64_t b, h, kv;
    bool starts;  // the gradients of keys and values; otherwise adds to them
    Sight sight;
    GradientScratch<Real> p;
    const Real* saved;
    Real* learned;

    const Shape& shape() const { return all.shape; }

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
      if (all.g.q || all.learned_floats > 0) {
        Scan<true> scan(*this);
        sight.walk(
            false,
            [&](int64_t from, int64_t to) {
              while (from < to) scan.append(from++);
            },
            [&](int64_t i) { scan.read(i); });
        scan.flush();
      }
      if (all.g.k || all.g.v || all.learned_floats > 0) {
        for (Real* part : {p.s, p.st}) std::fill(part, part + p.row * p.e, Real{0});
        std::fill(p.z, p.z + p.row, Real{0});
        Scan<false> scan(*this);
        int64_t end = top;  // keys from here on have their gradients
        for (int64_t i = sight.queries - 1; i >= first; --i) {
          for (const int64_t seen = sight.seen(i); end > seen;) scan.read(--end);
          scan.append(i);
        }
        while (end > 0) scan.read(--end);
        scan.flush();
      }
    }

    void clear(const View<Real>& to, int64_t head, int64_t from, int64_t end, int64_t width) const {
      for (int64_t i = from; to && i < end; ++i)
        std::memset(to.row(b, head, i), 0, static_cast<size_t>(width) * sizeof(Real));
    }

    // Features and value of a key, for event n.
    template <class Isa>
    ATTNKIT_INLINE void load_key(int64_t j, int64_t n, int64_t soon) const {
      if (soon >= 0 && soon < sight.fresh) {
        simd::prefetch(all.x.k.row(b, kv, soon), shape().d);
        simd::prefetch(all.x.v.row(b, kv, soon), shape().e);
      }
      all.map.key(all.x.k.row(b, kv, j), At<Isa>{{b, kv, j}}, p.b + n * p.row);
      simd::map<Isa>(
          shape().e, p.v + n * p.e, [](const auto& v) __attribute__((always_inline)) { return v; },
          all.x.v.row(b, kv, j));
    }

    // a and u of a query, for event n.
    template <class Isa>
    ATTNKIT_INLINE void load_query(int64_t i, int64_t n, int64_t soon) const {
      if (soon >= 0 && soon < sight.queries) {
        simd::prefetch(all.x.q.row(b, h, soon), shape().d);
        simd::prefetch(all.g.o.row(b, h, soon), shape().e);
      }
      all.map.query(all.x.q.row(b, h, i), At<Isa>{{b, h, sight.q_pos + i}}, p.a + n * p.row);
      const auto part = [den = all.guard(saved[i])](const auto& given) __attribute__((always_inline)) {
        return given / den;
      };
      simd::map<Isa>(shape().e, p.u + n * p.e, part, all.g.o.row(b, h, i));
    }

    // w of a query.
    template <class Isa>
    ATTNKIT_INLINE Real weight(int64_t i, int64_t soon) const {
      if (soon >= 0 && soon < sight.queries) simd::prefetch(all.x.o.row(b, h, soon), shape().e);
      return slope(i, simd::dot<Isa>(all.g.o.row(b, h, i), all.x.o.row(b, h, i), shape().e));
    }
    // The same from its features and S u, for G . o = a . S u: with the rounding of S u, which it is to cancel, and no
    // more, for z, which it weighs, is large.
    template <class Isa>
    ATTNKIT_INLINE Real weight(int64_t i, const Real* a, const Real* su) const {
      using Vec = simd::Vector<double, Isa>;
      Vec sums{};
      double rest = 0;
      int64_t f = 0;
      for (; f + 8 <= shape().features; f += 8) sums += simd::load_as<Vec>(a + f) * simd::load_as<Vec>(su + f);
      for (; f < shape().features; ++f) rest += static_cast<double>(a[f]) * su[f];
      return slope(i, simd::sum(sums) + rest);
    }
    ATTNKIT_INLINE Real slope(int64_t i, double product) const {
      return static_cast<Real>(-all.guard.slope(saved[i]) * product / all.guard(saved[i]));
    }

    // Asks for the rows that a query, or a key, is about to get.
    template <bool query>
    ATTNKIT_INLINE void ask(int64_t i) const {
      const auto row = [&](const View<Real>& to, int64_t head, int64_t width) __attribute__((always_inline)) {
        if (to) simd::prefetch<true>(to.row(b, head, i), width);
      };
      if (query) return row(all.g.q, h, shape().d);
      row(all.g.k, kv, shape().d);
      row(all.g.v, kv, shape().e);
    }

    // From the gradient of a query's features, in event n, that of the query.
    template <class Isa>
    ATTNKIT_INLINE void give_query(int64_t i, int64_t n) const {
      const At<Isa> at{{b, h, sight.q_pos + i}};
      const Real* row = all.x.q.row(b, h, i);
      Real *to = all.g.q ? all.g.q.row(b, h, i) : p.dx, *features = p.a + n * p.row, *given = p.given + n * p.row;
      if constexpr (requires { all.map.learned(); })
        all.map.query_gradient(row, at, features, given, to, learned);
      else
        all.map.query_gradient(row, at, features, given, to);
    }

    template <class Isa>
    ATTNKIT_INLINE void give_key(int64_t j, int64_t n) const {
      const At<Isa> at{{b, kv, j}};
      const Real* row = all.x.k.row(b, kv, j);
      Real *features = p.b + n * p.row, *given = p.given + n * p.row;
      Real* to = starts && all.g.k ? all.g.k.row(b, kv, j) : p.dx;
      if constexpr (requires { all.map.learned(); })
        all.map.key_gradient(row, at, features, given, to, learned);
      else
        all.map.key_gradient(row, at, features, given, to);
      if (all.g.k && !starts) add<Isa>(all.g.k.row(b, kv, j), to, shape().d);
      if (!all.g.v) return;
      const Real* dv = p.dv + n * p.e;
      if (starts)
        std::copy_n(dv, shape().e, all.g.v.row(b, kv, j));
      else
        add<Isa>(all.g.v.row(b, kv, j), dv, shape().e);
    }

    template <class Isa>
    ATTNKIT_INLINE static void add(Real* sum, const Real* row, int64_t width) {
      simd::map<Isa>(
          width, sum, [](const auto& a, const auto& b) __attribute__((always_inline)) { return a + b; }, sum, row);
    }
  };

  // A scan of a head.  Forward, keys are appended and queries read; in reverse, queries are appended and keys read.
  template <bool kForward>
  class Scan {
   public:
    explicit Scan(const Head& head) : head_(head), p_(head.p) {}

    void append(int64_t i) {
      if (n_ == kBlock) flush();
      in_[n_] = i;
      out_[n_++] = -1;
    }
    // A reader rides in the event before it, if that has none yet.
    void read(int64_t i) {
      const bool rides = n_ > 0 && out_[n_ - 1] < 0;
      if (!rides) append(-1);
      out_[n_ - 1] = i;
    }

    void flush() {
      const Shape& shape = head_.shape();
      const int64_t columns = shape.split ? shape.features : simd::whole_lanes(shape.features);  // of st
      load();
      Term<Real> transposed[kBlock], plain[kBlock];  // of st, and of s
      bool reads = false;
      for (int64_t n = 0; n < n_; ++n) {
        const bool adds = in_[n] >= 0, asks = out_[n] >= 0;
        const Real *a = p_.a + n * p_.row, *b = p_.b + n * p_.row, *u = p_.u + n * p_.e, *v = p_.v + n * p_.e;
        Real *given = asks ? p_.given + n * p_.row : nullptr, *dv = asks ? p_.dv + n * p_.e : nullptr;
        transposed[n] =
            kForward ? Term<Real>{v, adds ? b : nullptr, u, given} : Term<Real>{u, adds ? a : nullptr, v, given};
        plain[n] = {a, adds ? u : nullptr, b, dv};
        reads = reads || asks;
      }
      if constexpr (!kForward) {
        if (reads && stale_) transpose(columns);
        sweep_terms(p_.s, shape.features, p_.e, plain, n_);
        stale_ = !reads;
      }
      if (kForward || reads) sweep_terms(p_.st, shape.e, columns, transposed, n_);
      give();
      n_ = 0;
    }

   private:
    void transpose(int64_t columns) const {
      const Shape& shape = head_.shape();
      if (columns % simd::kLanes == 0) return transpose_rows(p_.s, p_.e, shape.features, shape.e, p_.st, columns);
      for (int64_t f = 0; f < shape.features; ++f)
        for (int64_t c = 0; c < shape.e; ++c) p_.st[c * columns + f] = p_.s[f * p_.e + c];
    }
    // Comes in the next events.
    static int64_t soon(int64_t i) { return kForward ? i + kBlock : i - kBlock; }
    // Rows of all events, and z.
    void load() {
      const int64_t split = head_.shape().split, features = head_.shape().features;
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        using Isa = decltype(isa);
        for (int64_t n = 0; n < n_; ++n) {
          if (in_[n] >= 0) load_row<Isa, kForward>(in_[n], n);
          if (out_[n] >= 0) {
            head_.template ask<kForward>(out_[n]);
            load_row<Isa, !kForward>(out_[n], n);
          }
        }
        finish<Isa>();
        for (int64_t n = 0; n < n_; ++n) {
          if (in_[n] >= 0) {
            const Real w = kForward ? Real{1} : head_.template weight<Isa>(in_[n], soon(in_[n]));
            add<Isa>(p_.z, w, (kForward ? p_.b : p_.a) + n * p_.row + split, features);
          }
          if (out_[n] < 0) continue;
          std::fill_n(p_.given + n * p_.row, p_.row, Real{0});
          std::copy_n(p_.z, features, p_.rest + n * p_.row);
          if constexpr (!kForward) std::fill_n(p_.dv + n * p_.e, p_.e, Real{0});
        }
      });
    }
    template <class Isa, bool key>
    ATTNKIT_INLINE void load_row(int64_t i, int64_t n) const {
      if constexpr (key)
        head_.template load_key<Isa>(i, n, soon(i));
      else
        head_.template load_query<Isa>(i, n, soon(i));
    }
    template <class Isa>
    ATTNKIT_INLINE void finish() const {
      if constexpr (Finishes<Map, Real>) {
        Real* rows[2 * kBlock];
        int64_t count = 0;
        for (int64_t n = 0; n < n_; ++n) {
          if ((kForward ? in_ : out_)[n] >= 0) rows[count++] = p_.b + n * p_.row;
          if ((kForward ? out_ : in_)[n] >= 0) rows[count++] = p_.a + n * p_.row;
        }
        for (int64_t from = 0; from < count; from += kFinish)
          head_.all.map.template finish<Isa>(rows + from, std::min(kFinish, count - from));
      }
    }
    // sum += w row.
    template <class Isa>
    ATTNKIT_INLINE static void add(Real* sum, Real w, const Real* row, int64_t width) {
      simd::map<Isa>(
          width, sum, [w](const auto& a, const auto& b) __attribute__((always_inline)) { return a + b * w; }, sum, row);
    }

    void give() const {
      const int64_t split = head_.shape().split, features = head_.shape().features;
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        using Isa = decltype(isa);
        for (int64_t n = 0; n < n_; ++n) {
          if (out_[n] < 0) continue;
          // Last, for it cancels much of the others' sum.
          Real w = 1, *given = p_.given + n * p_.row;
          if constexpr (kForward) w = head_.template weight<Isa>(out_[n], p_.a + n * p_.row, given);
          add<Isa>(given + split, w, p_.rest + n * p_.row, features);
          if constexpr (kForward)
            head_.template give_query<Isa>(out_[n], n);
          else
            head_.template give_key<Isa>(out_[n], n);
        }
      });
    }

    const Head& head_;
    const GradientScratch<Real>& p_;
    int64_t n_ = 0, in_[kBlock], out_[kBlock];  // the row that each event appends, and that which reads; -1: none
    bool stale_ = false;                        // st lacks what s has
  };
};

}  // namespace attnkit::linear
#endif
