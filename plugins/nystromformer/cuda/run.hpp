// nystromformer's run on CUDA: the kernels beside those of softmax attention, which weigh the keys for the landmarks
// and the landmarks for the queries.
//
// A row that needs no landmarks has its own keys and values in their place, so that one launch takes the queries of all
// rows.  Landmarks, A and Z are in f64, as on the CPU.  Matrices of landmarks lie in scratch, however many there are:
// a block makes 32 x 32 numbers of a product of two, and the steps towards the inverse are launches.
#pragma once
#include <attnkit/kernels/cuda/call.hpp>
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

namespace nystromformer::cuda {

using namespace attnkit::cuda;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr double kLeast = std::numeric_limits<double>::lowest();
constexpr int kTile = 32;                         // rows, columns and depth of a block's product
constexpr int kRow = kTile + 4;                   // 4: neighbours lie in different banks
constexpr int kMultipliers = kTile * kTile / 16;  // threads of a block that multiplies

struct Sizes {
  int heads, d, e, landmarks;
  int64_t length;
  // Positions that share a landmark; 0: the row needs none.
  __device__ int64_t segment(const Sight& sight) const {
    const int64_t n = sight.queries > sight.fresh ? sight.queries : sight.fresh;
    const int64_t segment = length > 0 ? length / landmarks : (n + landmarks - 1) / landmarks;
    return segment > 1 && sight.queries > 0 && sight.fresh > 0 ? segment : 0;
  }
};

template <class T>
struct Means {
  using Real = RealOf<T>;
  Sizes sizes;
  Rows<const T> q, k, v;
  Lengths lengths;
  int rows;                       // of a head in what is written
  double *wide_q, *wide_k;        // landmarks [B][H][rows][D]; nullptr where no row can need them
  Real *narrow_q, *narrow_k, *u;  // the same; keys and values of rows that need none
  int32_t *own, *seen;            // [B]: landmarks of a row; what its queries attend to
};

// A block for a landmark of each of q and k, or for a key and a value that stand in their place.
template <class T>
static __global__ void __launch_bounds__(kThreads / 2) means_kernel(const Means<T> w) {
  using Real = RealOf<T>;
  const Sizes& s = w.sizes;
  const int tiles = w.rows > 0 ? w.rows : 1, pair = static_cast<int>(blockIdx.x) / tiles,
            t = static_cast<int>(blockIdx.x) % tiles, h = pair % s.heads;
  const int64_t b = pair / s.heads, at = static_cast<int64_t>(pair) * w.rows + t;
  const Sight sight(w.lengths, b);
  const int64_t segment = s.segment(sight);
  if (h == 0 && t == 0 && threadIdx.x == 0) {
    w.own[b] = segment > 0 ? s.landmarks : 0;
    w.seen[b] = segment > 0 ? s.landmarks : sight.queries > 0 ? static_cast<int32_t>(sight.fresh) : 0;
  }
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  if (segment == 0) {
    if (sight.queries == 0 || t >= sight.fresh) return;
    for (int c = first; c < s.d; c += step) w.narrow_k[at * s.d + c] = widened(w.k.at(b, h, t)[c]);
    for (int c = first; c < s.e; c += step) w.u[at * s.e + c] = widened(w.v.at(b, h, t)[c]);
    return;
  }
  for (int unit = first; unit < 2 * s.d; unit += step) {
    const bool of_keys = unit >= s.d;
    const int c = of_keys ? unit - s.d : unit;
    const Rows<const T>& rows = of_keys ? w.k : w.q;
    const int64_t end = (t + 1) * segment, n = of_keys ? sight.fresh : sight.queries;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = t * segment; i < (end < n ? end : n); ++i) sum += widened(rows.at(b, h, i)[c]);
    const double mean = sum / static_cast<double>(segment);
    (of_keys ? w.wide_k : w.wide_q)[at * s.d + c] = mean;
    (of_keys ? w.narrow_k : w.narrow_q)[at * s.d + c] = static_cast<Real>(mean);
  }
}

// A matrix of every head.
template <class T>
struct Matrix {
  const T* data;
  int64_t head, row, column;  // from one to the next
  Matrix(const T* all, int rows, int width)
      : data(all), head(static_cast<int64_t>(rows) * width), row(width), column(1) {}
  Matrix transposed() const {
    Matrix turned = *this;
    turned.row = column;
    turned.column = row;
    return turned;
  }
};

// out = diagonal I + factor left right + times plus, where heads have landmarks; `plus` may be out.
template <class Left, class Right, class Out>
struct Product {
  Matrix<Left> left;
  Matrix<Right> right;
  int rows, depth, columns;
  Out* out;
  double diagonal, factor, times;
  const Out* plus;
  const int32_t* own;
  int heads;
};

// Numbers from (row, column) on, zeros behind the last; neighbours in memory by neighbouring threads.
template <class T>
__device__ void load(const Matrix<T>& from, int64_t pair, int row, int column, int rows, int columns,
                     const Shared<double>& to) {
  const T* const data = from.data + pair * from.head + row * from.row + column * from.column;
  const bool by_rows = from.column == 1;
  for (int x = static_cast<int>(threadIdx.x); x < kTile * kTile; x += kMultipliers) {
    const int fast = x % kTile, slow = x / kTile, i = by_rows ? slow : fast, j = by_rows ? fast : slow;
    to[i * kRow + j] = i < rows && j < columns ? double{data[i * from.row + j * from.column]} : 0;
  }
}

