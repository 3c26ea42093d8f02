// rope_linear on CUDA: the mathematics of rope_linear.cpp, angles in f64 until they are below a turn.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Map {
  static constexpr bool kSplits = true;
  static constexpr double kQuarters = 0.6366197723675814;  // of a turn in a radian
  int d, rotated;
  float scale;
  double octaves;  // by which the speed of a turn falls from feature to feature

  // Lanes take pairs, so that a turn stays in one.
  template <class X>
  __device__ void map(const X& x, float by, int64_t position, const Row& row) const {
    for (int f = 2 * lane(); f < d; f += 64) {
      const float even = elu1(x[f] * by);
      const float odd = f + 1 < d ? elu1(x[f + 1] * by) : 0.0f;
      float c = 1, s = 0;
      if (f < rotated) quarter_turns(static_cast<double>(position) * kQuarters * exp2(-octaves * f), c, s);
      row.s[f] = even * c - odd * s;
      row.z[f] = even;
      if (f + 1 == d) continue;
      row.s[f + 1] = even * s + odd * c;
      row.z[f + 1] = odd;
    }
  }
  template <class X>
  __device__ void query(const X& x, const Place& at, const Row& row) const {
    map(x, scale, at.position, row);
  }
  template <class X>
  __device__ void key(const X& x, const Place& at, const Row& row) const {
    map(x, 1, at.position, row);
  }
};

struct RopeLinear : rope_linear::Model {
  using Device = Map;
  using Model::Model;
  Map device(const attn_run&) const {
    return {static_cast<int>(d), static_cast<int>(rotated), static_cast<float>(scale),
            rotated ? std::log2(base) / static_cast<double>(rotated) : 0};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<RopeLinear>)
