// Features that are exponentials: S_f = sum_j e^(b_jf - c_f) v_j, with a scale c_f that follows the keys, so that none
// is beyond the numbers, or one that the map names.
//
// A key whose logit b exceeds c by too much ends the tile before it; then c rises and S and z shrink, and the queries
// that see it come after.  So a key changes no bit of those that do not see it.  The state keeps c behind z; where z is
// 0 no key came yet.  A map that follows has, in place of features,
//   enum { kFollows };
//   bool follows;                                does c follow the keys?  Otherwise it is the map's:
//   bool cancels;                                do factors of a query's features cancel?
//   bool global;                                 c is what largest finds in all keys, otherwise
//   Real fixed;                                  this
//   int table_floats() const;                    of the table in shared memory that load_table fills, for chunks
//   template <class Table> void load_table(const Table&) const;            by all threads of a block
//   template <bool kQuery, class X, class At> void logits(const X&, const Row<Real>&, const At&) const;
//                                                At: numbers of the table, in_memory() or in_table(...)
//   template <class C> void key(const Row<Real>&, const C& c) const;   features in place of a key's logits
//   template <class X, class C> void query(const X&, const Row<Real>&, const C& c) const;
//                                                the same of a query, whose largest is e^0
//   Real largest(const X&) const;                of a lane's numbers
// and, where each feature has a denominator of its own, o = sum_f a_f S_f / z_f over the sum of a_f,
//   enum { kEach };                              then c follows the keys, and in the state it is the largest logit
// It trains if it has
//   template <class X, class At, class Visit> void gradient(const X&, const Row<Real>& given, const At&, Visit) const;
//                                                from that of its logits a lane's of x, as visit(c, number)
//   template <bool kQuery> Real floor() const;   unless kEach, what a feature has beside its exponential
// Feature f of a row is lane f % 32's.
#ifndef ATTNKIT_KERNELS_CUDA_LINEAR_FOLLOW_HPP
#define ATTNKIT_KERNELS_CUDA_LINEAR_FOLLOW_HPP
#include <attnkit/kernels/cuda/tile.hpp>
#include <limits>

namespace attnkit::cuda::linear {

template <class Map>
constexpr bool kFollows = requires {
  Map::kFollows;
};

template <class Map>
constexpr bool kEach = requires {
  Map::kEach;
};

template <class Real>
constexpr Real kLeast = std::numeric_limits<Real>::lowest();
// The bound of a logit above c: in 16 bits e^10 is near f16's largest number, and features of queries, whose largest
// would be 1, are lifted as far, for f16 has few bits below 2^-14.
template <class T>
constexpr float kMargin = sizeof(T) == 2 ? 10 : 16;
constexpr float kLift = 8192;

// Does a row of logits, a warp's, exceed its scale?
template <class T, class Real, class C>
__device__ bool outgrows(const Shared<Real>& logits, int features, const C& c) {
  bool over = false;
  for (int f = lane(); f < features; f += 32) over = over || logits[f] - c(f) > static_cast<Real>(kMargin<T>);
  return __any_sync(kAll, over) != 0;
}

// Of the first n rows those before the first that is over.
__device__ inline int rows_before(const Shared<int>& over, int n) {
  const unsigned mask = __ballot_sync(kAll, lane() < n && over[lane()] != 0);
  int rows = 0;
  while (rows < n && !(mask >> rows & 1)) ++rows;
  return rows;
}

// c rises to what a key's logits ask for; returns by how much the feature's sums shrink.
template <class T, class Real>
__device__ Real risen(Real logit, Real& c) {
  if (!(logit - c > static_cast<Real>(kMargin<T>))) return 1;
  const Real before = c;
  c = logit;
  return exponential(before - c);
}

// The scale that a map names, of a whole block; by_warp: room for a number of each.
template <class Map, class Real, class RowAt>
__device__ Real named_scale(const Map& map, int64_t keys, int warps, const RowAt& row_at, const Shared<Real>& by_warp) {
  if (!map.global) return map.fixed;
  Real most = kLeast<Real>;
  for (int64_t j = warp(); j < keys; j += warps) most = larger(most, map.largest(row_at(j)));
  for (int bits = 16; bits > 0; bits /= 2) most = larger(most, __shfl_xor_sync(kAll, most, bits));
  if (lane() == 0) by_warp[warp()] = most;
  __syncthreads();
  for (int w = 0; w < warps; ++w) most = larger(most, static_cast<Real>(by_warp[w]));
  __syncthreads();
  return most;
}

}  // namespace attnkit::cuda::linear
#endif
