// The gradient of softmax attention, in tiles of 64 queries by 64 keys whose scores are made again, and its f64 run.
//
// With G the gradient of o, and lse_i = log sum_j exp(s_ij) as the run saved it:
//
//   p_ij = exp(s_ij - lse_i),   t_ij = scale p_ij (G_i . v_j - G_i . o_i)
//   dv_j = sum_i p_ij G_i,   dk_j = sum_i t_ij q_i,   dq_i = sum_j t_ij k_j
//
// A bias that is added to scores gets the gradients t_ij / scale.
//
// Each sum is one chain of additions in the order of its index, however the tiles are shared out: same bits for any
// number of workers.  A pair of a query and a key that it does not see is in none of them, were they NaN.
#ifndef ATTNKIT_KERNELS_ATTEND_GRADIENT_HPP
#define ATTNKIT_KERNELS_ATTEND_GRADIENT_HPP
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/kernels/product.hpp>
#include <cmath>
#include <limits>

namespace attnkit::attend {

constexpr int64_t kTile = 64;

using simd::Span;  // rows of queries or of keys

// x = 2^x in each lane for what is about 1 at most, 0 below 2^-100; NaN stays NaN.
template <class V>
ATTNKIT_INLINE void exp2(V& x) {
  const V shift = 12582912.0f - V{};  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const V shifted = x + shift, r = x - (shifted - shift);
  V p = 1.535336188e-4f - V{};
  p = p * r + 1.339887440e-3f;
  p = p * r + 9.618437357e-3f;
  p = p * r + 5.550332471e-2f;
  p = p * r + 2.402264791e-1f;
  p = p * r + 6.931472028e-1f;
  p = p * r + 1.0f;
  const V power = simd::bits_as<float>((simd::bits_as<uint32_t>(shifted) + 127) << 23);
  x = simd::select(x < -100.0f, V{}, p * power);
}
// The same of doubles.
ATTNKIT_INLINE void exp2(simd::Vector<double, simd::Baseline>& x) {
  double lanes[simd::Lanes<double>::count];
  simd::store(x, lanes);
  for (double& lane : lanes) lane = std::exp2(lane);
  x = simd::at<simd::Baseline>(lanes);
}

// Scratch of a worker.
template <class Real>
struct Scratch {
  Real *kt, *vt;           // keys and values of a tile, transposed: [][kTile]
  Real *weights, *slopes;  // p and t, [queries][keys]
  Real *q, *k, *given;     // rows of a tile
  Scratch(Layout& layout, const Widths& w)
      : kt(layout.take<Real>(kTile * w.d)),
        vt(layout.take<Real>(kTile * w.e)),
        weights(layout.take<Real>(kTile * kTile)),
        slopes(layout.take<Real>(kTile * kTile)),
        q(layout.take<Real>(kTile * w.d)),
        k(layout.take<Real>(kTile * w.d)),
        given(layout.take<Real>(kTile * w.e)) {}
};

// The memory of a plan under ATTN_TRAIN: lse of each query is saved, and G . o of each shared by the workers, with so
// many numbers of a bias.
struct Plan {
  uint64_t worker_bytes = 0;
  uint32_t workers = 0;
  Plan(const Widths& w, const Request& r, Info& info, int64_t bias = 0) : workers(r.workers) {
    with_real(r.is_f64(), [&](auto real) { worker_bytes = Layout::measure<Scratch<decltype(real)>>(w); });
    const int64_t queries = r.batch * w.heads * r.queries;
    info.train(r, queries, worker_bytes, r.real_bytes(queries + bias));
  }
};

struct NoBias {
  double of(const Sight&, int64_t, int64_t, int64_t) const { return 0; }
};

// Returns the place for lse of a head's queries in a run of an f32 or f64 plan; NULL if it does not train.
template <class Real>
ATTNKIT_INLINE Real* saved(const attn_run& run, const Widths& w, int64_t b, int64_t h) {
  return run.saved ? static_cast<Real*>(run.saved) + (b * w.heads + h) * run.queries : nullptr;
}

// The run of an f64 plan.  keys(sight, h, i, see) calls see(j) for each key that query i sees; bias.of(sight, h, i, j)
// is added to its score.
template <class Keys, class Bias = NoBias>
void run_f64(const attn_run& run, const QkvPorts& ports, const Widths& w, double scale, bool causal, const Keys& keys,
             const Bias& bias = {}) {
  const Qkv<double> x(run, ports);
  const double flops = 2.0 * static_cast<double>(run.queries * run.keys * (w.d + w.e));
  for_each_head(run, w.heads, {flops, 0}, [&](int64_t b, int64_t h, void*) {
    const Sight sight(run, b, causal);
    const int64_t kv = h / w.group();
    for (int64_t i = 0; i < sight.queries; ++i) {
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      double* o = x.o.row(b, h, i);
      std::fill(o, o + w.e, 0.0);
      keys(sight, h, i, [&](int64_t j) {
        const double score = scale * simd::dot<simd::Baseline>(x.q.row(b, h, i), x.k.row(b, kv, j), w.d) +
                             bias.of(sight, h, i, j),
                     *v = x.v.row(b, kv, j);
        const double above = std::max(max, score), down = std::exp(max - above), weight = std::exp(score - above);
        sum = sum * down + weight;
        for (int64_t c = 0; c < w.e; ++c) o[c] = o[c] * down + weight * v[c];
        max = above;
      });
      for (int64_t c = 0; c < w.e && sum != 0; ++c) o[c] /= sum;
      if (double* lse = saved<double>(run, w, b, h)) lse[i] = max + std::log(sum);
    }
  });
}

// One backward call.  Of tiles of weights and slopes, [queries][kTile], of which it is told the row and the head, a
// bias has add(b, h, queries, keys, scale, weights), which makes scores of products, and, each tile once, take(b, h,
// queries, keys, seen, slopes), whose slopes are those of scores.
template <class Real, class Bias = NoBias>
struct Gradient {
  const Widths& w;
  Real scale;
  const Plan& plan;
  const attn_run& run;
  Qkv<Real> x;
  QkvGrad<Real> g;
  Real* means;  // G . o of the queries: [batch][heads][queries]
  Bias bias;

