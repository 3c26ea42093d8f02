// One head of Reformer: hash, sort, attend within chunks, mix the rounds.
//
// Padding is last in the order of every round, in a bucket of its own, and nobody sees it; so the tokens of a round are
// the first n of its order, and the chunks behind them are left out.
#ifndef ATTNKIT_REFORMER_WALK_HPP
#define ATTNKIT_REFORMER_WALK_HPP
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/work.hpp>

#include "hash.hpp"

namespace attnkit::reformer {

constexpr float kSelf = -1e5f;  // the score of a token with itself

struct Shape {
  int64_t heads, chunk, d, e, rounds, buckets, length, columns;
  double eps;

  // Floats of a chunk's packed keys and values.
  int64_t slots() const { return simd::whole_lanes(chunk); }
  int64_t width() const { return simd::whole_lanes(e); }
  int64_t key_floats() const { return slots() * d; }
  int64_t value_floats() const { return chunk * width(); }

  static int64_t whole(int64_t n, int64_t chunk) { return (n + chunk - 1) / chunk * chunk; }
  // The paper's number of buckets for this many chunks: the power of two at or below twice as many.
  static int64_t buckets_for(int64_t chunks) {
    int64_t count = 2;
    while (count * 2 <= 2 * chunks) count *= 2;
    return count;
  }
  // What follows for a row of n tokens.
  int64_t padded(int64_t n) const { return length > 0 ? length : whole(n, chunk); }
  bool plain(int64_t n) const { return padded(n) <= chunk; }
  int64_t buckets_of(int64_t n) const { return buckets > 0 ? buckets : buckets_for(padded(n) / chunk); }
  int64_t chunks(int64_t n) const { return whole(n, chunk) / chunk; }
  // Tokens in the last chunk of a round, which the first chunk of the next one sees.
  int64_t across(int64_t n) const { return plain(n) ? 0 : std::max<int64_t>(0, n - (padded(n) - chunk)); }
};

struct Ports {
  uint32_t q, v, o, rotations;
};

// Scratch of one worker, for rows of up to n tokens.
struct Space {
  static uint64_t bytes(const Shape& s, int64_t n) {
    const int64_t chunks = s.chunks(n) + 1;
    return aligned(static_cast<uint64_t>(HashSpace::doubles(s.d, s.columns)) * sizeof(double) +
                   static_cast<uint64_t>(chunks * (s.key_floats() + s.value_floats() + 1) +
                                         simd::kQueries * (s.d + s.width()) + (3 + 1 + s.rounds) * n + 2 * s.columns) *
                       sizeof(float));
  }
  Space(const Shape& s, int64_t n, char* at)
      : hash(reinterpret_cast<double*>(at), s.d, s.columns),
        keys(reinterpret_cast<float*>(reinterpret_cast<double*>(at) + HashSpace::doubles(s.d, s.columns))),
        values(keys + (s.chunks(n) + 1) * s.key_floats()),
        queries(values + (s.chunks(n) + 1) * s.value_floats()),
        out(queries + simd::kQueries * s.d),
        factor(out + simd::kQueries * s.width()),
        max(factor + n),
        sum(max + n),
        buckets(reinterpret_cast<int32_t*>(sum + n)),
        order(buckets + n),
        ends(order + s.rounds * n),
        live(ends + 2 * s.columns) {}
  HashSpace hash;
  float *keys, *values, *queries, *out;  // packed chunks of a round; the last one is the last chunk of the round before
  float *factor, *max, *sum;             // by token: what makes a key of it; its rounds so far
  int32_t *buckets, *order, *ends, *live;
};

struct Plan {
  int64_t tokens;
  uint64_t worker_bytes;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  View<const float> x, v, rotations;
  View<float> o;
};

struct Body : simd::HeadWork<Body, Job> {
  using HeadWork::HeadWork;

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const Shape& shape = job.shape;
    const Sight sight(job.run, b, false);
    const int64_t n = sight.queries, e = shape.e;
    for (int64_t i = n; i < job.run.queries; ++i) std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(e) * 4);
    if (n == 0) return;

