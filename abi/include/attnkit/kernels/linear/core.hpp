// The linear core: o_i = (a_i^T S_i) / g(a_i^T z_i) with S_i = sum b_j v_j^T, z_i = sum b_j over the keys i sees.
//
// One kernel serves whole, causal, prefix, streaming and cross attention.  Per head the work is a list of events in
// time order, append a key or read a query; a register tile of S walks the list, so S is loaded once per kEvents.  Each
// element of S, z and o is one chain of additions in an order that no chunking changes: equal bits however a stream is
// split.  State per head: S[D'][E], then z[D'], f32.  Cost per head: 2 D'(E+1) flops per key and per query.
#ifndef ATTNKIT_KERNELS_LINEAR_CORE_HPP
#define ATTNKIT_KERNELS_LINEAR_CORE_HPP
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/map.hpp>
#include <attnkit/kernels/product.hpp>
#include <attnkit/kernels/work.hpp>

namespace attnkit::linear {

constexpr int64_t kEvents = 16;

struct Shape : Widths {
  explicit Shape(const attn_block& b, bool shares_keys = false) : Widths(b, shares_keys), features(d) {}
  int64_t features;   // D'
  int64_t split = 0;  // where in a row the D' features for z begin, if they are not those for S
  int64_t extra = 0;  // floats of the map's own in a head's state, behind z
  int64_t kept = 0;   // numbers of the map's own in a row, from kept_at() on, which it may leave for its derivative
  int64_t kept_at() const { return (features + split + simd::kLanes - 1) / simd::kLanes * simd::kLanes; }
  int64_t row() const { return kept > 0 ? kept_at() + kept : features + split; }
  int64_t head_floats() const { return features * (e + 1) + extra; }
};

// Of a row: the head, of keys or of queries, and its position in its sequence, from 0.
struct Place {
  int64_t b, h, position;
};

// The same where a body is compiled for Isa: a map whose arithmetic is simd's takes it as `const auto& at` and hands on
// its Isa.
template <class I>
struct At : Place {
  using Isa = I;
};

// A map whose features depend on what was summed.  Before keys [from, to) of k are appended, rescale may multiply row f
// of S and entry f of z in `head` (S, z, then extra) by a factor; key and query get `head` as a last argument.
template <class Map>
concept Rescales = requires(const Map& map, const View<const float>& k, float* head) {
  map.template rescale<simd::Baseline>(k, int64_t{}, int64_t{}, int64_t{}, int64_t{}, head);
};

// A map that leaves a part of its rows undone: finish does it for up to kFinish rows together, which costs as much as
// for one where it is a chain of operations on one number of each.
constexpr int64_t kFinish = 2 * kEvents;
template <class Map, class Real>
concept Finishes = requires(const Map& map, Real* const* rows) {
  map.template finish<simd::Baseline>(rows, int64_t{});
};

// A worker's scratch: features of kEvents keys and queries, their values and outputs; then S and z if there is no
// state.
template <class Real = float>
struct Scratch {
  Real *rows, *sums;
  Scratch(Layout& layout, const Shape& s, bool has_state)
      : rows(layout.take<Real>(2 * kEvents * (s.row() + s.e))),
        sums(has_state ? nullptr : layout.take<Real>(s.head_floats())) {}
};

// Rows by which memory is asked ahead.
constexpr int64_t kAhead = 8;

// Adds state and flops.  map_flops: of the feature map, per row and head.
inline void cost(const Shape& s, const Request& r, double map_flops, Info& info) {
  info.state(r, s.kv_heads * s.head_floats());
  const double row = 2.0 * static_cast<double>(s.features * (s.e + 1)) + map_flops;
  const auto rows = [&](int64_t heads, int64_t n) {
    return static_cast<uint64_t>(r.batch * heads) * static_cast<uint64_t>(static_cast<double>(n) * row);
  };
  info.flops = rows(s.heads, r.queries) + rows(s.kv_heads, r.keys);
}

// Append k, v if v; then read q into o if o, and into sum, if it is there, the sum of the weights.
template <class Real = float>
struct Event {
  const Real *k, *v, *q;
  Real *o, *sum, den;
};

// Events whose key multiplies row f of S by shrink[f] first, if shrink.
template <class Event>
concept Shrinks = requires(const Event& event) {
  event.shrink;
};

// R rows and C vectors of columns of S, in registers.
template <class I, int R, int C, class Real>
struct Tile {
  using Isa = I;
  using Vec = simd::Vector<Real, Isa>;
  static constexpr int64_t kLanes = simd::Lanes<Real>::count;
  Vec s[R][C];

