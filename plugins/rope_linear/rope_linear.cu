// rope_linear on CUDA: the mathematics of rope_linear.cpp, angles in f64 until they are below a turn.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

template <class Real>
struct Map {
  static constexpr bool kSplits = true;
  static constexpr int kFactors = 1;
  static constexpr double kQuarters = 0.6366197723675814;  // of a turn in a radian
  int d, rotated;
  Real scale;
  double octaves;  // by which the speed of a turn falls from feature to feature

  template <bool kQuery>
  __device__ Real feature(Real x) const {
    return elu1(x * (kQuery ? scale : 1));
  }
  template <bool kQuery>
  __device__ Real back(Real x, Real given) const {
    return given * (kQuery ? scale : 1) * elu1_slope<Real>(x, feature<kQuery>(x));
  }
  // In quarter turns for each position, of the pair of features that begins there.
  __device__ double speed(int f) const { return f < rotated ? kQuarters * exp2(-octaves * f) : 0; }
  // Turns a pair of features by its angle at a position; lanes take pairs, so that a turn stays in one.
  __device__ void turn(int64_t position, int f, Real& even, Real& odd) const {
    if (f >= rotated) return;
    Real c, s;
    quarter_turns(static_cast<double>(position) * speed(f), c, s);
    const Real before = even;
    even = before * c - odd * s;
    odd = before * s + odd * c;
  }
  template <bool kQuery, class X>
  __device__ void features(const X& x, const Place& at, const Row<Real>& row) const {
    for (int f = 2 * lane(); f < d; f += 64) {
      const bool pair = f + 1 < d;
      Real even = feature<kQuery>(x[f]), odd = pair ? feature<kQuery>(x[f + 1]) : 0;
      row.z[f] = even;
      if (pair) row.z[f + 1] = odd;
      turn(at.position, f, even, odd);
      row.s[f] = even;
      if (pair) row.s[f + 1] = odd;
    }
  }
  template <bool kQuery, class X>
  __device__ void gradient(const X& x, const Place& at, const Row<Real>&, const Row<Real>& given) const {
    for (int f = 2 * lane(); f < d; f += 64) {
      const bool pair = f + 1 < d;
      Real even = given.s[f], odd = pair ? static_cast<Real>(given.s[f + 1]) : 0;
      turn(-at.position, f, even, odd);
      given.s[f] = back<kQuery>(x[f], even + given.z[f]);
      if (pair) given.s[f + 1] = back<kQuery>(x[f + 1], odd + given.z[f + 1]);
    }
  }
};

struct RopeLinear : rope_linear::Model {
  template <class Real>
  using Device = Map<Real>;
  using Model::Model;
  template <class Real>
  Map<Real> device(const attn_run&) const {
    return {static_cast<int>(d), static_cast<int>(rotated), static_cast<Real>(scale),
            rotated ? std::log2(base) / static_cast<double>(rotated) : 0};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<RopeLinear>)