template <class Left, class Right, class Out>
static __global__ void __launch_bounds__(kMultipliers) product_kernel(const Product<Left, Right, Out> w) {
  ATTNKIT_SHARED(double, left, kTile* kRow);
  ATTNKIT_SHARED(double, right, kTile* kRow);
  const int across = (w.columns + kTile - 1) / kTile, tiles = (w.rows + kTile - 1) / kTile * across;
  const int pair = static_cast<int>(blockIdx.x) / tiles, tile = static_cast<int>(blockIdx.x) % tiles;
  if (w.own[pair / w.heads] == 0) return;
  const int row = tile / across * kTile, column = tile % across * kTile;
  const int i = static_cast<int>(threadIdx.x) / (kTile / 4) * 4, j = static_cast<int>(threadIdx.x) % (kTile / 4) * 4;
  Four<double> acc[4] = {};
  for (int from = 0; from < w.depth; from += kTile) {
    const int depth = w.depth - from < kTile ? w.depth - from : kTile;
    load(w.left, pair, row, from, w.rows - row, depth, left);
    load(w.right, pair, from, column, depth, w.columns - column, right);
    __syncthreads();
    multiply<double>(left + i * kRow, kRow, right + j, kRow, round4(depth), acc);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const double sums[] = {acc[r].x, acc[r].y, acc[r].z, acc[r].w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (row + i + r >= w.rows || column + j + c >= w.columns) continue;
      const int64_t at = (static_cast<int64_t>(pair) * w.rows + row + i + r) * w.columns + column + j + c;
      double x = w.factor * sums[c];
      if (row + i + r == column + j + c) x += w.diagonal;
      if (w.plus) x = fma(w.times, static_cast<double>(w.plus[at]), x);
      w.out[at] = static_cast<Out>(x);
    }
  }
}

// A and what the steps begin with, of every head.
struct Squares {
  double *a, *z, *sums;  // A, Z_0; of the columns of A [l]
  const int32_t* own;
  int heads, landmarks;
  double scale;
  // The largest sum, and the first column that has it.
  __device__ double largest(int64_t pair, int& column) const {
    double most = 0;
    for (int j = 0; j < landmarks; ++j)
      if (const double sum = sums[pair * landmarks + j]; sum > most) {
        most = sum;
        column = j;
      }
    return most;
  }
};

// Scores become A, by the softmax of each row; then Z_0.
static __global__ void __launch_bounds__(kThreads) begin_kernel(const Squares w) {
  const int64_t pair = blockIdx.x, l = w.landmarks;
  if (w.own[pair / w.heads] == 0) return;
  double *const a = w.a + pair * l * l, *const z = w.z + pair * l * l;
  for (int64_t i = warp(); i < l; i += kWarps) {
    double* const row = a + i * l;
    double most = kLeast, sum = 0;
    for (int64_t j = lane(); j < l; j += 32) most = larger(most, row[j] * w.scale);
    for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
    for (int64_t j = lane(); j < l; j += 32) {
      row[j] = exponential(row[j] * w.scale - most);
      sum += row[j];
    }
    sum = sum_of_warp(sum);
    for (int64_t j = lane(); j < l; j += 32) row[j] /= sum;
  }
  __syncthreads();
  for (int64_t j = threadIdx.x; j < l; j += kThreads) {
    double sum = 0;
    for (int64_t i = 0; i < l; ++i) sum += a[i * l + j];
    w.sums[pair * l + j] = sum;
  }
  __syncthreads();
  int column = 0;
  const double most = w.largest(pair, column);
  for (int64_t x = threadIdx.x; x < l * l; x += kThreads) z[x] = a[x % l * l + x / l] / most;
}

// Adds to every row of `out` the rows of `in` around it, weighed by the filter, or by the filter turned round.
template <class T>
struct Convolution {
  using Real = RealOf<T>;
  Rows<const T> in;
  Rows<T> out;
  Rows<const Real> filter;
  Lengths lengths;
  int heads, width, kernel, tiles;
  bool turned;  // from queries to keys, which is its gradient
};
constexpr int kConvolved = 64;  // rows of a block

template <class T>
static __global__ void __launch_bounds__(kThreads) convolve_kernel(const Convolution<T> w) {
  using Real = RealOf<T>;
  const int pair = static_cast<int>(blockIdx.x) / w.tiles, tile = static_cast<int>(blockIdx.x) % w.tiles,
            h = pair % w.heads;
  const int64_t b = pair / w.heads, from = static_cast<int64_t>(tile) * kConvolved;
  const Sight sight(w.lengths, b);
  const int64_t rows = w.turned ? sight.fresh : sight.queries, ins = w.turned ? sight.queries : sight.fresh;
  const Real* const filter = w.filter.at(0, 0, h);
  for (int unit = static_cast<int>(threadIdx.x); unit < kConvolved * w.width; unit += kThreads) {
    const int64_t i = from + unit / w.width, first = i - w.kernel / 2;
    const int c = unit % w.width;
    if (i >= rows) break;
    T* const to = w.out.at(b, h, i) + c;
    Real sum = widened(*to);
    for (int u = first < 0 ? static_cast<int>(-first) : 0; u < w.kernel && first + u < ins; ++u)
      sum = fused(filter[w.turned ? w.kernel - 1 - u : u], widened(w.in.at(b, h, first + u)[c]), sum);
    *to = narrowed<T>(sum);
  }
}

}  // namespace nystromformer::cuda