  template <class F>
  ATTNKIT_INLINE static void each(F f) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) f(r, c);
  }
  ATTNKIT_INLINE void load(const Real* from, int64_t stride) {
    each([&](int r, int c) __attribute__((always_inline)) { s[r][c] = simd::at<Isa>(from + r * stride + c * kLanes); });
  }
  ATTNKIT_INLINE void store(Real* to, int64_t stride) const {
    each([&](int r, int c) __attribute__((always_inline)) { simd::store(s[r][c], to + r * stride + c * kLanes); });
  }
  ATTNKIT_INLINE void shrink(const Real* by) {
    each([&](int r, int c) __attribute__((always_inline)) { s[r][c] *= by[r]; });
  }
  ATTNKIT_INLINE void append(const Real* k, const Real* row) {
    Vec v[C];
    for (int c = 0; c < C; ++c) v[c] = simd::at<Isa>(row + c * kLanes);
    each([&](int r, int c) __attribute__((always_inline)) { s[r][c] += k[r] * v[c]; });
  }
  ATTNKIT_INLINE void read(const Real* q, Real* row) const {
    Vec o[C];
    for (int c = 0; c < C; ++c) o[c] = simd::at<Isa>(row + c * kLanes);
    each([&](int r, int c) __attribute__((always_inline)) { o[c] += q[r] * s[r][c]; });
    for (int c = 0; c < C; ++c) simd::store(o[c], row + c * kLanes);
  }
};

// Events one after another, whatever they are.
template <class Event>
struct Listed {
  const Event* events;
  int64_t n;
  template <class Tile>
  ATTNKIT_INLINE bool operator()(Tile& tile, int64_t f, int64_t e) const {
    bool changed = false;
    for (const Event* x = events; x != events + n; ++x) {
      if constexpr (Shrinks<Event>)
        if (x->shrink) tile.shrink(x->shrink + f);
      if (x->v) {
        changed = true;
        tile.append(x->k + f, x->v + e);
      }
      if (x->o) tile.read(x->q + f, x->o + e);
    }
    return changed;
  }
};

// Events of one kind whose rows stand at equal steps, as in a block of features: that they need no tests and no
// pointers saves a sixth of the time.
template <class Real>
struct Stepped {
  const Real *k, *v, *q;
  Real* o;
  int64_t k_next, v_next, q_next, o_next, n;

  // Are they such events?
  template <class Event>
  ATTNKIT_INLINE bool fits(const Event* events, int64_t count) {
    if (count < 2) return false;
    k = events->k, v = events->v, q = events->q, o = events->o, n = count;
    k_next = events[1].k - k, v_next = events[1].v - v, q_next = events[1].q - q, o_next = events[1].o - o;
    int all = 1;
    for (int64_t i = 0; i < n; ++i) {
      const Event& x = events[i];
      if constexpr (Shrinks<Event>) all &= !x.shrink;
      all &= !x.v == !v && !x.o == !o && (!v || (x.k == k + i * k_next && x.v == v + i * v_next)) &&
             (!o || (x.q == q + i * q_next && x.o == o + i * o_next));
    }
    return all != 0;
  }
};
template <class Real, bool reads>
struct Appending : Stepped<Real> {
  template <class Tile>
  ATTNKIT_INLINE bool operator()(Tile& tile, int64_t f, int64_t e) const {
    const Real *k = this->k + f, *v = this->v + e, *q = reads ? this->q + f : nullptr;
    Real* o = reads ? this->o + e : nullptr;
    for (int64_t i = 0; i < this->n; ++i) {
      tile.append(k, v);
      k += this->k_next, v += this->v_next;
      if constexpr (!reads) continue;
      tile.read(q, o);
      q += this->q_next, o += this->o_next;
    }
    return true;
  }
};

template <class Isa, int R, int C, class Real, class Events>
ATTNKIT_INLINE void walk(Real* s, int64_t stride, int64_t f, int64_t e, const Events& events) {
  Tile<Isa, R, C, Real> tile;
  tile.load(s, stride);
  if (events(tile, f, e)) tile.store(s, stride);  // otherwise others may be reading the same state
}

// The last columns of S, fewer than a vector.
template <class Real, class Event>
ATTNKIT_INLINE void tail(Real* s, int64_t features, int64_t values, int64_t e, const Event* events, int64_t n) {
  for (int64_t f = 0; f < features; ++f) {
    Real* row = s + f * values;
    for (const Event* x = events; x != events + n; ++x) {
      if constexpr (Shrinks<Event>)
        if (x->shrink)
          for (int64_t c = e; c < values; ++c) row[c] *= x->shrink[f];
      if (x->v)
        for (int64_t c = e; c < values; ++c) row[c] += x->k[f] * x->v[c];
      if (x->o)
        for (int64_t c = e; c < values; ++c) x->o[c] += x->q[f] * row[c];
    }
  }
}

