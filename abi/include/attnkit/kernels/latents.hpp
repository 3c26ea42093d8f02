// Attention through sums of exponentials, one sum for each latent: its f64 run and its gradient.
//
//   o_i = sum_l A_il S_il,   S_il = sum_j B_jl v_j,   z_il = sum_j B_jl,   B_jl = e^(b_jl - m_l) + floor
//
// over the keys j that query i sees.  A Map has the logits b, and makes A_i from a query's logits a_i and from z_i.
// With G the gradient of o, H_il = G_i . S_il, and n_i what the map's denominator makes of G_i . o_i:
//
//   da_il = (A_il - rest_i) (H_il - n_i z_il)                   rest_i: the part of A_il that is no exponential
//   R_l = sum A_il G_i,   r_l = sum A_il n_il                   over the queries that see key j
//   db_jl = (B_jl - floor) (R_l . v_j - r_l),   dv_j = sum_l B_jl R_l
//
// where n_il is H_il / z_il if each latent has a denominator of its own, and n_i if all have one.
//
// As in kernels/linear/gradient.hpp a block of queries meets the keys that all of them see through S or R and the
// others by products within what each query sees, so that no NaN comes from what it does not.  m_l is the largest logit
// of the keys that a block's queries see; a block ends where m_l would outgrow what its first query sees by kGrowth, so
// that no exponential overflows and no query's keys all vanish.
//
// The first scan leaves 3 l numbers of a query for the second, of kTile queries at a time.  These tiles come last
// first, each in both scans before the next: the sums that they begin with are made once before, and those of up to
// kSlots of them kept.  Where a sequence has more, those between are made again, so memory does not grow with it.
#ifndef ATTNKIT_KERNELS_LATENTS_HPP
#define ATTNKIT_KERNELS_LATENTS_HPP
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/kernels/product.hpp>
#include <cmath>
#include <limits>
#include <optional>

namespace attnkit::latents {

constexpr int64_t kBlock = 32;  // queries, and keys, of a block
constexpr double kGrowth = 50;
constexpr int64_t kTile = 1024;
constexpr int64_t kSlots = 32;

struct Shape {
  int64_t heads, latents, values;  // H, l, E

  // Of sums and reads of a head.
  double flops(int64_t rows) const { return 2.0 * static_cast<double>(latents * (values + 1) * rows); }
};

// The other numbers that a map has of a query beside its A_i: n_i = slope G_i . o_i.
template <class Real>
struct Mixed {
  Real slope, rest;
};

// x = e^x; of floats, whole vectors.
template <class Isa, class Real>
ATTNKIT_INLINE void exponentials(Real* x, int64_t n) {
  if constexpr (std::is_same_v<Real, float>)
    for (int64_t l = 0; l < n; l += simd::kLanes) {
      simd::Vec<Isa> y = simd::at<Isa>(x + l);
      simd::exp(y);
      simd::store(y, x + l);
    }
  else
    for (int64_t l = 0; l < n; ++l) x[l] = std::exp(x[l]);
}

template <class Isa, class Real>
ATTNKIT_INLINE Real largest(const Real* x, int64_t n) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  const Real least = -std::numeric_limits<Real>::infinity();
  using V = simd::Vector<Real, Isa>;
  V most = least - V{};
  Real top = least;
  int64_t l = 0;
  for (; l + lanes <= n; l += lanes) {
    const V y = simd::at<Isa>(x + l);
    most = simd::select(y > most, y, most);
  }
  const Real of_lanes = simd::largest(most);
  top = of_lanes > top ? of_lanes : top;
  for (; l < n; ++l) top = x[l] > top ? x[l] : top;
  return top;
}

template <class Isa, class Real>
ATTNKIT_INLINE Real total(const Real* x, int64_t n) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  simd::Vector<Real, Isa> sums{};
  Real rest = 0;
  int64_t l = 0;
  for (; l + lanes <= n; l += lanes) sums += simd::at<Isa>(x + l);
  for (; l < n; ++l) rest += x[l];
  return simd::sum(sums) + rest;
}

