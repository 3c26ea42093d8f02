// efficient: softmax over the features of a query times softmax over the positions of each key feature.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Shen et al.: Efficient Attention: Attention with Linear Complexities, WACV 2021, arXiv:1812.01243, softmax form.
//
//   o_i = sum_f softmax_f(Q_i)_f sum_j softmax_j(K_.f)_j v_j
//       = (a_i^T S) / (a_i^T z),   a_if = e^(Q_if - n_i) / z_f,
//         S_f = sum_j e^(K_jf - m_f) v_j,   z_f = sum_j e^(K_jf - m_f)
//
// m_f and n_i are the largest of K_.f and of Q_i, so nothing overflows and z_f >= 1.  When m grows, S and z shrink by
// e^(old - new): the state may be appended to.  Cost per head: 2 D (E+1)(N+M) flops; state D (E+2) floats.
#include <attnkit/kernels/latents.hpp>
#include <attnkit/kernels/linear/core.hpp>

#include "model.hpp"

namespace {

using attnkit::View;
using attnkit::linear::At;
using attnkit::simd::kLanes;
using attnkit::simd::select;
using attnkit::simd::Vec;

// A head is S[D][E], z[D], m[D]; a z of 0 means that no key feature above -infinity came yet.
struct Map {
  int64_t d, e;

  template <class Isa>
  ATTNKIT_INLINE void query(const float* x, const At<Isa>&, float* row, const float* head) const {
    const float* z = head + d * e;
    float largest = -__builtin_inff();
    for (int64_t f = 0; f < d; ++f) largest = x[f] > largest ? x[f] : largest;
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec<Isa> y, sums;
      attnkit::simd::load(x + f, d - f, y);
      attnkit::simd::load(z + f, d - f, sums);
      y -= largest;
      attnkit::simd::exp(y);
      attnkit::simd::store(y / sums, d - f, row + f);
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void key(const float* x, const At<Isa>&, float* row, const float* head) const {
    const float* m = head + d * (e + 1);
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec<Isa> y, largest;
      attnkit::simd::load(x + f, d - f, y);
      attnkit::simd::load(m + f, d - f, largest);
      y -= largest;
      attnkit::simd::exp(y);
      attnkit::simd::store(y, d - f, row + f);
    }
  }

  // m becomes the largest of itself and keys [from, to).  A NaN is never the largest; its own feature carries it.
  template <class Isa>
  ATTNKIT_INLINE void rescale(const View<const float>& k, int64_t b, int64_t h, int64_t from, int64_t to,
                              float* head) const {
    float *z = head + d * e, *m = z + d;
    for (int64_t f = 0; f < d; f += kLanes) {
      Vec<Isa> old, sums, x;
      attnkit::simd::load(m + f, d - f, old);
      attnkit::simd::load(z + f, d - f, sums);
      old = select(sums == 0.0f, std::numeric_limits<float>::lowest() - Vec<Isa>{}, old);
      Vec<Isa> largest = old;
      for (int64_t j = from; j < to; ++j) {
        attnkit::simd::load(k.row(b, h, j) + f, d - f, x);
        largest = select(x > largest, x, largest);
      }
      attnkit::simd::store(largest, d - f, m + f);
      old -= largest;
      attnkit::simd::exp(old);
      float factors[kLanes];
      attnkit::simd::store(old, factors);
      for (int64_t i = 0; i < kLanes && f + i < d; ++i)
        if (z[f + i] != 0 && factors[i] != 1) shrink(head + (f + i) * e, z + f + i, factors[i]);
    }
  }

  ATTNKIT_INLINE void shrink(float* row, float* sum, float factor) const {
    *sum *= factor;
    for (int64_t c = 0; c < e; ++c) row[c] *= factor;
  }
};

struct Efficient : efficient::Model {
  struct Plan {
    bool is_f64;
    uint64_t run_bytes, exact_bytes;  // scratch of a worker, in f32 runs and elsewhere
  };

  Efficient(const attn_block& b, const attnkit::Values&, attnkit::Ports& ports)
      : Model{b},
        shape(b, true),
        io(ports.qkv(shape, "weighted mean of the values")),
        exact{{shape.kv_heads, shape.d, shape.e}, 1, false, io, shape.group()} {
    shape.extra = shape.d;
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    check_causal();
    attnkit::linear::cost(shape, r, 0, info);
    const uint64_t run_bytes =
        info.scratch(r, attnkit::Layout::measure<attnkit::linear::Scratch<>>(shape, r.streams()));
    return {r.is_f64(), run_bytes, exact.plan(r, info)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (plan.is_f64) return exact.run(run, plan.exact_bytes);
    const Map map{shape.d, shape.e};
    const attnkit::Guard none{attnkit::Guard::kNone};
    const int64_t together = attnkit::simd::heads_together(run, shape);
    const attnkit::linear::Run<Map, float> body{shape,   none,    map, false, run, {run, io}, attnkit::State(run),
                                                nullptr, together};
    const double flops = exact.shape.flops(together * run.queries + run.keys);
    attnkit::simd::for_heads(run, shape.heads / together, {flops, plan.run_bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const { exact.backward(grad, plan.exact_bytes); }

  attnkit::linear::Shape shape;
  attnkit::QkvPorts io;
  attnkit::latents::SoftmaxAttention exact;
};

}  // namespace

ATTNKIT_PLUGIN(Efficient)
