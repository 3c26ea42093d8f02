// Softmax attention of a block of queries over any number of keys, a block of keys at a time.
//
// Each query keeps the max, the sum and the mix of values of the keys it has seen; a larger max scales the other two
// down.  A query's numbers are one chain of additions over its keys, cut at multiples of kKeys: they are the same in
// every block of queries, and keys that a query does not see are never touched on its behalf.
#ifndef ATTNKIT_KERNELS_ATTEND_HPP
#define ATTNKIT_KERNELS_ATTEND_HPP
#include <algorithm>
#include <attnkit/kernels/pack.hpp>
#include <attnkit/kernels/product.hpp>

namespace attnkit::simd {

constexpr int64_t kQueries = 512, kKeys = 128;  // max queries at a time, and keys in a block
template <class Isa>
constexpr int64_t kTogether = 2 * ProductTile<Isa>::rows;  // queries whose scores are made together

// Max of the first n scores, which end in a whole vector, by lanes; a NaN is never it, its own weight carries it.
template <class Isa>
ATTNKIT_INLINE Vec<Isa> largest_lanes(const float* scores, int64_t n) {
  Vec<Isa> most = Vec<Isa>{} - __builtin_inff();
  for (int64_t j = 0; j < n; j += kLanes) {
    const Vec<Isa> x = at<Isa>(scores + j);
    most = select(x > most, x, most);
  }
  return most;
}
template <class Isa>
ATTNKIT_INLINE float largest_of(const float* scores, int64_t n) {
  return largest(largest_lanes<Isa>(scores, n));
}

// scores = exp(scale scores - max), whole vectors of them; returns their sum by lanes.
template <class Isa>
ATTNKIT_INLINE Vec<Isa> weigh_lanes(float* scores, float scale, float max, int64_t n) {
  Vec<Isa> sum{};
  for (int64_t j = 0; j < n; j += kLanes) {
    Vec<Isa> x = at<Isa>(scores + j) * scale - max;
    exp_to_88(x);
    store(x, scores + j);
    sum += x;
  }
  return sum;
}
template <class Isa>
ATTNKIT_INLINE float weigh(float* scores, float scale, float max, int64_t n) {
  return simd::sum(weigh_lanes<Isa>(scores, scale, max, n));
}

// Keys, transposed to [D][row], and values of one head.  Rows of keys may be read up to a whole vector past n.
struct Memory {
  const float* keys;
  int64_t keys_row;
  const float* values;
  int64_t values_row;
  int64_t n, d, e;
};

// The sums of up to kQueries queries over the keys so far; out is not yet divided by the sum.
struct Online {
  float* out;
  int64_t out_row;
  float max[kQueries + kLanes], sum[kQueries + kLanes];  // of 16 queries at a time