// Of a worker.  Rows of latents are whole vectors, and what stands behind the l is never mixed with them.
template <class Real>
struct Scratch {
  int64_t row, e, slots;
  Real *logits, *b, *db;           // [kBlock][row]: of keys
  Real *z, *h;                     // [kBlock][row]: z_i and H_i of queries
  Real *g, *dv;                    // [kBlock][e]
  Real *at, *gt;                   // A and G transposed: [][kBlock]
  Real *weights, *scores;          // [keys][queries] of a block: v_j . G_i, and B_j . A_i
  Real *s, *factor;                // R, [row][e]; [row]: what sums shrink by
  Real *forward, *reverse;         // sums of the scans: S or R transposed, [e][row]; z or r and m, [row]
  Real *n, *rest;                  // [kBlock]
  Real *tile_a, *tile_n, *tile_m;  // [queries of a tile][row]: A, A n, and m by block
  Real* kept;                      // sums that tiles begin with
  int64_t* begins;                 // of the blocks
  Scratch(Layout& layout, const Shape& shape, int64_t queries)
      : row(simd::whole_lanes(shape.latents)),
        e(simd::whole_lanes(shape.values)),
        slots(std::min(kSlots, (queries + kTile - 1) / kTile)) {
    for (Real** part : {&logits, &b, &db, &z, &h, &at}) *part = layout.take<Real>(kBlock * row);
    for (Real** part : {&g, &dv, &gt}) *part = layout.take<Real>(kBlock * e);
    for (Real** part : {&weights, &scores}) *part = layout.take<Real>(kBlock * kBlock);
    s = layout.take<Real>(row * e);
    factor = layout.take<Real>(row);
    for (Real** part : {&forward, &reverse}) *part = layout.take<Real>(sums());
    for (Real** part : {&n, &rest}) *part = layout.take<Real>(kBlock);
    const int64_t most = std::min(kTile, queries);
    for (Real** part : {&tile_a, &tile_n, &tile_m}) *part = layout.take<Real>(most * row);
    kept = layout.take<Real>(slots * sums());
    begins = layout.take<int64_t>(most + 1);
  }
  int64_t sums() const { return row * (e + 2); }
};

// One head of one batch row.  A Map has
//   static constexpr bool each;      has each latent a denominator of its own?
//   bool follows() const;            does m follow the keys?  Otherwise it is
//   Real constant(int64_t b, int64_t h, int64_t keys, Real* rows, int64_t row) const;    rows: room for kBlock rows
//   Real floor() const;
//   void query_logits(int64_t b, int64_t h, int64_t from, int64_t n, Real* rows, int64_t row) const;
//   void query_gradient(...the same...) const;        hands out the n rows da
//   void key_logits, key_gradient(...the same...) const;
//   template <class Isa>
//   ATTNKIT_INLINE Mixed<Real> mix(int64_t b, int64_t h, int64_t i, const Real* z, const Real* m, Real* a) const;
//                                                     a_i becomes A_i
template <class Map, class Real>
struct Head {
  const Shape& shape;
  const Map& map;
  Qkv<Real> x;
  const QkvGrad<Real>* g;  // NULL in a run
  bool adds;               // to the gradient of v, which holds that of other heads of queries
  int64_t b, h;
  Sight sight;
  Scratch<Real> p;
  Real *st{}, *sum{}, *m{};            // the sums of the scan that goes on
  int64_t appended = 0;                // keys in S and z
  int64_t tile = 0;                    // its first query
  int64_t window = 0, window_end = 0;  // keys whose logits are in p.logits
  int64_t loaded = 0, loaded_end = 0;  // keys whose B is in p.b
  simd::Span seen[kBlock]{}, readers[kBlock]{};

  // Queries [from, to), all of which see keys [0, lo), and some keys up to hi.
  struct Block {
    int64_t from, to, lo, hi;
    int64_t size() const { return to - from; }
    int64_t lanes() const { return simd::whole_lanes(to - from); }
  };

  void operator()() {
    std::memset(p.logits, 0,
                static_cast<size_t>(reinterpret_cast<char*>(p.tile_a) - reinterpret_cast<char*>(p.logits)));
    int64_t first = 0;
    while (first < sight.queries && sight.seen(first) <= 0) ++first;
    if (first == sight.queries) return;
    use(p.forward);
    const Real least = std::numeric_limits<Real>::lowest();
    std::fill(m, m + shape.latents, map.follows() ? least : map.constant(b, h, sight.fresh, p.b, p.row));
    if (!g)
      forward(first, sight.queries);
    else
      gradient(first);
  }

  void use(Real* sums) {
    st = sums;
    sum = st + p.row * p.e;
    m = sum + p.row;
    loaded_end = loaded;
  }

