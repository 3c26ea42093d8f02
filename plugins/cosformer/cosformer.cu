// cosformer on CUDA: the mathematics of cosformer.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

struct Map {
  static constexpr bool kSplits = false;
  int d;
  bool self, joint, saturate;
  const int32_t *q_len, *k_len;
  const double *q_total, *k_total;
  int64_t queries, keys;

  // N and M of batch row b.
  __device__ double n(int64_t b) const {
    if (q_total) return q_total[b];
    return static_cast<double>(q_len ? q_len[b] : queries);
  }
  __device__ double m(int64_t b) const {
    if (self) return n(b);
    if (k_total) return k_total[b];
    return static_cast<double>(k_len ? k_len[b] : keys);
  }
  template <class X>
  __device__ void map(const X& x, int64_t position, double own, double other, const Row& row) const {
    double i = static_cast<double>(position + 1);
    if (saturate && i > own) i = own;
    float c, s;
    const double all = joint && other > own ? other : own;
    quarter_turns(__fdividef(static_cast<float>(i), static_cast<float>(all)), c, s);
    for (int f = lane(); f < d; f += 32) {
      const float y = relu(x[f]);
      row.s[f] = y * c;
      row.s[d + f] = y * s;
    }
  }
  template <class X>
  __device__ void query(const X& x, const Place& at, const Row& row) const {
    map(x, at.position, n(at.b), joint ? m(at.b) : 0, row);
  }
  template <class X>
  __device__ void key(const X& x, const Place& at, const Row& row) const {
    map(x, at.position, m(at.b), joint ? n(at.b) : 0, row);
  }
};

struct Cosformer : cosformer::Model {
  using Device = Map;
  using Model::Model;
  Map device(const attn_run& r) const {
    return {static_cast<int>(d), self, joint, saturate, r.q_len, r.k_len, r.q_total, r.k_total, r.queries, r.keys};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Cosformer>)