  Gradient(const Widths& widths, double factor, const Plan& p, const attn_grad& grad, const QkvPorts& ports)
      : w(widths),
        scale(static_cast<Real>(factor)),
        plan(p),
        run(*grad.run),
        x(run, ports),
        g(grad, ports),
        means(reinterpret_cast<Real*>(static_cast<char*>(run.exec->scratch) + p.worker_bytes * p.workers)) {
    const double flops = 2.0 * static_cast<double>(run.queries * w.e);
    for_each_head(run, w.heads, {flops, 0}, [&](int64_t b, int64_t h, void*) {
      Real* to = means + (b * w.heads + h) * run.queries;
      const int64_t queries = Sight(run, b, false).queries;
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        for (int64_t i = 0; i < queries; ++i) to[i] = simd::dot<decltype(isa)>(g.o.row(b, h, i), x.o.row(b, h, i), w.e);
      });
    });
  }

  // The tiles of one head.
  struct Head {
    const Gradient& all;
    int64_t b, h, kv;
    Scratch<Real> p;
    const Real *lse, *means;

    Head(const Gradient& gradient, int64_t row, int64_t head, Layout layout)
        : all(gradient),
          b(row),
          h(head),
          kv(head / gradient.w.group()),
          p(layout, gradient.w),
          lse(saved<Real>(gradient.run, gradient.w, row, head)),
          means(gradient.means + (row * gradient.w.heads + head) * gradient.run.queries) {}

    // Keys that are in scratch, until others are.
    struct Keys : Span {
      simd::Matrix<const Real> rows;
    };
    Keys load(const Span& keys) const {
      const View<const Real>& v = all.x.v;
      const Keys loaded{keys, beside(all.x.k, kv, keys, all.w.d, p.k)};
      transpose_rows(loaded.rows.data, loaded.rows.row, keys.size(), all.w.d, p.kt, kTile);
      transpose_rows(v.row(b, kv, keys.begin), v.next, keys.size(), all.w.e, p.vt, kTile);
      return loaded;
    }

    // Rows of a sequence; copied beside each other if they stand apart, where few of them fit into a cache at once.
    simd::Matrix<const Real> beside(const View<const Real>& of, int64_t head, const Span& rows, int64_t width,
                                    Real* to) const {
      if (of.next <= width) return {of.row(b, head, rows.begin), rows.size(), width, of.next};
      for (int64_t i = 0; i < rows.size(); ++i)
        std::memcpy(to + i * width, of.row(b, head, rows.begin + i), static_cast<size_t>(width) * sizeof(Real));
      return {to, rows.size(), width, width};
    }

    // Adds what queries and keys give each other.  seen: which of these keys each query sees, counted from the first;
    // NULL: all of them.
    void add(const Span& queries, const Keys& keys, const Span* seen, bool to_queries, bool to_keys) const {
      const int64_t n = queries.size(), m = keys.size(), lanes = simd::whole_lanes(m), d = all.w.d, e = all.w.e;
      const simd::Matrix<const Real> q = beside(all.x.q, h, queries, d, p.q),
                                     given = beside(all.g.o, h, queries, e, p.given);
      for (Real* matrix : {p.weights, p.slopes}) std::fill(matrix, matrix + n * kTile, Real{0});
      simd::product<Real>({q.data, q.row}, {p.kt, d, lanes, kTile}, {p.weights, n, lanes, kTile});
      simd::product<Real>({given.data, given.row}, {p.vt, e, lanes, kTile}, {p.slopes, n, lanes, kTile});
      constexpr bool biased = !std::is_same_v<Bias, NoBias>;
      if constexpr (biased) all.bias.add(b, h, queries, keys, all.scale, p.weights);
      const Real log2e = static_cast<Real>(1.4426950408889634), scale = biased ? Real{1} : all.scale,
                 scale2 = scale * log2e;
      in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
        using Isa = decltype(isa);
        for (int64_t i = 0; i < n; ++i) {
          const Real less = lse[queries.begin + i] * log2e, mean = means[queries.begin + i] * scale;
          for (int64_t j = i * kTile; j < i * kTile + lanes; j += simd::Lanes<Real>::count) {
            auto weight = simd::at<Isa>(p.weights + j) * scale2 - less;
            exp2(weight);
            simd::store(weight, p.weights + j);
            simd::store(weight * (simd::at<Isa>(p.slopes + j) * scale - mean), p.slopes + j);
          }
        }
      });
      if constexpr (biased) {
        if (to_keys) all.bias.take(b, h, queries, keys, seen, p.slopes);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < m; ++j) p.slopes[i * kTile + j] *= all.scale;
      }
      Span reading[kTile];  // which queries see each key
      if (seen) simd::turn_spans(seen, n, m, reading);
      const Span* readers = seen ? reading : nullptr;
      const auto sum = [&](const View<Real>& to, int64_t head, const Span& rows, const Span* spans,
                           const simd::Factor<Real>& a, const simd::Matrix<const Real>& of) {
        if (!to) return;
        const simd::Matrix<Real> into{to.row(b, head, rows.begin), rows.size(), of.columns, to.next};
        spans ? simd::product_within<Real>(spans, a, of, into) : simd::product<Real>(a, of, into);
      };
      if (to_keys) sum(all.g.v, kv, keys, readers, {p.weights, 1, kTile}, given);
      if (to_keys) sum(all.g.k, kv, keys, readers, {p.slopes, 1, kTile}, q);
      if (to_queries) sum(all.g.q, h, queries, seen, {p.slopes, kTile}, keys.rows);
    }
  };

  // The gradient where sees(sight, i) are the keys that query i sees, beginning and ending later from query to query,
  // of which there are about `keys`.  Workers share heads of keys with the heads of queries that read them, or, of
  // fewer than they are, tiles: those of some keys, then those of some queries.
  template <class Sees>
  void over_spans(double keys, bool causal, const Sees& sees) const {
    const int64_t groups = run.batch * w.kv_heads, blocks = (std::max(run.queries, run.keys) + kTile - 1) / kTile;
    const double flops = 5.0 * static_cast<double>(run.queries * (w.d + w.e)) * keys;
    // `together` heads of queries at a time, each in `pieces`.
    const auto share = [&](int64_t together, int64_t pieces, const auto& body) {
      const double each = flops * static_cast<double>(together) / static_cast<double>(pieces);
      for_each_head(run, w.heads / together * pieces, {each, plan.worker_bytes},
                    [&](int64_t b, int64_t item, void* memory) {
                      for (int64_t n = 0; n < together; ++n) {
                        const Head head(*this, b, item / pieces * together + n, Layout(memory));
                        body(Strip<Sees>{head, Sight(run, b, causal), sees}, item % pieces);
                      }
                    });
    };
    if (groups >= static_cast<int64_t>(run.exec->workers)) {
      share(w.group(), 1, [&](const auto& strip, int64_t) {
        for (int64_t n = 0; n < blocks; ++n) strip.keys(n * kTile, true);
      });
    } else {
      share(w.group(), blocks, [](const auto& strip, int64_t n) { strip.keys(n * kTile, false); });
      share(1, blocks, [](const auto& strip, int64_t n) { strip.queries(n * kTile); });
    }
  }

 private:
  // Tiles side by side.
  template <class Sees>
  struct Strip {
    using Keys = typename Head::Keys;
    const Head& head;
    Sight sight;
    const Sees& sees;

    Span block(int64_t from, int64_t n) const { return {from, std::min(from + kTile, n)}; }

    // Of the keys from `from` on and all queries, which get their share as well if `to_queries`.
    void keys(int64_t from, bool to_queries) const {
      const Span keys = block(from, sight.fresh);
      // The blocks of queries before `first` see none of them.
      int64_t first = 0, end = (sight.queries + kTile - 1) / kTile;
      for (int64_t stop = end; first < stop;) {
        const int64_t middle = (first + stop) / 2;
        const bool before = sees(sight, block(middle * kTile, sight.queries).end - 1).end <= from;
        (before ? first : stop) = before ? middle + 1 : middle;
      }
      if (first == end || sees(sight, first * kTile).begin >= keys.end) return;
      const Keys loaded = head.load(keys);
      for (int64_t n = first; n < end && sees(sight, n * kTile).begin < keys.end; ++n)
        tile(block(n * kTile, sight.queries), loaded, to_queries, true);
    }

    // Of the queries from `from` on and all keys, for the queries.
    void queries(int64_t from) const {
      if (from >= sight.queries || !head.all.g.q) return;
      const Span queries = block(from, sight.queries);
      const int64_t top = sees(sight, queries.end - 1).end;
      for (int64_t j = sees(sight, from).begin / kTile * kTile; j < top; j += kTile)
        tile(queries, head.load(block(j, sight.fresh)), true, false);
    }

    void tile(const Span& queries, const Keys& keys, bool to_queries, bool to_keys) const {
      Span seen[kTile];
      const bool all = sees(sight, queries.begin).end >= keys.end && sees(sight, queries.end - 1).begin <= keys.begin;
      for (int64_t i = 0; !all && i < queries.size(); ++i) {
        const Span span = sees(sight, queries.begin + i);
        seen[i] = {std::clamp<int64_t>(span.begin - keys.begin, 0, keys.size()),
                   std::clamp<int64_t>(span.end - keys.begin, 0, keys.size())};
      }
      head.add(queries, keys, all ? nullptr : seen, to_queries, to_keys);
    }
  };
};

}  // namespace attnkit::attend
#endif
