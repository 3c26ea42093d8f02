// Projects rows on omega, sixteen ahead of their use, so that omega is loaded once for several of them.
//
// Omega is held transposed, [D][m], features in whole vectors: each element of a projection is one chain of
// multiply-adds over D, whichever rows are projected with it.
#ifndef ATTNKIT_PERFORMER_PROJECTION_HPP
#define ATTNKIT_PERFORMER_PROJECTION_HPP
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/plugin.hpp>

namespace attnkit::performer {

using simd::at;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kAhead = 16;

ATTNKIT_INLINE int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows and columns change places: four perfect shuffles of the sixteen rows.
ATTNKIT_INLINE void transpose(Vec* rows) {
  for (int step = 0; step < 4; ++step) {
    Vec next[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Vec a = rows[i], b = rows[i + 8];
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    }
    std::memcpy(rows, next, sizeof next);
  }
}

// t[f][r] = factor * omega[r][f]; columns past m are 0.
ATTNKIT_INLINE void transpose(const View<const float>& omega, float factor, int64_t m, int64_t d, float* t) {
  const int64_t width = padded(m);
  for (int64_t r = 0; r < width; r += kLanes)
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec tile[kLanes];
      for (int64_t i = 0; i < kLanes; ++i)
        if (r + i < m)
          simd::load(omega.row(r + i) + f, d - f, tile[i]);
        else
          tile[i] = Vec{};
      transpose(tile);
      for (int64_t i = 0; i < kLanes && f + i < d; ++i) at(t + (f + i) * width + r).v = tile[i] * factor;
    }
}

// R rows, `next` floats apart, on C vectors of t.
template <int R, int C>
ATTNKIT_INLINE void project(const float* t, int64_t width, int64_t d, const float* x, int64_t next, float* out) {
  Vec sums[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) sums[r][c] = Vec{};
  for (int64_t f = 0; f < d; ++f) {
    Vec w[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) w[c] = at(t + f * width + c * kLanes).v;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) sums[r][c] += x[r * next + f] * w[c];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) at(out + r * width + c * kLanes).v = sums[r][c];
}

template <int R, int C>
ATTNKIT_INLINE void project_all(const float* t, int64_t width, int64_t d, const float* x, int64_t next, float* out) {
  int64_t c = 0;
  for (; c + C * kLanes <= width; c += C * kLanes) project<R, C>(t + c, width, d, x, next, out + c);
  for (; c < width; c += kLanes) project<R, 1>(t + c, width, d, x, next, out + c);
}

// Rows of one head, asked for in order.
template <class Isa>
class Projected {
 public:
  // rows: room for kAhead rows of padded(m) floats.  limit: rows from there on are not touched.
  ATTNKIT_INLINE Projected(const float* t, int64_t m, int64_t d, const float* x, int64_t next, int64_t limit,
                           float* rows)
      : t_(t), m_(m), d_(d), x_(x), next_(next), limit_(limit), rows_(rows) {}

  // omega x of row i, with -infinity in the lanes past m.
  ATTNKIT_INLINE const float* operator()(int64_t i) {
    if (i >= end_) load(i);
    return rows_ + (i - begin_) * padded(m_);
  }
  // |x|^2 of row i.
  ATTNKIT_INLINE float square(int64_t i) const { return simd::dot(x_ + i * next_, x_ + i * next_, d_); }

 private:
  ATTNKIT_INLINE void load(int64_t i) {
    const int64_t width = padded(m_), n = limit_ - i < kAhead ? limit_ - i : kAhead;
    begin_ = i;
    end_ = i + n;
    int64_t r = 0;
    for (; r + Isa::rows <= n; r += Isa::rows)
      project_all<Isa::rows, Isa::columns>(t_, width, d_, x_ + (i + r) * next_, next_, rows_ + r * width);
    for (; r < n; ++r) project_all<1, 4 * Isa::columns>(t_, width, d_, x_ + (i + r) * next_, next_, rows_ + r * width);
    for (r = 0; r < n; ++r)
      for (int64_t f = m_; f < width; ++f) rows_[r * width + f] = -__builtin_inff();
  }
  const float* t_;
  int64_t m_, d_;
  const float* x_;
  int64_t next_, limit_;
  float* rows_;
  int64_t begin_ = 0, end_ = 0;
};

// The largest lane that is not NaN.
ATTNKIT_INLINE float largest(const Vec& v) {
  float lanes[kLanes];
  at(lanes).v = v;
  float max = -__builtin_inff();
  for (const float x : lanes) max = x > max ? x : max;
  return max;
}

}  // namespace attnkit::performer
#endif
