// The sums behind Latte: one row of weighted values per latent, rescaled token by token to a running maximum.
//
// As in kernels/linear.hpp the work of a head is a list of events in time order, append a key or read a query, and a
// register tile of S walks it, so S is loaded once per kEvents.  Unlike there an event may also shrink S, so a token
// that raises a maximum does not end the list.  What an event does depends on the tokens before it alone, never on
// where a run ends: equal bits however a sequence is split, and in whole runs too.
#pragma once
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/guard.hpp>
#include <limits>

namespace latte {

using namespace attnkit::simd;

constexpr int64_t kEvents = 16;

// A head's state is S[l][E], z[l], m[l]; a z of 0 means that no logit above -infinity came yet.
struct Shape {
  int64_t heads, latents, values;  // H, l = L / H, E
  float scale;
  int64_t padded() const { return (latents + kLanes - 1) / kLanes * kLanes; }
  uint64_t head_bytes() const { return static_cast<uint64_t>(latents * (values + 2)) * sizeof(float); }
  // What the events of a Walker point at: a key's weights, its shrinking factors and a query's weights, per event.
  uint64_t rows_bytes() const { return static_cast<uint64_t>(3 * kEvents * padded()) * sizeof(float); }
};

// If v: S = S shrink (if any grew) + k v^T.  Then if o: o = factor q^T S.
struct Event {
  const float *k, *shrink, *v, *q;
  float *o, factor;
};

// Walks the events with a tile of R latents and C Vecs of S in registers.
template <int R, int C>
ATTNKIT_INLINE void walk(float* s, int64_t stride, int64_t f, int64_t e, const Event* events, int64_t n) {
  Vec tile[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) tile[r][c] = at(s + r * stride + c * kLanes).v;
  bool changed = false;
  for (const Event* x = events; x != events + n; ++x) {
    if (x->shrink) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) tile[r][c] *= x->shrink[f + r];
    }
    if (x->v) {
      changed = true;
      Vec v[C];
      for (int c = 0; c < C; ++c) v[c] = at(x->v + e + c * kLanes).v;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) tile[r][c] += x->k[f + r] * v[c];
    }
    if (x->o) {
      Vec o[C];
      for (int c = 0; c < C; ++c) o[c] = at(x->o + e + c * kLanes).v;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) o[c] += x->q[f + r] * tile[r][c];
      for (int c = 0; c < C; ++c) at(x->o + e + c * kLanes).v = o[c];
    }
  }
  if (!changed) return;  // others may be reading the same state
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) at(s + r * stride + c * kLanes).v = tile[r][c];
}

// Columns [e, e + C * 16) of S against all events.
template <class Isa, int C>
ATTNKIT_INLINE void panel(float* s, const Shape& shape, int64_t e, const Event* events, int64_t n) {
  int64_t f = 0;
  for (; f + Isa::rows <= shape.latents; f += Isa::rows)
    walk<Isa::rows, C>(s + f * shape.values + e, shape.values, f, e, events, n);
  for (; f < shape.latents; ++f) walk<1, C>(s + f * shape.values + e, shape.values, f, e, events, n);
}

// The last columns of S, fewer than 16.
ATTNKIT_INLINE void tail(float* s, const Shape& shape, int64_t e, const Event* events, int64_t n) {
  for (int64_t f = 0; f < shape.latents; ++f) {
    float* row = s + f * shape.values;
    for (const Event* x = events; x != events + n; ++x) {
      if (x->shrink)
        for (int64_t c = e; c < shape.values; ++c) row[c] *= x->shrink[f];
      if (x->v)
        for (int64_t c = e; c < shape.values; ++c) row[c] += x->k[f] * x->v[c];
      if (x->o)
        for (int64_t c = e; c < shape.values; ++c) x->o[c] += x->q[f] * row[c];
    }
  }
}

