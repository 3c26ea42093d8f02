// One head of Performer while it runs: the feature map, and the stabiliser that follows the keys.
#ifndef ATTNKIT_PERFORMER_HEAD_HPP
#define ATTNKIT_PERFORMER_HEAD_HPP
#include <attnkit/kernels/linear.hpp>

#include "projection.hpp"

namespace attnkit::performer {

// A key may exceed c_f by this much before S_f and z_f are brought to a new scale: e^16 is far from overflowing, and
// rescaling becomes rare.
constexpr float kMargin = 16;
constexpr float kLeast = -3.402823466e38f;  // the least c_f: the most negative finite number

enum class Stabiliser { kRunning, kFixed, kGlobal };

struct Map {
  int64_t m, d;
  Stabiliser stabiliser;
  float scale, root;  // D^-1/4, D^-1/2
  float fixed, eps;   // c of kFixed; feature_eps
  bool cancels;       // factors of a query's features do not matter
};

// One head of one batch row while it runs.
template <class Isa>
struct Head {
  const Map& map;
  linear::Walker<Isa> walker;
  Projected<Isa> queries, keys;
  float *s, *z, *c;  // c: [m] when running
  int64_t e;
  float constant;  // c otherwise

  ATTNKIT_INLINE void append(int64_t j, bool first, const float* v) {
    const float* p = keys(j);
    const float norm = keys.square(j) * map.root * 0.5f;
    if (map.stabiliser == Stabiliser::kRunning) follow(p, norm, first);
    float* row = walker.key_row();
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec y = at(p + f).v - norm, own{};
      if (map.stabiliser == Stabiliser::kRunning) simd::load(c + f, map.m - f, own);
      y -= own + constant;
      simd::exp(y);
      simd::store(y + map.eps, map.m - f, row + f);
    }
    walker.append(row, v);
  }

  ATTNKIT_INLINE void read(int64_t i, float* o) {
    const float* p = queries(i);
    const bool running = map.stabiliser == Stabiliser::kRunning;
    const float norm = map.cancels ? 0 : queries.square(i) * map.root * 0.5f;
    const float factor = map.cancels ? 1 : 1 / static_cast<float>(map.m);
    Vec most = -__builtin_inff() - Vec{}, own{};
    for (int64_t f = 0; f < map.m; f += kLanes) {
      if (running) simd::load(c + f, map.m - f, own);
      const Vec y = at(p + f).v + own;
      most = y > most ? y : most;
    }
    const float shift = largest(most) + norm;
    float* row = walker.query_row();
    for (int64_t f = 0; f < map.m; f += kLanes) {
      if (running) simd::load(c + f, map.m - f, own);
      Vec y = at(p + f).v + own - shift;
      simd::exp(y);
      simd::store((y + map.eps) * factor, map.m - f, row + f);
    }
    walker.read(row, o);
  }

  // c follows a key that exceeds it.  A key that is -infinity must leave c finite, for those that come after it.
  ATTNKIT_INLINE void follow(const float* p, float norm, bool first) {
    Vec over = -__builtin_inff() - Vec{};
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec y = at(p + f).v - norm, old;
      if (first) simd::store(y > kLeast ? y : kLeast - Vec{}, map.m - f, c + f);
      simd::load(c + f, map.m - f, old);
      y -= old;
      over = y > over ? y : over;
    }
    if (!first && largest(over) > kMargin) rescale(p, norm);
  }

  ATTNKIT_INLINE void rescale(const float* p, float norm) {
    walker.flush();  // what waits was made for the old scale
    for (int64_t f = 0; f < map.m; f += kLanes) {
      Vec old;
      simd::load(c + f, map.m - f, old);
      const Vec y = at(p + f).v - norm;
      Vec factor = old - y;
      simd::exp(factor);
      for (int64_t l = 0; l < kLanes && f + l < map.m; ++l) {
        if (!(y[l] - old[l] > kMargin)) continue;
        c[f + l] = y[l];
        z[f + l] *= factor[l];
        for (int64_t x = 0; x < e; ++x) s[(f + l) * e + x] *= factor[l];
      }
    }
  }
};

}  // namespace attnkit::performer
#endif