  const Real* logits(int64_t j) {
    if (j < window || j >= window_end) {
      window = j;
      window_end = std::min(j + kBlock, sight.fresh);
      map.key_logits(b, h, j, window_end - j, p.logits, p.row);
    }
    return p.logits + (j - window) * p.row;
  }

  // m = max(m, logits of keys [from, to)); a NaN is never the largest.
  void raise(int64_t from, int64_t to) {
    in_vectors<Real>([&](auto) __attribute__((always_inline)) {
      for (int64_t j = from; j < to; ++j) {
        const Real* y = logits(j);
        for (int64_t l = 0; l < shape.latents; ++l) m[l] = y[l] > m[l] ? y[l] : m[l];
      }
    });
  }
  // Would one of the keys raise m by more than kGrowth?
  bool outgrow(int64_t from, int64_t to) {
    int any = 0;
    in_vectors<Real>([&](auto) __attribute__((always_inline)) {
      for (int64_t j = from; j < to && !any; ++j) {
        const Real* y = logits(j);
        for (int64_t l = 0; l < shape.latents; ++l) any |= y[l] - m[l] > static_cast<Real>(kGrowth);
      }
    });
    return any != 0;
  }

  // Of a gradient's block that begins with query i, the keys that are summed before.  Those that all its queries see
  // and none before it, if they are few, go with the masked ones: that costs less than products of their own.
  int64_t before(int64_t i) const {
    const int64_t now = sight.seen(i), last = i > 0 ? std::max(sight.seen(i - 1), int64_t{0}) : 0;
    return now - last > kBlock ? now : last;
  }

  // The block that begins with query `from` and ends before `end`.  Brings the sums to its m.
  Block block(int64_t from, int64_t end) {
    if (g) append_scaled(before(from));
    Block q{from, from + 1, sight.seen(from), sight.seen(from)};
    end = std::min(from + kBlock, end);
    if (map.follows()) {
      std::copy(m, m + p.row, p.factor);
      raise(appended, q.lo);
      for (; q.to < end && !outgrow(q.hi, sight.seen(q.to)); ++q.to) q.hi = sight.seen(q.to);
      raise(q.lo, q.hi);
      shrink(p.factor, m);
    } else {
      q.to = end;
      q.hi = sight.seen(end - 1);
    }
    if (g) q.lo = appended;
    return q;
  }

  // Sums at scale `from` come to the scale `to`; `plain`: S or R as it is, if there is one beside its transpose.
  void shrink(const Real* from, const Real* to, Real* plain = nullptr) {
    loaded_end = loaded;
    if (std::equal(from, from + shape.latents, to)) return;
    for (int64_t l = 0; l < shape.latents; ++l) p.factor[l] = std::exp(from[l] - to[l]);
    for (int64_t l = 0; l < shape.latents; ++l) sum[l] *= p.factor[l];
    for (int64_t c = 0; c < shape.values; ++c)
      for (int64_t l = 0; l < shape.latents; ++l) st[c * p.row + l] *= p.factor[l];
    for (int64_t l = 0; plain && l < shape.latents; ++l)
      for (int64_t c = 0; c < shape.values; ++c) plain[l * p.e + c] *= p.factor[l];
  }