  ATTNKIT_INLINE void begin(int64_t queries, int64_t e) {
    std::fill(max, max + queries + kLanes, -3.402823466e38f);  // less than infinity: scores of -infinity weigh 0
    std::fill(sum, sum + queries + kLanes, 0.0f);
    for (int64_t i = 0; i < queries; ++i) std::memset(out + i * out_row, 0, static_cast<size_t>(e) * sizeof(float));
  }
  // Scores of `rows` queries from query i on, at most 16 and kKeys apart, become weights: the first live[r] of each,
  // then 0 up to a whole vector.
  template <class Isa>
  ATTNKIT_INLINE void weigh_scores(int64_t i, int64_t rows, float* scores, const int64_t* live, float scale,
                                   int64_t e) {
    Vec<Isa> each[kLanes];
    for (int64_t r = 0; r < kLanes; ++r) each[r] = Vec<Isa>{} - __builtin_inff();
    for (int64_t r = 0; r < rows; ++r) {
      float* x = scores + r * kKeys;
      for (int64_t j = live[r]; j % kLanes != 0; ++j) x[j] = -__builtin_inff();
      each[r] = largest_lanes<Isa>(x, live[r]);
    }
    const auto larger = [](const auto& a, const auto& b) __attribute__((always_inline)) { return select(b > a, b, a); };
    const Vec<Isa> fresh = fold_each(each, larger) * scale, old = at<Isa>(max + i);
    const auto grows = fresh > old;
    store(select(grows, fresh, old), max + i);
    Vec<Isa> factors = select(grows, old - fresh, Vec<Isa>{});
    exp(factors);
    alignas(64) float down[kLanes];
    store(factors, down);
    for (int64_t r = 0; r < kLanes; ++r) each[r] = Vec<Isa>{};
    for (int64_t r = 0; r < rows; ++r) {
      float* o = out + (i + r) * out_row;
      int64_t c = down[r] == 1 ? e : 0;
      for (; c + kLanes <= e; c += kLanes) store(at<Isa>(o + c) * down[r], o + c);
      for (; c < e; ++c) o[c] *= down[r];
      sum[i + r] *= down[r];
      each[r] = weigh_lanes<Isa>(scores + r * kKeys, scale, max[i + r], live[r]);
    }
    const auto plus = [](const auto& a, const auto& b) __attribute__((always_inline)) { return a + b; };
    store(at<Isa>(sum + i) + fold_each(each, plus), sum + i);
  }
};

// Adds a block of at most kKeys keys, those from `from`, of which query i sees those before seen[i].  edit(i, scores)
// may change the scores of query i before they are scaled.
template <class Isa, class Edit>
ATTNKIT_INLINE void attend_block(const float* q, int64_t q_row, int64_t queries, const Memory& m, int64_t from,
                                 const int64_t* seen, float scale, Online& online, Edit edit) {
  constexpr int64_t group = kTogether<Isa>;
  alignas(64) float scores[group * kKeys];
  for (int64_t i = 0; i < queries; i += group) {
    const int64_t rows = std::min(group, queries - i);
    int64_t live[group], all = m.n, any = 0;
    for (int64_t r = 0; r < rows; ++r) {
      live[r] = std::clamp<int64_t>(seen[i + r] - from, 0, m.n);
      all = std::min(all, live[r]);
      any = std::max(any, live[r]);
    }
    if (any == 0) continue;
    const int64_t lanes = whole_lanes(any);
    set_product<Isa, float>({q + i * q_row, q_row}, {m.keys, m.d, lanes, m.keys_row}, {scores, rows, lanes, kKeys});
    for (int64_t r = 0; r < rows; ++r) edit(i + r, scores + r * kKeys);
    online.weigh_scores<Isa>(i, rows, scores, live, scale, m.e);
    float* out = online.out + i * online.out_row;
    add_product<Isa, float>({scores, kKeys}, {m.values, all, m.e, m.values_row}, {out, rows, m.e, online.out_row});
    for (int64_t r = 0; r < rows; ++r)
      if (live[r] > all)
        add_product<Isa, float>({scores + r * kKeys + all, kKeys},
                                {m.values + all * m.values_row, live[r] - all, m.e, m.values_row},
                                {out + r * online.out_row, 1, m.e, online.out_row});
  }
}

template <class Isa>
ATTNKIT_INLINE void attend_block(const float* q, int64_t q_row, int64_t queries, const Memory& m, int64_t from,
                                 const int64_t* seen, float scale, Online& online) {
  attend_block<Isa>(q, q_row, queries, m, from, seen, scale, online, [](int64_t, float*) {});
}

// o_i = sum_j softmax_j(scale q_i . k_j) v_j for up to kQueries queries and at least one key.
template <class Isa>
ATTNKIT_INLINE void attend(const float* q, int64_t q_row, int64_t queries, const Memory& m, float scale, float* o,
                           int64_t o_row) {
  int64_t seen[kQueries];
  std::fill(seen, seen + queries, m.n);
  Online online;
  online.out = o;
  online.out_row = o_row;
  online.begin(queries, m.e);
  for (int64_t from = 0; from < m.n; from += kKeys) {
    const Memory block{
        m.keys + from, m.keys_row, m.values + from * m.values_row, m.values_row, std::min(kKeys, m.n - from), m.d, m.e};
    attend_block<Isa>(q, q_row, queries, block, from, seen, scale, online);
  }
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t c = 0; c < m.e; ++c) o[i * o_row + c] /= online.sum[i];
}

}  // namespace attnkit::simd
#endif