// Puts `other` into the lanes from n on.
ATTNKIT_INLINE void mask(int64_t n, float other, Vec& x) {
  const Vec lane{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  x = lane < static_cast<float>(n) ? x : other - Vec{};
}

// The largest lane.
ATTNKIT_INLINE float top(const Vec& v) {
  Vec t = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  t = v > t ? v : t;
  Vec u = __builtin_shufflevector(t, t, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  u = t > u ? t : u;
  t = __builtin_shufflevector(u, u, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  t = u > t ? u : t;
  return t[0] > t[1] ? t[0] : t[1];
}

// One head of one batch row while it runs.
template <class Isa>
class Walker {
 public:
  ATTNKIT_INLINE Walker(const Shape& shape, float* head, float* rows)
      : shape_(shape), s_(head), z_(head + shape.latents * shape.values), m_(z_ + shape.latents), rows_(rows) {}

  ATTNKIT_INLINE void append(const float* logits, const float* v) {
    if (n_ == kEvents) flush();
    float *k = row(0), *shrink = row(1);
    const bool grew = raise(logits, k, shrink);
    if (grew) {
      for (int64_t l = 0; l < shape_.latents; l += kLanes) {
        Vec x = at(shrink + l).v;
        attnkit::simd::exp(x);
        at(shrink + l).v = x;
      }
      for (int64_t l = 0; l < shape_.latents; ++l) z_[l] *= shrink[l];
    }
    for (int64_t l = 0; l < shape_.latents; ++l) z_[l] += k[l];
    events_[n_++] = {k, grew ? shrink : nullptr, v, nullptr, nullptr, 0};
  }

  // A query rides in the event of the key before it, if that has none yet.
  ATTNKIT_INLINE void read(const float* logits, float* o) {
    if (n_ == 0 || events_[n_ - 1].o) {
      if (n_ == kEvents) flush();
      events_[n_++] = {nullptr, nullptr, nullptr, nullptr, nullptr, 0};
    }
    --n_;
    float* q = row(2);
    Event& event = events_[n_++];
    event.factor = softmax(logits, q);
    event.q = q;
    event.o = o;
    std::memset(o, 0, static_cast<size_t>(shape_.values) * sizeof(float));
  }

  ATTNKIT_INLINE void flush() {
    if (n_ == 0) return;
    int64_t e = 0;
    for (; e + Isa::columns * kLanes <= shape_.values; e += Isa::columns * kLanes)
      panel<Isa, Isa::columns>(s_, shape_, e, events_, n_);
    for (; e + kLanes <= shape_.values; e += kLanes) panel<Isa, 1>(s_, shape_, e, events_, n_);
    if (e < shape_.values) tail(s_, shape_, e, events_, n_);
    for (const Event* x = events_; x != events_ + n_; ++x)
      if (x->o)
        for (int64_t c = 0; c < shape_.values; ++c) x->o[c] *= x->factor;
    n_ = 0;
  }

 private:
  // Row `which` of event n_: weights of its key, shrinking factors, weights of its query.
  ATTNKIT_INLINE float* row(int64_t which) const { return rows_ + (3 * n_ + which) * shape_.padded(); }

  // m becomes the largest of itself and the logits, k = e^(logits - m), shrink = old m - m.  Did any latent's m grow?
  // A NaN is never the largest; its own latent carries it.
  ATTNKIT_INLINE bool raise(const float* logits, float* k, float* shrink) {
    Vec grown{};
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      const int64_t left = shape_.latents - l;
      Vec x, sums, old;
      attnkit::simd::load(logits + l, left, x);
      attnkit::simd::load(z_ + l, left, sums);
      attnkit::simd::load(m_ + l, left, old);
      x *= shape_.scale;
      old = sums == 0 ? std::numeric_limits<float>::lowest() - Vec{} : old;
      if (left < kLanes) mask(left, std::numeric_limits<float>::lowest(), x);
      const Vec largest = x > old ? x : old;
      grown = x > old ? 1.0f - Vec{} : grown;
      attnkit::simd::store(largest, left, m_ + l);
      x -= largest;
      attnkit::simd::exp(x);
      at(k + l).v = x;
      at(shrink + l).v = old - largest;
    }
    return top(grown) != 0;
  }

  // q_l = e^(a_l - max a) / z_l; returns 1 / the sum over l of e^(a_l - max a).
  ATTNKIT_INLINE float softmax(const float* logits, float* q) const {
    Vec most = -__builtin_inff() - Vec{}, total{};
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      const int64_t left = shape_.latents - l;
      Vec x;
      attnkit::simd::load(logits + l, left, x);
      x *= shape_.scale;
      if (left < kLanes) mask(left, -__builtin_inff(), x);
      most = x > most ? x : most;
      at(q + l).v = x;
    }
    const float largest = top(most);
    for (int64_t l = 0; l < shape_.latents; l += kLanes) {
      Vec x = at(q + l).v - largest, sums;
      attnkit::simd::load(z_ + l, shape_.latents - l, sums);
      attnkit::simd::exp(x);
      total += x;
      at(q + l).v = x / sums;
    }
    return 1 / sum(total);
  }

  const Shape& shape_;
  float *s_, *z_, *m_, *rows_;
  int64_t n_ = 0;
  Event events_[kEvents];
};

}  // namespace latte