  void load_keys(int64_t from, int64_t to) {
    if (from == loaded && to == loaded_end) return;
    loaded = from;
    loaded_end = to;
    for (int64_t j = from; j < to; ++j) {
      const Real* y = logits(j);
      for (int64_t l = 0; l < p.row; ++l) p.b[(j - from) * p.row + l] = y[l] - m[l];
    }
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      exponentials<decltype(isa)>(p.b, (to - from) * p.row);
      const Real floor = map.floor();
      for (int64_t i = 0; floor != 0 && i < (to - from) * p.row; ++i) p.b[i] += floor;
    });
  }

  // Rows of the tile's queries from i on.
  Real* of_tile(Real* rows, int64_t i) const { return rows + (i - tile) * p.row; }
  Real* a(const Block& q) const { return of_tile(p.tile_a, q.from); }

  // A of a block's queries from z of what each of them sees, and what the gradient takes.  z comes to hold all keys.
  void load_queries(const Block& q) {
    map.query_logits(b, h, q.from, q.size(), a(q), p.row);
    int64_t i = 0, from = q.lo;
    do {
      const int64_t to = std::min(from + kBlock, q.hi);
      load_keys(from, to);
      in_vectors<Real>([&](auto) __attribute__((always_inline)) {
        for (;; ++from) {
          for (; i < q.size() && sight.seen(q.from + i) <= from; ++i) std::copy(sum, sum + p.row, p.z + i * p.row);
          if (from == to) break;
          const Real* row = p.b + (from - loaded) * p.row;
          for (int64_t l = 0; l < shape.latents; ++l) sum[l] += row[l];
        }
      });
    } while (from < q.hi);
    in_vectors<Real>([&](auto isa) __attribute__((always_inline)) {
      using Isa = decltype(isa);
      for (int64_t i = 0; i < q.size(); ++i) {
        const Mixed<Real> mixed = map.template mix<Isa>(b, h, q.from + i, p.z + i * p.row, m, a(q) + i * p.row);
        if (!g) continue;
        p.n[i] = mixed.slope * simd::dot<Isa>(g->o.row(b, h, q.from + i), x.o.row(b, h, q.from + i), shape.values);
        p.rest[i] = mixed.rest;
      }
    });
    if (g) load_gradient(q);
  }

  // G of a block's queries, and transposed.
  void load_gradient(const Block& q) {
    for (int64_t i = 0; i < q.size(); ++i) {
      const Real* row = g->o.row(b, h, q.from + i);
      std::copy(row, row + shape.values, p.g + i * p.e);
    }
    transpose_rows(p.g, p.e, q.size(), shape.values, p.gt, kBlock);
  }

  // Which of keys [from, to) each query of a block sees, and which queries see each of these.
  void look(const Block& q, int64_t from, int64_t to) {
    for (int64_t i = 0; i < q.size(); ++i)
      seen[i] = {0, std::clamp<int64_t>(sight.seen(q.from + i) - from, 0, to - from)};
    simd::turn_spans(seen, q.size(), to - from, readers);
  }

  // [keys][queries] = left_j . right_i of a block of queries and keys [from, to).
  void weigh(const Block& q, int64_t from, int64_t to, const simd::Factor<Real>& left, const Real* right, int64_t inner,
             Real* weights) const {
    const int64_t keys = to - from;
    std::fill(weights, weights + keys * kBlock, Real{0});
    simd::product<Real>(left, {right, inner, q.lanes(), kBlock}, {weights, keys, q.lanes(), kBlock});
  }
  void weigh_values(const Block& q, int64_t from, int64_t to) const {
    weigh(q, from, to, {x.v.row(b, h, from), x.v.next}, p.gt, shape.values, p.weights);
  }
  void weigh_latents(const Block& q, int64_t from, int64_t to) const {
    weigh(q, from, to, {p.b, p.row}, p.at, shape.latents, p.scores);
  }

  // S takes keys [from, to), whose B is loaded.
  void append(int64_t from, int64_t to) const {
    simd::product<Real>({x.v.row(b, h, from), 1, x.v.next}, {p.b, to - from, p.row, p.row},
                        {st, shape.values, p.row, p.row});
  }
  // S and z take the keys before `to`.
  void append(int64_t to) {
    for (int64_t end; appended < to; appended = end) {
      end = std::min(appended + kBlock, to);
      load_keys(appended, end);
      append(appended, end);
      const Real one = 1;
      simd::product<Real>({&one, 0, 0}, {p.b, end - appended, p.row, p.row}, {sum, 1, p.row, p.row});
    }
  }
  // The same, and m grows with them.
  void append_scaled(int64_t to) {
    while (appended < to) {
      const int64_t end = std::min(appended + kBlock, to);
      if (map.follows()) {
        std::copy(m, m + p.row, p.factor);
        raise(appended, end);
        shrink(p.factor, m);
      }
      append(end);
    }
  }

  // Returns the number of blocks of queries [from, to); for a gradient they are a tile.
  int64_t forward(int64_t from, int64_t to) {
    tile = from;
    int64_t blocks = 0;
    for (Block q{}; from < to; from = q.to) {
      q = block(from, to);
      append(q.lo);
      if (g) {
        p.begins[blocks] = from;
        std::copy(m, m + p.row, p.tile_m + blocks++ * p.row);
        load_queries(q);
        read_gradient(q);
      } else {
        tile = from;
        load_queries(q);
        read_outputs(q);
      }
      appended = q.hi;
    }
    p.begins[blocks] = from;
    return blocks;
  }

  // Tiles from the last to the first.
  void gradient(int64_t first) {
    struct {
      int64_t tile, keys;
    } kept[kSlots]{};
    const auto begin = [&](int64_t n) { return std::min(first + n * kTile, sight.queries); };
    const auto keep = [&](int64_t slot, int64_t n) {
      kept[slot] = {n, appended};
      std::copy(p.forward, p.forward + p.sums(), p.kept + slot * p.sums());
    };
    append_scaled(before(first));
    keep(0, 0);
    int64_t end = sight.seen(sight.queries - 1);  // keys from here on have their gradients
    const int64_t tiles = (sight.queries - first + kTile - 1) / kTile;
    for (int64_t n = tiles, slot = 0; n-- > 0;) {
      while (kept[slot].tile > n) --slot;
      use(p.forward);
      std::copy(p.kept + slot * p.sums(), p.kept + (slot + 1) * p.sums(), p.forward);
      appended = kept[slot].keys;
      for (int64_t at = kept[slot].tile; at < n;) {
        const int64_t parts = p.slots - slot;  // one more than sums can be kept
        at += (n - at + parts - 1) / parts;
        append_scaled(before(begin(at)));
        if (at < n) keep(++slot, at);
      }
      const int64_t blocks = forward(begin(n), begin(n + 1));
      if (n == tiles - 1) std::copy(m, m + p.row, p.reverse + (m - p.forward));
      use(p.reverse);
      if (g->k || g->v) reverse(blocks, n > 0 ? before(begin(n)) : 0, end);
    }
  }

  void read_outputs(const Block& q) {
    transpose_rows(a(q), p.row, q.size(), shape.latents, p.at, kBlock);
    std::fill(p.gt, p.gt + p.e * kBlock, Real{0});
    const simd::Matrix<Real> ot{p.gt, shape.values, q.lanes(), kBlock};
    simd::product<Real>({st, p.row}, {p.at, shape.latents, q.lanes(), kBlock}, ot);
    for (int64_t i = 0; i < q.size(); ++i)
      for (int64_t c = 0; c < shape.values; ++c) x.o.row(b, h, q.from + i)[c] = p.gt[c * kBlock + i];
    const simd::Matrix<Real> o{x.o.row(b, h, q.from), q.size(), shape.values, x.o.next};
    for (int64_t from = q.lo, to; from < q.hi; from = to) {
      to = std::min(from + kBlock, q.hi);
      load_keys(from, to);
      look(q, from, to);
      weigh_latents(q, from, to);
      simd::product_within<Real>(seen, {p.scores, 1, kBlock}, {x.v.row(b, h, from), to - from, shape.values, x.v.next},
                                 o);
      append(from, to);
    }
  }

  // The gradients of a block's queries; A n of them.
  void read_gradient(const Block& q) {
    std::fill(p.h, p.h + q.size() * p.row, Real{0});
    const simd::Matrix<Real> read{p.h, q.size(), p.row, p.row};
    simd::product<Real>({p.g, p.e}, {st, shape.values, p.row, p.row}, read);
    for (int64_t from = q.lo, to; from < q.hi; from = to) {
      to = std::min(from + kBlock, q.hi);
      load_keys(from, to);
      look(q, from, to);
      weigh_values(q, from, to);
      simd::product_within<Real>(seen, {p.weights, 1, kBlock}, {p.b, to - from, p.row, p.row}, read);
      append(from, to);
    }
    in_vectors<Real>([&](auto) __attribute__((always_inline)) {
      for (int64_t i = 0; i < q.size(); ++i) {
        const Real *own = a(q) + i * p.row, *z = p.z + i * p.row;
        Real *h_row = p.h + i * p.row, *own_n = of_tile(p.tile_n, q.from + i);
        for (int64_t l = 0; l < shape.latents; ++l) {
          own_n[l] = own[l] * (Map::each ? h_row[l] / z[l] : p.n[i]);
          h_row[l] = (own[l] - p.rest[i]) * (h_row[l] - p.n[i] * z[l]);
        }
      }
    });
    if (g->q) map.query_gradient(b, h, q.from, q.size(), p.h, p.row);
  }

  // Keys [from, to): their gradients through R and r, and through the products with the block of queries q if there is
  // one, of which those from `last` on are in r.
  void give_keys(int64_t from, int64_t to, const Block* q, int64_t& last) {
    const int64_t keys = to - from;
    load_keys(from, to);
    std::fill(p.db, p.db + keys * p.row, Real{0});
    std::fill(p.dv, p.dv + keys * p.e, Real{0});
    const simd::Matrix<Real> db{p.db, keys, p.row, p.row}, dv{p.dv, keys, p.e, p.e};
    simd::product<Real>({x.v.row(b, h, from), x.v.next}, {st, shape.values, p.row, p.row}, db);
    simd::product<Real>({p.b, p.row}, {p.s, shape.latents, p.e, p.e}, dv);
    if (q) {
      look(*q, from, to);
      weigh_values(*q, from, to);
      weigh_latents(*q, from, to);
      simd::product_within<Real>(readers, {p.weights, kBlock}, {a(*q), q->size(), p.row, p.row}, db);
      simd::product_within<Real>(readers, {p.scores, kBlock}, {p.g, q->size(), p.e, p.e}, dv);
    }
    const Real floor = map.floor();
    in_vectors<Real>([&](auto) __attribute__((always_inline)) {
      for (int64_t j = keys; j-- > 0;) {
        if (q) add_seen(*q, from + j, last);
        Real *to_row = p.db + j * p.row, *own = p.b + j * p.row;
        for (int64_t l = 0; l < shape.latents; ++l) to_row[l] = (own[l] - floor) * (to_row[l] - sum[l]);
      }
    });
    if (g->k) map.key_gradient(b, h, from, keys, p.db, p.row);
    for (int64_t j = 0; g->v && j < keys; ++j) {
      const Real* row = p.dv + j * p.e;
      Real* sum = g->v.row(b, h, from + j);
      for (int64_t c = 0; c < shape.values; ++c) sum[c] = adds ? sum[c] + row[c] : row[c];
    }
  }

  // r takes the queries of q before `last` that see key j.
  ATTNKIT_INLINE void add_seen(const Block& q, int64_t j, int64_t& last) {
    for (; last > q.from && sight.seen(last - 1) > j; --last)
      for (int64_t l = 0; l < shape.latents; ++l) sum[l] += of_tile(p.tile_n, last - 1)[l];
  }

  // Of the tile, and of keys from `first` to `end`.
  void reverse(int64_t blocks, int64_t first, int64_t& end) {
    int64_t last = 0;
    const auto give = [&](int64_t from, const Block* q) {
      while (end > from) {
        const int64_t begin = std::max(from, end - kBlock);
        give_keys(begin, end, q, last);
        end = begin;
      }
    };
    for (int64_t n = blocks; n-- > 0;) {
      const int64_t from = p.begins[n];
      const Block q{from, p.begins[n + 1], before(from), sight.seen(p.begins[n + 1] - 1)};
      give(q.hi, nullptr);
      std::copy(m, m + p.row, p.factor);
      std::copy(p.tile_m + n * p.row, p.tile_m + (n + 1) * p.row, m);
      shrink(m, p.factor, p.s);  // A grows with m, so R shrinks as m does
      load_gradient(q);
      transpose_rows(a(q), p.row, q.size(), shape.latents, p.at, kBlock);
      last = q.to;
      give(q.lo, &q);
      add_seen(q, -1, last);
      simd::product<Real>({a(q), 1, p.row}, {p.g, q.size(), p.e, p.e}, {p.s, shape.latents, p.e, p.e});
      transpose_rows(p.s, p.e, shape.latents, shape.values, st, p.row);
    }
    give(first, nullptr);
  }
};

