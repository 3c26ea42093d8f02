// Reformer's sizes, and the order of tokens that hashes give each round.
#pragma once
#include <algorithm>
#include <attnkit/kernels/pack.hpp>
#include <attnkit/plugin.hpp>

namespace reformer {

constexpr float kSelf = -1e5f;  // the score of a token with itself

struct Shape : attnkit::Widths {
  int64_t chunk, rounds, buckets, length;
  double eps;
  int64_t columns = 0;  // of the rotations

  // Floats of a chunk's packed keys and values.
  int64_t slots() const { return attnkit::simd::whole_lanes(chunk); }
  int64_t width() const { return attnkit::simd::whole_lanes(e); }
  int64_t key_floats() const { return slots() * d; }
  int64_t value_floats() const { return chunk * width(); }

  static int64_t whole(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk * chunk; }
  // The paper's number of buckets for this many chunks: the power of two at or below twice as many.
  static int64_t buckets_for(int64_t chunks) {
    int64_t count = 2;
    while (count * 2 <= 2 * chunks) count *= 2;
    return count;
  }
  // The sizes that follow for a row of n tokens.
  int64_t padded(int64_t n) const { return length > 0 ? length : whole(n, chunk); }
  bool plain(int64_t n) const { return padded(n) <= chunk; }
  int64_t buckets_of(int64_t n) const { return buckets > 0 ? buckets : buckets_for(padded(n) / chunk); }
  // In a row of one chunk everyone sees everyone.
  int64_t rounds_of(int64_t n) const { return plain(n) ? 1 : rounds; }
  int64_t chunks(int64_t n) const { return whole(n, chunk) / chunk; }
  // Tokens in the last chunk of a round, which the first chunk of the next one sees.
  int64_t across(int64_t n) const { return plain(n) ? 0 : std::max<int64_t>(0, n - (padded(n) - chunk)); }
};

constexpr int64_t kDoubles = 8, kMaxRows = 8;  // lanes, and tokens of the largest tile

constexpr int64_t whole_doubles(int64_t n) { return (n + kDoubles - 1) / kDoubles * kDoubles; }

// The bucket of one token: the first of the largest among `half` products and their opposites.  Zeros behind the
// products change nothing: they are the largest only where all are zero, and the first of those is taken.
template <class Isa>
ATTNKIT_INLINE int32_t bucket(const double* products, int64_t half, int64_t columns) {
  namespace simd = attnkit::simd;
  using V = simd::Vector<double, Isa>;
  V most = V{} - __builtin_inf(), opposite_most = most;
  for (int64_t k = 0; k < columns; k += kDoubles) {
    const V x = simd::at<Isa>(products + k);
    most = simd::select(x > most, x, most);
    opposite_most = simd::select(-x > opposite_most, -x, opposite_most);
  }
  const double high = simd::largest(most), low = -simd::largest(opposite_most);
  const bool opposite = -low > high;
  const double wanted = opposite ? low : high;
  for (int64_t k = 0; k < half; ++k)
    if (products[k] == wanted) return static_cast<int32_t>(opposite ? half + k : k);
  return 0;  // not-a-numbers only
}

// The order of a round: tokens by bucket, those of one bucket by position.  ends: as many as there are buckets.
inline void sort(const Shape& shape, int64_t n, const int32_t* buckets, int32_t* ends, int32_t* order) {
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  if (shape.plain(n)) return;
  std::fill(ends, ends + shape.buckets_of(n), 0);
  for (int64_t i = 0; i < n; ++i) ++ends[buckets[i]];
  for (int64_t k = 1; k < shape.buckets_of(n); ++k) ends[k] += ends[k - 1];
  for (int64_t i = n - 1; i >= 0; --i) order[--ends[buckets[i]]] = static_cast<int32_t>(i);
}

// The chunks of all rounds of a head; the one behind the others is what the first sees, the last of the round before.
struct Rounds {
  const Shape& shape;
  int64_t n, rounds;
  const int32_t* order;  // [rounds][n]

  const int32_t* tokens(int64_t round, int64_t t) const {
    if (t < shape.chunks(n)) return order + round * n + t * shape.chunk;
    return order + (round + rounds - 1) % rounds * n + n - shape.across(n);
  }
  int64_t held(int64_t t) const {
    return t == shape.chunks(n) ? shape.across(n) : std::min(shape.chunk, n - t * shape.chunk);
  }
};

// The numbers that a run saves of a head: the maximum of each token's scores, the sum of their exponentials from there,
// the order.
template <class Real>
struct Saved {
  Real *max, *sum;
  int32_t* order;
  Saved(const attn_run& run, const Shape& shape, int64_t b, int64_t h) {
    const int64_t n = run.queries, heads = run.batch * shape.heads, head = b * shape.heads + h;
    max = static_cast<Real*>(run.saved) + head * n;
    sum = max + heads * n;
    order = reinterpret_cast<int32_t*>(static_cast<Real*>(run.saved) + 2 * heads * n) + head * shape.rounds * n;
  }
  // Of a plan's bounds.
  static int64_t numbers(const attnkit::Request& r, const Shape& shape) {
    return r.batch * shape.heads * r.queries * (2 + shape.rounds);
  }
};

}  // namespace reformer
