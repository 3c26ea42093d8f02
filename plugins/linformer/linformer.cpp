// linformer: softmax attention over k learned mixtures of the keys and values.
// The slow form to compare with the paper: reference.hpp.
//
// Wang et al.: Linformer: Self-Attention with Linear Complexity, 2020, arXiv:2006.04768, Eq. 7.
//
//   o_i = sum_t p_it Vbar_t,   p_it = softmax over t = 1 ... k of D^-1/2 Q_i . Kbar_t
//   Kbar_t = sum_j E_tj K_j,   Vbar_t = sum_j F_tj V_j,   E, F [k, n_max] learned; key j takes column j
//
// Both sums are additive in the keys, so they are the state of cross attention.  Cost per head: 2 k (D+E)(N+M) + 5 k N
// flops; state k (D+E) floats, whatever the length.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>

#include "gradient.hpp"
#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::View;
using linformer::Shape;
namespace simd = attnkit::simd;

constexpr int64_t kKeys = 32;  // projected at a time

// A worker's scratch: columns of a block of keys, and one head if there is no state.
struct Scratch {
  float *columns, *sums;
  Scratch(Layout& layout, const Shape& s, bool has_state)
      : columns(layout.take(kKeys * s.lanes())), sums(has_state ? nullptr : layout.take(s.head_floats())) {}
};

// One run; called for each head of each batch row.
struct Run {
  const Shape& shape;
  const attn_run& run;
  float scale;
  attnkit::Qkv<> x;
  View<const float> e, f;  // without f, e serves both
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t b, int64_t h, void* memory) const {
    const Shape& s = shape;
    Layout layout(memory);
    const Scratch scratch(layout, s, bool{state});
    float* head = state.head(b, h, s.head_floats(), scratch.sums);
    const simd::Memory projected{head, s.lanes(), head + s.d * s.lanes(), s.e, s.rank, s.d, s.e};
    const Sight sight(run, b, false);
    int64_t block = 0;  // queries that see the same keys wait
    sight.walk(
        bool{state},
        [&](int64_t from, int64_t to) __attribute__((always_inline)) {
          for (; from < to; from += kKeys)
            append<Isa>(b, h, sight.past, from, std::min(kKeys, to - from), scratch.columns, head);
        },
        [&](int64_t i) __attribute__((always_inline)) {
          ++block;
          if (block < simd::kQueries && i + 1 < sight.queries && sight.seen(i + 1) == sight.seen(i)) return;
          const int64_t first = i + 1 - block;
          simd::attend<Isa>(x.q.row(b, h, first), x.q.next, block, projected, scale, x.o.row(b, h, first), x.o.next);
          block = 0;
        });
  }

  // Adds the mixtures of n keys.
  template <class Isa>
  ATTNKIT_INLINE void append(int64_t b, int64_t h, int64_t past, int64_t from, int64_t n, float* columns,
                             float* head) const {
    const Shape& s = shape;
    const int64_t lanes = s.lanes();
    const simd::Matrix<const float> projection{columns, n, lanes, lanes};
    const simd::Matrix<const float> keys{x.k.row(b, h, from), n, s.d, x.k.next};
    const simd::Matrix<const float> values{x.v.row(b, h, from), n, s.e, x.v.next};
    take<Isa>(e, h, past + from, n, columns);
    simd::add_transposed_product<Isa, float>(keys, projection, {head, s.d, lanes, lanes});
    if (f.data) take<Isa>(f, h, past + from, n, columns);
    simd::add_transposed_product<Isa, float>(projection, values, {head + s.d * lanes, s.rank, s.e, s.e});
  }

  // Columns [from, from + n) of a projection as rows; the lanes past the rank are zero.
  template <class Isa>
  ATTNKIT_INLINE void take(const View<const float>& matrix, int64_t h, int64_t from, int64_t n, float* columns) const {
    simd::pack_keys<Isa>(
        shape.rank, n, [&](int64_t r) { return matrix.row(0, h, r) + from; }, columns, shape.lanes());
  }
};

struct Linformer : linformer::Model {
  using Model::Model;
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // of a worker in scratch
    uint32_t workers;
    int64_t rows, keys;  // of queries whose scores are kept, and the most keys
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    Plan plan{0, 0, r.workers, r.shows_prefixes() ? r.queries : linformer::kRows, r.keys};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      using Real = decltype(real);
      plan.backward_bytes = Layout::measure<linformer::GradientScratch<Real>>(shape, plan.rows, learned(r.keys));
      plan.run_bytes = info.scratch(r, r.is_f64() ? plan.backward_bytes : Layout::measure<Scratch>(shape, r.streams()));
    });
    info.train(r, 0, plan.backward_bytes, attnkit::aligned(r.real_bytes(matrices * shape.rank * r.keys)));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto flops = static_cast<double>(shape.flops(run.queries, run.keys));
    if (attnkit::is_f64(run, io.o)) {
      const attnkit::Qkv<double> x(run, io);
      attnkit::for_each_head(run, shape.heads, {flops, plan.run_bytes}, [&](int64_t b, int64_t h, void* memory) {
        Layout layout(memory);
        const linformer::GradientScratch<double> scratch(layout, shape, plan.rows, 0);
        const linformer::GradientHead<double> head{shape, run, b, h, x, {run, e}, {run, f}, scratch};
        head.write(x.o);
      });
      return;
    }
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)));
    const Run body{shape, run, scale, {run, io}, {run, e}, {run, f}, attnkit::State(run)};
    simd::for_heads(run, shape.heads, {flops, plan.run_bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    attnkit::with_real(attnkit::is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      char* sums = static_cast<char*>(run.exec->scratch) + plan.backward_bytes * plan.workers;
      linformer::Gradient<Real>{
          shape,      grad,     plan.rows, learned(plan.keys), plan.backward_bytes, {run, io},
          {grad, io}, {run, e}, {run, f},  {grad, e},          {grad, f},           reinterpret_cast<Real*>(sums)}();
    });
  }

  // Numbers that one head gives E and F.
  int64_t learned(int64_t keys) const { return (f ? 2 : 1) * shape.rank * keys; }
};

}  // namespace

ATTNKIT_PLUGIN(Linformer)