// The f64 run of all heads, or with g the gradient of a run; bytes: of scratch of a worker.  x and g have as many heads
// of queries as of keys.  adds: to the gradients of keys and values.
template <class Real, class Map>
void for_heads(const Shape& shape, const Map& map, bool causal, const attn_run& run, const Qkv<Real>& x,
               const QkvGrad<Real>* g, uint64_t bytes, bool adds = false) {
  const double flops = (g ? 6 : 1) * shape.flops(run.queries + run.keys);
  for_each_head(run, shape.heads, {flops, bytes}, [&](int64_t b, int64_t h, void* memory) {
    Layout layout(memory);
    Head<Map, Real>{shape, map, x, g, adds, b, h, Sight(run, b, causal), {layout, shape, run.queries}}();
  });
}

// Adds scratch of f64 runs and of gradients to info; returns that of a worker.  shared: bytes behind that of all
// workers.
inline uint64_t plan(const Shape& shape, const Request& r, Info& info, uint64_t shared = 0) {
  uint64_t bytes = 0;
  with_real(r.is_f64(), [&](auto real) { bytes = Layout::measure<Scratch<decltype(real)>>(shape, r.queries); });
  info.train(r, 0, bytes, shared);
  if (r.is_f64()) info.scratch_bytes = info.scratch(r, bytes) * r.workers + shared;
  return bytes;
}

