// performer on CUDA: the mathematics of performer.cpp.
#include <attnkit/kernels/cuda/linear.hpp>

#include "model.hpp"

namespace {

using namespace attnkit::cuda::linear;
namespace performer = attnkit::performer;

template <class Real>
struct Map {
  static constexpr bool kSplits = false;
  enum { kFollows };
  int m, d;
  Real scale, root, eps, fixed;  // D^-1/4, D^-1/2
  bool follows, cancels, global;
  Rows<const float> omega;

  // omega by feature and column: as it is, and as a block of chunks holds it, so that features lie side by side.
  // Types with names: nvcc's pass for the host sees no body of a __device__ function, and so no lambda that it returns.
  struct InMemory {
    const Rows<const float>& omega;
    __device__ Real operator()(int f, int c) const { return static_cast<Real>(omega.at(0, 0, f)[c]); }
  };
  struct InTable {
    Shared<Real> table;
    int row;
    __device__ Real operator()(int f, int c) const { return static_cast<Real>(table[c * row + f]); }
  };
  __device__ InMemory in_memory() const { return {omega}; }
  __device__ InTable in_table(const Shared<Real>& table) const { return {table, m + 1}; }
  __device__ void load_table(const Shared<Real>& table) const {
    for (int x = static_cast<int>(threadIdx.x); x < m * d; x += kThreads)
      table[x % d * (m + 1) + x / d] = omega.at(0, 0, x / d)[x % d];
    __syncthreads();
  }

  // Gives half of the sums to the lane that is kBits away for half of its, and so on until one is left.
  template <int kBits>
  __device__ static void halve(Real (&sum)[16]) {
    const bool upper = (lane() & kBits) != 0;
#pragma unroll
    for (int n = 0; n < kBits; ++n)
      sum[n] = (upper ? sum[n + kBits] : sum[n]) + __shfl_xor_sync(kAll, upper ? sum[n] : sum[n + kBits], kBits);
    if constexpr (kBits > 1) halve<kBits / 2>(sum);
  }
  // A lane's projections of x, as visit(f, w_f . x^).  From memory lanes side by side read a row side by side, a part
  // of 16 sums each, of which half go to one lane and half to another until each has one.
  template <class X, class Visit>
  __device__ void project(const X& x, const InMemory&, const Visit& visit) const {
#pragma unroll 1
    for (int from = 0; from < m; from += 16) {
      Real sum[16] = {};
#pragma unroll 1
      for (int c = lane(); c < d; c += 32) {
        const Real own = x[c];
        const float* at = omega.at(0, 0, from) + c;
#pragma unroll
        for (int n = 0; n < 16; ++n, at += omega.next)
          if (from + n < m) sum[n] = fused(static_cast<Real>(*at), own, sum[n]);
      }
      halve<8>(sum);
      const Real all = sum[0] + __shfl_xor_sync(kAll, sum[0], 16);
      const int f = from + lane() % 16;
      if (f < m && f % 32 == lane()) visit(f, scale * all);
    }
  }
  template <class X, class At, class Visit>
  __device__ void project(const X& x, const At& at, const Visit& visit) const {
    for (int from = lane(); from < m; from += 128) {
      Real sum[4] = {};
      for (int c = 0; c < d; ++c) {
        const Real own = x[c];
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (from + 32 * n < m) sum[n] = fused(at(from + 32 * n, c), own, sum[n]);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (from + 32 * n < m) visit(from + 32 * n, scale * sum[n]);
    }
  }
  template <class X>
  __device__ Real half_square(const X& x) const {
    double sum = 0;  // of large rows it is large beside what tells features apart
    for (int c = lane(); c < d; c += 32) sum = fused(static_cast<double>(x[c]), static_cast<double>(x[c]), sum);
    return static_cast<Real>(sum_of_warp(sum)) * root / 2;
  }
  template <class X>
  __device__ Real largest(const X& x) const {
    Real most = kLeast<Real>;
    project(x, in_memory(), [&](int, Real y) { most = larger(most, y); });
    return most;
  }

  template <bool kQuery, class X, class At>
  __device__ void logits(const X& x, const Row<Real>& row, const At& at) const {
    const Real half = kQuery ? 0 : half_square(x);
    project(x, at, [&](int f, Real y) { row.s[f] = y - half; });
  }
  template <class C>
  __device__ void key(const Row<Real>& row, const C& c) const {
    for (int f = lane(); f < m; f += 32) row.s[f] = exponential(row.s[f] - c(f)) + eps;
  }
  template <class X, class C>
  __device__ void query(const X& x, const Row<Real>& row, const C& c) const {
    Real top = kLeast<Real>;
    for (int f = lane(); f < m; f += 32) {
      const Real y = row.s[f] + (follows ? c(f) : 0);
      row.s[f] = y;
      top = larger(top, y);
    }
    for (int bits = 16; bits > 0; bits /= 2) top = larger(top, __shfl_xor_sync(kAll, top, bits));
    const Real shift = cancels ? top : top + half_square(x);
    for (int f = lane(); f < m; f += 32) row.s[f] = (exponential(row.s[f] - shift) + eps) * share();
  }
  __device__ Real share() const { return cancels ? Real{1} : reciprocal<Real>(m); }

  template <bool kQuery>
  __device__ Real floor() const {
    return kQuery ? eps * share() : eps;
  }
  template <class X, class At, class Visit>
  __device__ void gradient(const X& x, const Row<Real>& given, const At& at, const Visit& visit) const {
    Real sum = 0;
    for (int f = lane(); f < m; f += 32) sum += given.s[f];
    sum = sum_of_warp(sum) * root;
    for (int c = lane(); c < d; c += 32) {
      Real along = 0;
      for (int f = 0; f < m; ++f) along = fused(at(f, c), given.s[f], along);
      visit(c, fused(scale, along, -sum * x[c]));
    }
  }
};

struct Performer : performer::Model {
  template <class Real>
  using Device = Map<Real>;
  explicit Performer(const Setup& s) : Model(s.block, s.values), block(s.block) {
    s.shape.features = m;
    s.shape.extra = stabiliser == performer::Stabiliser::kRunning ? m : 0;
    list(s.ports);
  }
  int table_floats() const { return static_cast<int>((m + 1) * d); }
  bool splits() const { return stabiliser != performer::Stabiliser::kGlobal; }
  double flops() const { return 2.0 * static_cast<double>(m * d); }
  void check(const attnkit::Request& r, const attnkit::Info&) const {
    check_stabiliser(block, r);
    if (r.dtype_bits == 16 && stabiliser != performer::Stabiliser::kRunning)
      throw attnkit::unsupported(
          "in 16 bits only features whose scale follows the keys stay within range: set stabiliser to running, "
          "feature_eps to 0 and guard to none, or compute in f32");
  }
  template <class Real>
  Map<Real> device(const attn_run& r) const {
    using performer::Stabiliser;
    return {static_cast<int>(m),
            static_cast<int>(d),
            static_cast<Real>(scale),
            static_cast<Real>(root),
            static_cast<Real>(feature_eps),
            static_cast<Real>(fixed),
            stabiliser == Stabiliser::kRunning,
            cancels,
            stabiliser == Stabiliser::kGlobal,
            attnkit::View<const float>(r, omega)};
  }
  attn_block block;
};

}  // namespace

ATTNKIT_PLUGIN(attnkit::cuda::linear::Mechanism<Performer>)