    const Space space(shape, job.plan.tokens, scratch());
    const auto offset = static_cast<float>(static_cast<double>(shape.d) * shape.eps);
    for (int64_t i = 0; i < n; ++i) {
      const float* x = job.x.row(b, h, i);
      space.factor[i] = 1 / std::sqrt(simd::dot(x, x, shape.d) + offset);
    }
    const int64_t rounds = arrange<Isa>(b, h, n, space);
    for (int64_t r = 0; r < rounds; ++r)
      attend<Isa>(b, h, n, space, space.order + r * n, space.order + (r + rounds - 1) % rounds * n, r == 0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t c = 0; c < e; ++c) job.o.row(b, h, i)[c] /= space.sum[i];
  }

  // Fills the order of every round; returns their number.  Rows of one chunk need no order: everyone sees everyone.
  template <class Isa>
  ATTNKIT_INLINE int64_t arrange(int64_t b, int64_t h, int64_t n, const Space& space) const {
    const Shape& shape = job.shape;
    if (shape.plain(n)) {
      for (int64_t i = 0; i < n; ++i) space.order[i] = static_cast<int32_t>(i);
      return 1;
    }
    const int64_t count = shape.buckets_of(n);
    for (int64_t r = 0; r < shape.rounds; ++r) {
      hash<Isa>(job.x, b, h, n, job.rotations, r, shape.d, count, space.hash, space.buckets);
      sort(space.buckets, n, count, space.ends, space.order + r * n);
    }
    return shape.rounds;
  }

  // One round over the tokens in their order; `before` is that of the round before.
  template <class Isa>
  ATTNKIT_INLINE void attend(int64_t b, int64_t h, int64_t n, const Space& space, const int32_t* order,
                             const int32_t* before, bool first) const {
    const Shape& shape = job.shape;
    const int64_t chunks = shape.chunks(n), across = shape.across(n);
    for (int64_t t = 0; t < chunks; ++t)
      pack(b, h, t, std::min(shape.chunk, n - t * shape.chunk), order + t * shape.chunk, space);
    pack(b, h, chunks, across, before + n - across, space);

    simd::Online online;
    online.out = space.out;
    online.out_row = shape.width();
    for (int64_t t = 0; t < chunks; ++t) {
      const int64_t stop = std::min(n, (t + 1) * shape.chunk);
      for (int64_t from = t * shape.chunk; from < stop; from += simd::kQueries) {
        const int64_t count = std::min(simd::kQueries, stop - from);
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(space.queries + i * shape.d, job.x.row(b, h, order[from + i]),
                      static_cast<size_t>(shape.d) * sizeof(float));
        online.begin(count, shape.width());
        see<Isa>(t, count, space, online, [&](int64_t i, int64_t first_key, int64_t keys, float* scores) {
          const int64_t self = from + i - t * shape.chunk - first_key;
          if (self >= 0 && self < keys) scores[self] = kSelf;
        });
        if (t > 0)
          see<Isa>(t - 1, count, space, online, [](int64_t, int64_t, int64_t, float*) {});
        else
          see<Isa>(chunks, count, space, online, [&](int64_t i, int64_t first_key, int64_t keys, float* scores) {
            const int32_t *same = before + n - across + first_key, token = order[from + i];
            for (int64_t j = 0; j < keys; ++j) scores[j] = same[j] == token ? kSelf : scores[j];
          });
        merge(online, b, h, order + from, count, space, first);
      }
    }
  }

  ATTNKIT_INLINE void pack(int64_t b, int64_t h, int64_t t, int64_t count, const int32_t* tokens,
                           const Space& space) const {
    const Shape& shape = job.shape;
    space.live[t] = static_cast<int32_t>(count);
    simd::pack_keys(
        count, shape.d, [&](int64_t j) { return job.x.row(b, h, tokens[j]); },
        [&](int64_t j) { return space.factor[tokens[j]]; }, space.keys + t * shape.key_floats(), shape.slots());
    simd::pack_values(
        count, shape.e, [&](int64_t j) { return job.v.row(b, h, tokens[j]); }, space.values + t * shape.value_floats());
  }

  // The queries see packed chunk t.  hide(i, j, n, scores): sets the score of query i with itself, if it is among the n
  // keys from j on.
  template <class Isa, class Hide>
  ATTNKIT_INLINE void see(int64_t t, int64_t queries, const Space& space, simd::Online& online, Hide hide) const {
    const Shape& shape = job.shape;
    int64_t seen[simd::kQueries];
    std::fill(seen, seen + queries, shape.chunk);
    for (int64_t j = 0; j < space.live[t]; j += simd::kKeys) {
      const int64_t n = std::min(simd::kKeys, space.live[t] - j);
      const simd::Memory memory{space.keys + t * shape.key_floats() + j,
                                shape.slots(),
                                space.values + t * shape.value_floats() + j * shape.width(),
                                shape.width(),
                                n,
                                shape.d,
                                shape.width()};
      simd::attend_block<Isa>(space.queries, shape.d, queries, memory, j, seen, 1.0f, online,
                              [&](int64_t i, float* scores) { hide(i, j, n, scores); });
    }
  }

  // Adds a round to what its tokens have from earlier rounds: a softmax of the rounds by their logsumexp is one sum
  // over them all.
  ATTNKIT_INLINE void merge(const simd::Online& online, int64_t b, int64_t h, const int32_t* tokens, int64_t count,
                            const Space& space, bool first) const {
    const int64_t e = job.shape.e;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = tokens[r];
      const float* added = online.out + r * online.out_row;
      float* o = job.o.row(b, h, i);
      if (first) {
        space.max[i] = online.max[r];
        space.sum[i] = online.sum[r];
        std::memcpy(o, added, static_cast<size_t>(e) * sizeof(float));
        continue;
      }
      const float max = online.max[r] > space.max[i] ? online.max[r] : space.max[i];
      const float old = std::exp(space.max[i] - max), fresh = std::exp(online.max[r] - max);
      space.max[i] = max;
      space.sum[i] = space.sum[i] * old + online.sum[r] * fresh;
      for (int64_t c = 0; c < e; ++c) o[c] = o[c] * old + added[c] * fresh;
    }
  }
};

}  // namespace attnkit::reformer
#endif