// Softmax over the latents of a query times softmax over the keys of each latent, logits times scale: A_il =
// softmax_l(a_i)_l / z_il.
template <class Real>
struct Softmax {
  static constexpr bool each = true;
  int64_t latents;
  Real scale;
  Qkv<Real> x;
  const QkvGrad<Real>* g;
  bool adds;  // to the gradient of k, which holds that of other heads of queries

  bool follows() const { return true; }
  Real constant(int64_t, int64_t, int64_t, Real*, int64_t) const { return 0; }
  Real floor() const { return 0; }
  void query_logits(int64_t b, int64_t h, int64_t from, int64_t n, Real* rows, int64_t row) const {
    scaled(x.q.row(b, h, from), x.q.next, n, rows, row);
  }
  void key_logits(int64_t b, int64_t h, int64_t from, int64_t n, Real* rows, int64_t row) const {
    scaled(x.k.row(b, h, from), x.k.next, n, rows, row);
  }
  void query_gradient(int64_t b, int64_t h, int64_t from, int64_t n, const Real* rows, int64_t row) const {
    scaled(rows, row, n, g->q.row(b, h, from), g->q.next);
  }
  void key_gradient(int64_t b, int64_t h, int64_t from, int64_t n, const Real* rows, int64_t row) const {
    scaled(rows, row, n, g->k.row(b, h, from), g->k.next, adds);
  }
  void scaled(const Real* x, int64_t x_row, int64_t n, Real* to, int64_t to_row, bool adds = false) const {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t l = 0; l < latents; ++l)
        to[i * to_row + l] = (adds ? to[i * to_row + l] : Real{0}) + x[i * x_row + l] * scale;
  }
  template <class Isa>
  ATTNKIT_INLINE Mixed<Real> mix(int64_t, int64_t, int64_t, const Real* z, const Real*, Real* a) const {
    const Real most = largest<Isa>(a, latents);
    for (int64_t l = 0; l < latents; ++l) a[l] -= most;
    exponentials<Isa>(a, simd::whole_lanes(latents));
    const Real sum = total<Isa>(a, latents);
    for (int64_t l = 0; l < latents; ++l) a[l] /= sum * z[l];
    return {1, 0};
  }
};