// C vectors of columns of S from e on against all events, R rows at a time.
template <class Isa, int R, int C, class Real, class Events>
ATTNKIT_INLINE void panel(Real* s, int64_t features, int64_t values, int64_t e, const Events& events) {
  int64_t f = 0;
  for (; f + R <= features; f += R) walk<Isa, R, C>(s + f * values + e, values, f, e, events);
  for (; f < features; ++f) walk<Isa, 1, C>(s + f * values + e, values, f, e, events);
}

// All whole vectors of columns of S against all events; wide: in tiles of fewer rows.
template <class Isa, class Real, class Events>
ATTNKIT_INLINE void panels(Real* s, int64_t features, int64_t values, const Events& events, bool wide) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  constexpr int rows = Isa::rows, columns = Isa::columns;
  int64_t e = 0;
  if (wide)
    for (; e + 2 * columns * lanes <= values; e += 2 * columns * lanes)
      panel<Isa, rows / 2, 2 * columns>(s, features, values, e, events);
  for (; e + columns * lanes <= values; e += columns * lanes) panel<Isa, rows, columns>(s, features, values, e, events);
  if constexpr (columns > 1)
    for (; e + lanes <= values; e += lanes) panel<Isa, rows, 1>(s, features, values, e, events);
}

// All of S, [features][values], against all events.
template <class Isa, class Real, class Event>
ATTNKIT_INLINE void sweep(Real* s, int64_t features, int64_t values, const Event* events, int64_t n) {
  // The outputs of one event are chains as long as S has rows, so only more of them fill the machine; of more events
  // they are read and written more often, for which AVX-512 alone is wide enough.
  constexpr bool wide = Isa::bytes == 64;
  const int64_t rest = values % simd::Lanes<Real>::count, whole = values - rest;
  Stepped<Real> x;
  if (!x.fits(events, n))
    panels<Isa>(s, features, values, Listed<Event>{events, n}, wide || n == 1);
  else if (!x.v)
    simd::add_product<Isa, Real>({x.q, x.q_next}, {s, features, whole, values}, {x.o, n, whole, x.o_next});
  else if (x.o)
    panels<Isa>(s, features, values, Appending<Real, true>{x}, wide && !simd::halves_64_bytes);
  else
    panels<Isa>(s, features, values, Appending<Real, false>{x}, wide);
  if (rest > 0) tail(s, features, values, whole, events, n);
}

// C vectors of columns of S from e on against one event, row by row: its value and what it reads stay in registers.
template <class Isa, int C, bool appends, bool reads, class Real, class Event>
ATTNKIT_INLINE void step_columns(Real* s, int64_t features, int64_t values, int64_t e, const Event& event) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  const Event x = event;  // what is written to S could be any of its members
  simd::Vector<Real, Isa> v[C], o[C];
  for (int c = 0; c < C; ++c) {
    if constexpr (appends) v[c] = simd::at<Isa>(x.v + e + c * lanes);
    if constexpr (reads) o[c] = simd::at<Isa>(x.o + e + c * lanes);
  }
  for (int64_t f = 0; f < features; ++f) {
    Real* const at = s + f * values + e;
    const Real k = appends ? x.k[f] : 0, q = reads ? x.q[f] : 0;
    for (int c = 0; c < C; ++c) {
      auto sums = simd::at<Isa>(at + c * lanes);
      if constexpr (appends) {
        sums += k * v[c];
        simd::store(sums, at + c * lanes);
      }
      if constexpr (reads) o[c] += q * sums;
    }
  }
  if constexpr (reads)
    for (int c = 0; c < C; ++c) simd::store(o[c], x.o + e + c * lanes);
}

// All of S against one event that shrinks nothing, as a step of a stream has; one that appends nothing leaves S alone,
// which others may be reading.
template <class Isa, class Real, class Event>
ATTNKIT_INLINE void step(Real* s, int64_t features, int64_t values, const Event& event) {
  constexpr int64_t lanes = simd::Lanes<Real>::count;
  int64_t e = 0;
  const auto columns = [&](auto appends, auto reads) __attribute__((always_inline)) {
    for (; e + 4 * lanes <= values; e += 4 * lanes) step_columns<Isa, 4, appends, reads>(s, features, values, e, event);
    for (; e + 2 * lanes <= values; e += 2 * lanes) step_columns<Isa, 2, appends, reads>(s, features, values, e, event);
    if (e + lanes <= values)
      step_columns<Isa, 1, appends, reads>(s, features, values, std::exchange(e, e + lanes), event);
  };
  if (event.v && event.o)
    columns(std::true_type(), std::true_type());
  else if (event.v)
    columns(std::true_type(), std::false_type());
  else
    columns(std::false_type(), std::true_type());
  if (e < values) tail(s, features, values, e, &event, 1);
}

