// leap on CUDA: the mathematics of leap.cpp; a warp computes a row's module and turns the row.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

// A module's tensors, whose steps from head to head are 0 where heads share them.
struct Module {
  int r;
  Rows<const float> w1, b1, w2, b2;

  Module(const leap::ModulePorts& m, const attn_run& run) : r(static_cast<int>(m.r)) {
    Rows<const float>* all[] = {&w1, &b1, &w2, &b2};
    for (size_t i = 0; i < 4; ++i) *all[i] = attnkit::View<const float>(run, m.ports[i]);
  }

  // The proportion of the row that the warp has written; each lane takes inner units.
  __device__ float operator()(const attnkit::cuda::Shared<float>& row, int d, int64_t h) const {
    float t = 0;
    for (int j = lane(); j < r; j += 32) {
      float y = b1.at(0, 0, h)[j];
      for (int f = 0; f < d; ++f) y = fmaf(w1.at(0, h, j)[f], row[f], y);
      t += r == 1 ? y : relu(y) * w2.at(0, h, 0)[j];
    }
    t = sum_of_warp(t);
    if (r != 1) t += b2.at(0, 0, h)[0];
    return __fdividef(1, 1 + expf(-t));
  }
};

struct Map {
  static constexpr bool kSplits = false;
  int d;
  float scale;
  Module q, k;

  template <class X>
  __device__ void map(const X& x, float by, const Module& module, int64_t h, const Row& row) const {
    for (int f = lane(); f < d; f += 32) row.s[f] = relu(x[f] * by);
    __syncwarp();
    float c, s;
    quarter_turns(module(row.s, d, h), c, s);
    __syncwarp();  // all have read the row
    for (int f = lane(); f < d; f += 32) {
      row.s[d + f] = row.s[f] * s;
      row.s[f] *= c;
    }
  }
  template <class X>
  __device__ void query(const X& x, const Place& at, const Row& row) const {
    map(x, scale, q, at.h, row);
  }
  template <class X>
  __device__ void key(const X& x, const Place& at, const Row& row) const {
    map(x, 1, k, at.h, row);
  }
};

struct Leap : leap::Model {
  using Device = Map;
  using Model::Model;
  Map device(const attn_run& r) const {
    return {static_cast<int>(d), static_cast<float>(scale), Module(q, r), Module(k, r)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Leap>)
