// leap on CUDA: the mathematics of leap.cpp; a warp computes a row's module and turns the row.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;

// A module's tensors, whose steps from head to head are 0 where heads share them.
template <class Real>
struct Module {
  int d, r;
  Rows<const Real> w1, b1, w2, b2;

  Module(const leap::ModulePorts& m, const attn_run& run) : d(static_cast<int>(m.d)), r(static_cast<int>(m.r)) {
    Rows<const Real>* all[] = {&w1, &b1, &w2, &b2};
    for (size_t i = 0; i < 4; ++i) *all[i] = attnkit::View<const Real>(run, m.ports[i]);
  }
  // Inner unit j before ReLU, by the whole warp: lanes side by side read a row of W1 side by side.
  __device__ Real inner(const Shared<Real>& row, int64_t h, int j) const {
    Real y = 0;
    for (int f = lane(); f < d; f += 32) y = fused(w1.at(0, h, j)[f], row[f], y);
    return sum_of_warp(y) + b1.at(0, 0, h)[j];
  }
  // The proportion of the row that the warp has written.
  __device__ double operator()(const Shared<Real>& row, int64_t h) const {
    double t = r == 1 ? inner(row, h, 0) : b2.at(0, 0, h)[0];
#pragma unroll 4
    for (int j = 0; r != 1 && j < r; ++j) t += relu(inner(row, h, j)) * w2.at(0, h, 0)[j];
    return 1 / (1 + exp(-t));
  }
};

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  static constexpr int kFactors = 2;
  int d;
  Real scale;
  Module<Real> q, k;

  template <bool kQuery>
  __device__ const Module<Real>& module() const {
    return kQuery ? q : k;
  }
  template <bool kQuery>
  __device__ Real feature(Real x) const {
    return relu(x * (kQuery ? scale : 1));
  }
  template <bool kQuery>
  __device__ Real weight(int64_t h, int unit, int f) const {
    return module<kQuery>().w1.at(0, h, unit)[f];
  }
  template <bool kQuery>
  __device__ Real unit(int64_t h, int j, Real sum) const {
    const Module<Real>& m = module<kQuery>();
    const Real y = sum + m.b1.at(0, 0, h)[j];
    return m.r == 1 ? y : relu(y) * m.w2.at(0, h, 0)[j];
  }
  template <bool kQuery>
  __device__ void factors(const Place& at, Real sum, Real (&by)[kFactors]) const {
    const Module<Real>& m = module<kQuery>();
    const Real t = m.r == 1 ? sum : sum + m.b2.at(0, 0, at.h)[0];
    quarter_turns(reciprocal(1 + exponential(-t)), by[0], by[1]);
  }
  // Writes A, then finds its proportion, of which it returns p and its cosine and sine.
  template <bool kQuery, class X>
  __device__ double turn(const X& x, int64_t h, const Shared<Real>& a, Real& c, Real& s) const {
    for (int f = lane(); f < d; f += 32) a[f] = feature<kQuery>(x[f]);
    __syncwarp();
    const double p = module<kQuery>()(a, h);
    double cosine, sine;
    quarter_turns(p, cosine, sine);
    c = static_cast<Real>(cosine);
    s = static_cast<Real>(sine);
    __syncwarp();  // all have read the row
    return p;
  }
  template <bool kQuery, class X>
  __device__ void features(const X& x, const Place& at, const Row<Real>& row) const {
    Real c, s;
    turn<kQuery>(x, at.h, row.s, c, s);
    for (int f = lane(); f < d; f += 32) {
      row.s[d + f] = row.s[f] * s;
      row.s[f] *= c;
    }
  }

  // A row's notes: A; then of each inner unit the gradient of its sum, and its share of that of W2; that of the
  // sigmoid's argument; 1.
  __device__ Factors factors(int n) const {
    if (n < q.r * d) return {d + n / d, n % d};
    return {d + n - q.r * d, d + 2 * q.r + 1};
  }
  template <bool kQuery, class X>
  __device__ void gradient(const X& x, const Place& at, const Row<Real>& row, const Row<Real>& given) const {
    const Module<Real>& m = module<kQuery>();
    Real c, s;
    const double p = turn<kQuery>(x, at.h, row.s, c, s);
    double turned = 0;  // much of it cancels
    for (int f = lane(); f < d; f += 32)
      turned += row.s[f] * (static_cast<double>(c) * given.s[d + f] - static_cast<double>(s) * given.s[f]);
    const auto t = static_cast<Real>(sum_of_warp(turned) * 1.5707963267948966 * p * (1 - p));
    for (int j = 0; j < m.r; ++j) {
      const Real y = m.r == 1 ? 1 : m.inner(row.s, at.h, j);
      if (lane() != 0) continue;
      row.s[d + j] = y > 0 ? (m.r == 1 ? t : t * m.w2.at(0, at.h, 0)[j]) : 0;
      row.s[d + m.r + j] = y > 0 ? t * y : 0;
    }
    if (lane() < 2) row.s[d + 2 * m.r + lane()] = lane() == 0 ? t : 1;
    __syncwarp();
    for (int f = lane(); f < d; f += 32) {
      Real sum = c * given.s[f] + s * given.s[d + f];
      for (int j = 0; j < m.r; ++j) sum = fused(row.s[d + j], m.w1.at(0, at.h, j)[f], sum);
      given.s[f] = x[f] > 0 ? sum * (kQuery ? scale : 1) : 0;
    }
  }
};

struct Leap : leap::Model {
  template <class Real>
  using Device = Map<Real>;
  using Model::Model;
  int units() const { return static_cast<int>(q.r); }
  int notes() const { return static_cast<int>(d + 2 * q.r + 2); }
  Learned learned() const { return list<Learned>(); }
  template <class Real>
  Map<Real> device(const attn_run& r) const {
    return {static_cast<int>(d), static_cast<Real>(scale), Module<Real>(q, r), Module<Real>(k, r)};
  }
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Leap>)