// Such an attention: what its plugin's plan, f64 run and backward call; bytes: what plan returned.
struct SoftmaxAttention {
  Shape shape;
  double scale;
  bool causal;
  QkvPorts io;
  int64_t group = 1;  // heads of queries that go with one head of keys, of which shape has the number

  uint64_t plan(const Request& r, Info& info) const { return latents::plan(shape, r, info); }
  void run(const attn_run& run, uint64_t bytes) const { compute<double>(run, nullptr, bytes); }
  void backward(const attn_grad& grad, uint64_t bytes) const {
    with_real(is_f64(*grad.run, io.o), [&](auto real) {
      const QkvGrad<decltype(real)> g(grad, io);
      compute(*grad.run, &g, bytes);
    });
  }

 private:
  template <class Real>
  void compute(const attn_run& run, const QkvGrad<Real>* g, uint64_t bytes) const {
    // Heads of queries that share a head of keys one after another: they add to its gradients.
    for (int64_t n = 0; n < group; ++n) {
      Qkv<Real> x(run, io);
      x.q = x.q.every(group, n);
      x.o = x.o.every(group, n);
      std::optional<QkvGrad<Real>> own;
      if (g) {
        own = *g;
        own->q = g->q.every(group, n);
        own->o = g->o.every(group, n);
      }
      const QkvGrad<Real>* some = own ? &*own : nullptr;
      const Softmax<Real> map{shape.latents, static_cast<Real>(scale), x, some, n > 0};
      for_heads(shape, map, causal, run, x, some, bytes, n > 0);
    }
  }
};

}  // namespace attnkit::latents
#endif