// Events that wait, and where their outputs go.
template <class Real>
struct Waiting {
  Event<Real> events[kEvents];
  Real* outputs[kEvents];
};

// One head of one batch row while it runs; map: who finishes its rows.
template <class Isa, class Real = float, class Map = void>
class Walker {
 public:
  ATTNKIT_INLINE Walker(const Shape& shape, const Guard& guard, Real* s, Real* features, Waiting<Real>& waiting,
                        const Map* map = nullptr)
      : shape_(shape),
        guard_(guard),
        s_(s),
        z_(s + shape.features * shape.e),
        features_(features),
        map_(map),
        events_(waiting.events),
        outputs_(waiting.outputs) {}

  // The next row of features, of a key or a query; the event is full until flush when this returns room to no more.
  ATTNKIT_INLINE Real* key_row() {
    if (n_ == kEvents) flush();
    return features_ + n_ * shape_.row();
  }
  ATTNKIT_INLINE void append(const Real* k, const Real* v) {
    Real* copy = values(n_);
    simd::map<Isa>(
        shape_.e, copy, [](const auto& x) __attribute__((always_inline)) { return x; }, v);
    events_[n_++] = {k, copy, nullptr, nullptr, nullptr, 0};
  }
  // A query rides in the event of the key before it, if that has none yet.
  ATTNKIT_INLINE Real* query_row() {
    const bool ride = n_ > 0 && !events_[n_ - 1].o;
    if (!ride && n_ == kEvents) flush();
    if (!ride || n_ == 0) events_[n_++] = {nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    return features_ + (kEvents + n_ - 1) * shape_.row();
  }
  ATTNKIT_INLINE void read(const Real* q, Real* o, Real* sum = nullptr) {
    simd::prefetch<true>(o, shape_.e);
    Real* copy = values(kEvents + n_ - 1);
    std::memset(copy, 0, static_cast<size_t>(shape_.e) * sizeof(Real));
    events_[n_ - 1].q = q;
    events_[n_ - 1].o = copy;
    events_[n_ - 1].sum = sum;
    outputs_[n_ - 1] = o;
  }
  // Takes what waits.  This is nearly all of the kernel's code and called at several places, so it is a function of its
  // own, on a copy: what the walker has stays in registers.
  ATTNKIT_INLINE void flush() {
    if (n_ == 0) return;
    simd::apart<Isa>(Flush{*this});
    n_ = 0;
  }
  // The same where a run ends, with one event if it is a step of a stream.
  ATTNKIT_INLINE void end() {
    if (n_ == 1)
      take(true);
    else
      flush();
  }

 private:
  struct Flush {
    Walker walker;
    template <class>
    ATTNKIT_INLINE void operator()() const {
      walker.take(false);
    }
  };
  ATTNKIT_INLINE void take(bool one) const {
    if constexpr (Finishes<Map, Real>) finish();
    sums();
    if (one)
      step<Isa>(s_, shape_.features, shape_.e, events_[0]);
    else
      sweep<Isa>(s_, shape_.features, shape_.e, events_, n_);
    for (int64_t i = 0; i < n_; ++i)
      if (const Event<Real>& x = events_[i]; x.o)
        simd::map<Isa>(
            shape_.e, outputs_[i], [den = x.den](const auto& o) __attribute__((always_inline)) { return o / den; },
            x.o);
  }
  // The place of the values of event i, or, kEvents later, of what it reads.  Rows of one head are far apart where
  // others' stand between them, and would take each other's places in the cache.
  ATTNKIT_INLINE Real* values(int64_t i) const { return features_ + 2 * kEvents * shape_.row() + i * shape_.e; }
  ATTNKIT_INLINE void finish() const {
    Real* rows[kFinish];
    int64_t n = 0;
    for (int64_t i = 0; i < n_; ++i) {
      if (events_[i].v) rows[n++] = features_ + i * shape_.row();
      if (events_[i].o) rows[n++] = features_ + (kEvents + i) * shape_.row();
    }
    map_->template finish<Isa>(rows, n);
  }
  ATTNKIT_INLINE void sums() const {
    for (Event<Real>* x = events_; x != events_ + n_; ++x) {
      if (x->v)
        simd::map<Isa>(
            shape_.features, z_, [](const auto& z, const auto& k) __attribute__((always_inline)) { return z + k; }, z_,
            x->k + shape_.split);
      if (!x->o) continue;
      const Real sum = simd::dot<Isa>(x->q + shape_.split, z_, shape_.features);
      if (x->sum) *x->sum = sum;
      x->den = guard_(sum);
    }
  }
  const Shape& shape_;
  const Guard& guard_;
  Real *s_, *z_, *features_;
  const Map* map_;
  Event<Real>* events_;
  Real** outputs_;
  int64_t n_ = 0;
};

// One run; called for `together` heads of queries at a time, which share a head of keys, and for each of `parts` parts
// of the columns of S: few heads occupy many workers so, each of which makes all features.
template <class Map, class Real>
struct Run {
  const Shape& shape;
  const Guard& guard;
  const Map& map;
  bool causal;
  const attn_run& run;
  Qkv<Real> x;
  State state;
  Real* sums;  // [batch][heads][queries], where the sums of weights go; NULL: nobody wants them
  int64_t together, parts = 1;

