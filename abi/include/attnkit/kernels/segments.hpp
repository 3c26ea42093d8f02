// Softmax attention of one query over keys that stand in a few segments of memory.
#ifndef ATTNKIT_KERNELS_SEGMENTS_HPP
#define ATTNKIT_KERNELS_SEGMENTS_HPP
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// Keys and values of positions that follow one another in memory.
struct Segment {
  const float *k, *v;
  int64_t k_next, v_next, count;
};

// In the order of positions.
struct Segments {
  Segment list[3];
  int n = 0;
  int64_t count = 0;
  ATTNKIT_INLINE void add(const Segment& s) {
    if (s.count <= 0) return;
    list[n++] = s;
    count += s.count;
  }
};

// scores = scale q . k for each key, then -infinity up to a whole vector; a key's score does not depend on its segment.
// Returns the max.  scores has room for a vector more.
template <class Isa>
ATTNKIT_INLINE float score(const float* q, int64_t d, float scale, const Segments& segments, float* scores) {
  float* to = scores;
  for (const Segment* x = segments.list; x != segments.list + segments.n; to += x->count, ++x)
    for (int64_t j = 0; j < x->count; j += kLanes)
      dots<Isa>(q, x->k + j * x->k_next, x->k_next, x->count - j, d, to + j);
  const int64_t n = segments.count;
  for (int64_t r = n; r % kLanes != 0; ++r) scores[r] = -__builtin_inff();
  Vec<Isa> most = -__builtin_inff() - Vec<Isa>{};
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec<Isa> y = at<Isa>(scores + j) * scale;
    store(y, scores + j);
    most = select(y > most, y, most);
  }
  return largest(most);
}

// Adds weights[j] v_j over a segment whose first key is the place-th to C vectors, or the first lanes of one.  Keys of
// even and of odd places are added up separately, wherever their segments begin.
template <class Isa, int C>
ATTNKIT_INLINE void add_values(const float* weights, int64_t place, const Segment& x, int64_t c, int64_t lanes,
                               Vec<Isa>* even, Vec<Isa>* odd) {
  const auto add = [lanes](float weight, const float* v, Vec<Isa>* sums) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int l = 0; l < C; ++l) {
      Vec<Isa> value;
      load(v + l * kLanes, lanes, value);
      sums[l] += weight * value;
    }
  };
  const float *v = x.v + c, *weight = weights + place;
  int64_t j = 0;
  if (place % 2 != 0) add(weight[j++], v, odd);
  for (; j + 2 <= x.count; j += 2) {
    add(weight[j], v + j * x.v_next, even);
    add(weight[j + 1], v + (j + 1) * x.v_next, odd);
  }
  if (j < x.count) add(weight[j], v + j * x.v_next, even);
}

// C vectors of o, or the first lanes of one.
template <class Isa, int C>
ATTNKIT_INLINE void mean_panel(const float* weights, float sum, const Segments& segments, int64_t c, int64_t lanes,
                               float* o) {
  Vec<Isa> even[C] = {}, odd[C] = {};
  int64_t place = 0;
  for (const Segment* x = segments.list; x != segments.list + segments.n; place += x->count, ++x)
    add_values<Isa, C>(weights, place, *x, c, lanes, even, odd);
  for (int l = 0; l < C; ++l) store((even[l] + odd[l]) / sum, lanes, o + c + l * kLanes);
}

// o = sum_j weights[j] v_j / sum, whole vectors of its e floats.  Returns how many floats that were.
template <class Isa>
ATTNKIT_INLINE int64_t mean(const float* weights, float sum, const Segments& segments, int64_t e, float* o) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= e; c += 4 * kLanes) mean_panel<Isa, 4>(weights, sum, segments, c, kLanes, o);
  for (; c + kLanes <= e; c += kLanes) mean_panel<Isa, 1>(weights, sum, segments, c, kLanes, o);
  return c;
}

}  // namespace attnkit::simd
#endif
