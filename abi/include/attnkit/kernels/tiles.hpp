// Softmax attention of a few queries at a time over a list of key blocks: what block-sparse mechanisms have in common.
//
// The keys and values of a head are packed into blocks first: keys in panels of 16, feature by feature, so that scores
// need no sum across lanes; values in rows of whole vectors.  Then a tile of
// queries scores its blocks, makes weights of the scores, and mixes the values.  A query's numbers are the same in
// every tile: each is one chain of additions per block, in the order of the list.
#ifndef ATTNKIT_KERNELS_TILES_HPP
#define ATTNKIT_KERNELS_TILES_HPP
#include <attnkit/kernels/exponential.hpp>

namespace attnkit::tiles {

using simd::at;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kMostRows = 8;  // queries in the largest tile

constexpr int64_t whole(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// How blocks of at most `block` keys of d features and e values lie in memory.
struct Shape {
  int64_t block, d, e;
  int64_t slots() const { return whole(block); }  // scores that one block takes
  int64_t key_floats() const { return slots() * d; }
  int64_t value_floats() const { return slots() * whole(e); }
  // What a tile needs beside the packed blocks, when its queries see at most `seen` blocks.
  int64_t tile_floats(int64_t seen) const { return kMostRows * (seen * slots() + whole(e)); }
};

// Rows become columns.
ATTNKIT_INLINE void transpose(Vec* x) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const Vec a = x[i], b = x[i + 8];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
    x[i + 8] = __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 4 * 8 + n % 4;
    const Vec a = x[i], b = x[i + 4];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27);
    x[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
#pragma GCC unroll 8
  for (int n = 0; n < 8; ++n) {
    const int i = n / 2 * 4 + n % 2;
    const Vec a = x[i], b = x[i + 2];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    x[i + 2] = __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    const Vec a = x[i], b = x[i + 1];
    x[i] = __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);
    x[i + 1] = __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
  }
}

// Packs n keys, row_of(j) being key j's and factor_of(j) what multiplies it.
template <class RowOf, class FactorOf>
ATTNKIT_INLINE void pack_keys(const Shape& shape, int64_t n, RowOf row_of, FactorOf factor_of, float* to) {
  for (int64_t panel = 0; panel < shape.slots(); panel += kLanes, to += kLanes * shape.d)
    for (int64_t f = 0; f < shape.d; f += kLanes) {
      Vec x[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        x[j] = Vec{};
        if (panel + j >= n) continue;
        simd::load(row_of(panel + j) + f, shape.d - f, x[j]);
        x[j] *= factor_of(panel + j);
      }
      transpose(x);
      for (int64_t i = 0; i < kLanes && f + i < shape.d; ++i) at(to + (f + i) * kLanes).v = x[i];
    }
}

template <class RowOf>
ATTNKIT_INLINE void pack_values(const Shape& shape, int64_t n, RowOf row_of, float* to) {
  const int64_t next = whole(shape.e);
  for (int64_t j = 0; j < n; ++j, to += next)
    for (int64_t c = 0; c < next; c += kLanes) {
      Vec x;
      simd::load(row_of(j) + c, shape.e - c, x);
      at(to + c).v = x;
    }
}

// Packed blocks one after another; block t holds live[t] keys.
struct Blocks {
  const Shape& shape;
  const float *keys, *values;
  const int32_t* live;
  const float* panel(int64_t t) const { return keys + t * shape.key_floats(); }
  const float* rows(int64_t t) const { return values + t * shape.value_floats(); }
};

// The queries of a tile and what became of them so far; rows past those that exist repeat the last one.
template <class Isa>
struct Tile {
  static constexpr int rows = Isa::rows;
  const float* q[rows];
  float max[rows], sum[rows];
  float *scores, *out;  // [rows][next] and [rows][e in whole vectors]
  int64_t next;
};