  // Returns the parts of a run of so many items: whole vectors each, if a worker has none else, the rows are many and
  // their features cheap.
  static int64_t parts_of(const attn_run& run, const Shape& shape, double map_flops, int64_t items) {
    constexpr int64_t rows = 1024, columns = 2 * simd::Lanes<Real>::count;
    const bool cheap = 4 * map_flops <= static_cast<double>(shape.features * shape.e);
    if (Rescales<Map> || run.state || !cheap || run.queries + run.keys < rows) return 1;
    return std::clamp<int64_t>(run.exec->workers / std::max<int64_t>(1, items), 1,
                               std::max<int64_t>(1, shape.e / columns));
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t b, int64_t item, void* memory) const {
    Layout layout(memory);
    const Scratch<Real> scratch(layout, shape, bool{state});
    const int64_t first = item / parts * together, h = first / shape.group(), part = item % parts;
    constexpr int64_t lanes = simd::Lanes<Real>::count;
    const int64_t vectors = shape.e / lanes, begin = vectors * part / parts * lanes;
    Shape own = shape;
    own.e = (part + 1 == parts ? shape.e : vectors * (part + 1) / parts * lanes) - begin;
    Real* s = state.head(b, h, shape.head_floats(), scratch.sums);
    Real* to = sums && part == 0 ? sums + (b * shape.heads + first) * run.queries : nullptr;
    Waiting<Real> waiting;
    Walker<Isa, Real, Map> walker(own, guard, s, scratch.rows, waiting, &map);
    const Sight sight(run, b, causal);
    const auto append = [&](int64_t from, int64_t to) __attribute__((always_inline)) {
      if constexpr (Rescales<Map>) {
        walker.flush();  // what waits was made for the old scale
        map.template rescale<Isa>(x.k, b, h, from, to, s);
      }
      for (int64_t j = from; j < to; ++j) {
        if (j + kAhead < run.keys) {
          simd::prefetch(x.k.row(b, h, j + kAhead), shape.d);
          simd::prefetch(x.v.row(b, h, j + kAhead) + begin, own.e);
        }
        Real* row = walker.key_row();
        if constexpr (Rescales<Map>)
          map.key(x.k.row(b, h, j), At<Isa>{{b, h, sight.past + j}}, row, s);
        else
          map.key(x.k.row(b, h, j), At<Isa>{{b, h, sight.past + j}}, row);
        walker.append(row, x.v.row(b, h, j) + begin);
      }
      if constexpr (Rescales<Map>) walker.flush();  // the next query's features read z
    };
    const auto read = [&](int64_t i) __attribute__((always_inline)) {
      for (int64_t n = 0; n < together; ++n) {
        Real* row = walker.query_row();
        const At<Isa> at{{b, first + n, sight.q_pos + i}};
        if (i + kAhead < run.queries) simd::prefetch(x.q.row(b, at.h, i + kAhead), shape.d);
        if constexpr (Rescales<Map>)
          map.query(x.q.row(b, at.h, i), at, row, s);
        else
          map.query(x.q.row(b, at.h, i), at, row);
        walker.read(row, x.o.row(b, at.h, i) + begin, to ? to + n * run.queries + i : nullptr);
      }
    };
    sight.walk(bool{state}, append, read);
    walker.end();
  }
};

}  // namespace attnkit::linear
#endif
