// Softmax attention of a block of queries over keys that stand transposed, and the matrix product behind it.
//
// Every element of a product is one chain of additions in the order of the inner index, whatever the tiling: results
// do not depend on how many rows a block has or on where an inner range was cut.
#ifndef ATTNKIT_KERNELS_ATTEND_HPP
#define ATTNKIT_KERNELS_ATTEND_HPP
#include <attnkit/kernels/simd.hpp>

namespace attnkit::simd {

// Vectors of 64 bytes of T, at any address of T.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  static constexpr int64_t count = 16;
  using Type = Vec;
  using Any = Loose;
};
template <>
struct Lanes<double> {
  static constexpr int64_t count = 8;
  using Type = double __attribute__((vector_size(64)));
  struct __attribute__((packed, may_alias)) Any {
    Type v;
  };
};

// Element (i, j) stands at data[i * row + j * step].
template <class T>
struct Factor {
  const T* data;
  int64_t row, step;
};

template <int R, int C, class T>
ATTNKIT_INLINE void product_tile(const Factor<T>& a, const T* b, int64_t b_row, int64_t inner, T* c, int64_t c_row) {
  using L = Lanes<T>;
  typename L::Type sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) sums[r][x] = reinterpret_cast<const typename L::Any*>(c + r * c_row + x * L::count)->v;
  for (int64_t j = 0; j < inner; ++j) {
    typename L::Type row[C];
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) row[x] = reinterpret_cast<const typename L::Any*>(b + j * b_row + x * L::count)->v;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int x = 0; x < C; ++x) sums[r][x] += a.data[r * a.row + j * a.step] * row[x];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int x = 0; x < C; ++x) reinterpret_cast<typename L::Any*>(c + r * c_row + x * L::count)->v = sums[r][x];
}

// Columns [0, columns) of R rows.
template <int R, int C, class T>
ATTNKIT_INLINE void product_rows(const Factor<T>& a, const T* b, int64_t b_row, int64_t inner, int64_t columns, T* c,
                                 int64_t c_row) {
  constexpr int64_t lanes = Lanes<T>::count;
  int64_t x = 0;
  for (; x + C * lanes <= columns; x += C * lanes) product_tile<R, C>(a, b + x, b_row, inner, c + x, c_row);
  if constexpr (C > 1)
    for (; x + lanes <= columns; x += lanes) product_tile<R, 1>(a, b + x, b_row, inner, c + x, c_row);
  for (int64_t r = 0; r < R && x < columns; ++r)
    for (int64_t j = 0; j < inner; ++j)
      for (int64_t y = x; y < columns; ++y) c[r * c_row + y] += a.data[r * a.row + j * a.step] * b[j * b_row + y];
}

// C += A B with A of rows x inner and B of inner x columns.
template <class Isa, class T>
ATTNKIT_INLINE void product(Factor<T> a, const T* b, int64_t b_row, int64_t rows, int64_t inner, int64_t columns, T* c,
                            int64_t c_row) {
  int64_t i = 0;
  for (; i + Isa::rows <= rows; i += Isa::rows, a.data += Isa::rows * a.row)
    product_rows<Isa::rows, Isa::columns>(a, b, b_row, inner, columns, c + i * c_row, c_row);
  for (; i < rows; ++i, a.data += a.row) product_rows<1, 4>(a, b, b_row, inner, columns, c + i * c_row, c_row);
}

// out[f][j] = in[j][f] for j < n and f < d.
ATTNKIT_INLINE void transpose(const float* in, int64_t in_row, int64_t n, int64_t d, float* out, int64_t out_row) {
  constexpr int64_t kSide = 16;
  for (int64_t j = 0; j < n; j += kSide)
    for (int64_t f = 0; f < d; ++f)
      for (int64_t x = j; x < n && x < j + kSide; ++x) out[f * out_row + x] = in[x * in_row + f];
}

constexpr int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// scores = exp(scale scores - max); those past n, up to a whole vector, become 0.  Returns their sum.
ATTNKIT_INLINE float soften(float* scores, float scale, int64_t n) {
  const float none = -__builtin_inff();
  Vec most = none - Vec{};
  for (int64_t j = 0; j < n; j += kLanes) {
    Vec x = at(scores + j).v * scale;
    for (int64_t r = n - j; r < kLanes; ++r) x[r] = none;
    at(scores + j).v = x;
    most = x > most ? x : most;
  }
  float max = none;
  for (int64_t r = 0; r < kLanes; ++r) max = most[r] > max ? most[r] : max;
  Vec sum{};
  for (int64_t j = 0; j < n; j += kLanes) {
    Vec x = at(scores + j).v - max;
    exp(x);
    at(scores + j).v = x;
    sum += x;
  }
  return simd::sum(sum);
}

// Keys, transposed to [D][row], and values of one head.  Rows of keys may be read up to a whole vector past n.
struct Memory {
  const float* keys;
  int64_t keys_row;
  const float* values;
  int64_t values_row;
  int64_t n, d, e;
};

constexpr int64_t kQueries = 16;  // most that attend takes at a time

// o_i = sum_j softmax_j(scale q_i . k_j) v_j for up to kQueries queries and at least one key.  weights: kQueries rows
// of whole_lanes(n) floats.
template <class Isa>
ATTNKIT_INLINE void attend(const float* q, int64_t q_row, int64_t queries, const Memory& m, float scale, float* weights,
                           float* o, int64_t o_row) {
  const int64_t lanes = whole_lanes(m.n);
  std::memset(weights, 0, static_cast<size_t>(queries * lanes) * sizeof(float));
  product<Isa, float>({q, q_row, 1}, m.keys, m.keys_row, queries, m.d, lanes, weights, lanes);
  float sums[kQueries];
  for (int64_t i = 0; i < queries; ++i) {
    sums[i] = soften(weights + i * lanes, scale, m.n);
    std::memset(o + i * o_row, 0, static_cast<size_t>(m.e) * sizeof(float));
  }
  product<Isa, float>({weights, lanes, 1}, m.values, m.values_row, queries, m.n, m.e, o, o_row);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t c = 0; c < m.e; ++c) o[i * o_row + c] /= sums[i];
}

}  // namespace attnkit::simd
#endif