// Scores of 16 C keys.
template <class Isa, int C>
ATTNKIT_INLINE void score_panels(Tile<Isa>& tile, const Shape& shape, const float* panel, float scale, int64_t to) {
  constexpr int R = Tile<Isa>::rows;
  Vec sums[R][C] = {};
  for (int64_t f = 0; f < shape.d; ++f) {
    Vec k[C];
    for (int c = 0; c < C; ++c) k[c] = at(panel + (c * shape.d + f) * kLanes).v;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int c = 0; c < C; ++c) sums[r][c] += tile.q[r][f] * k[c];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) at(tile.scores + r * tile.next + to + c * kLanes).v = sums[r][c] * scale;
}

// scores = scale q . k over the listed blocks; -infinity in the slots that hold no key.
template <class Isa>
ATTNKIT_INLINE void score(Tile<Isa>& tile, const Blocks& blocks, const int32_t* list, int64_t n, float scale) {
  const Shape& shape = blocks.shape;
  const int64_t slots = shape.slots();
  for (int64_t t = 0; t < n; ++t) {
    const float* panel = blocks.panel(list[t]);
    int64_t p = 0;
    for (; p + Isa::columns * kLanes <= slots; p += Isa::columns * kLanes)
      score_panels<Isa, Isa::columns>(tile, shape, panel + p * shape.d, scale, t * slots + p);
    for (; p < slots; p += kLanes) score_panels<Isa, 1>(tile, shape, panel + p * shape.d, scale, t * slots + p);
    for (int r = 0; r < Tile<Isa>::rows; ++r)
      for (int64_t j = blocks.live[list[t]]; j < slots; ++j)
        tile.scores[r * tile.next + t * slots + j] = -__builtin_inff();
  }
}

// scores = exp(scores - max), with their max and sum per query.  A NaN is never the max, its own weight carries it.
template <class Isa>
ATTNKIT_INLINE void soften(Tile<Isa>& tile, int64_t n) {
  for (int r = 0; r < Tile<Isa>::rows; ++r) {
    float* scores = tile.scores + r * tile.next;
    Vec most = Vec{} - __builtin_inff(), sum{};
    for (int64_t j = 0; j < n; j += kLanes) {
      const Vec x = at(scores + j).v;
      most = x > most ? x : most;
    }
    float max = most[0];
    for (int64_t j = 1; j < kLanes; ++j) max = most[j] > max ? most[j] : max;
    for (int64_t j = 0; j < n; j += kLanes) {
      Vec x = at(scores + j).v - max;
      simd::exp(x);
      at(scores + j).v = x;
      sum += x;
    }
    tile.max[r] = max;
    tile.sum[r] = simd::sum(sum);
  }
}

// out += weights times the values of one block, 16 C columns of them.
template <class Isa, int C>
ATTNKIT_INLINE void mix_columns(Tile<Isa>& tile, const float* values, int64_t width, int64_t n, int64_t from,
                                int64_t c) {
  constexpr int R = Tile<Isa>::rows;
  Vec sums[R][C] = {};
  for (int64_t j = 0; j < n; ++j) {
    Vec v[C];
    for (int x = 0; x < C; ++x) v[x] = at(values + j * width + c + x * kLanes).v;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int x = 0; x < C; ++x) sums[r][x] += tile.scores[r * tile.next + from + j] * v[x];
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int x = 0; x < C; ++x) at(tile.out + r * width + c + x * kLanes).v += sums[r][x];
}

// out = weights times values over the listed blocks, not yet divided by the sum.
template <class Isa>
ATTNKIT_INLINE void mix(Tile<Isa>& tile, const Blocks& blocks, const int32_t* list, int64_t n) {
  const Shape& shape = blocks.shape;
  const int64_t width = whole(shape.e);
  std::memset(tile.out, 0, static_cast<size_t>(Tile<Isa>::rows * width) * sizeof(float));
  for (int64_t t = 0; t < n; ++t) {
    const float* values = blocks.rows(list[t]);
    const int64_t live = blocks.live[list[t]], from = t * shape.slots();
    int64_t c = 0;
    for (; c + Isa::columns * kLanes <= width; c += Isa::columns * kLanes)
      mix_columns<Isa, Isa::columns>(tile, values, width, live, from, c);
    for (; c < width; c += kLanes) mix_columns<Isa, 1>(tile, values, width, live, from, c);
  }
}

}  // namespace attnkit::tiles
#endif
