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
#include <attnkit/kernels/stages.hpp>
#include <cmath>

#include "gradient.hpp"
#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Sight;
using attnkit::View;
using linformer::Shape;
namespace simd = attnkit::simd;

constexpr int64_t kKeys = 32;     // projected at a time
constexpr int64_t kQueries = 32;  // that a worker takes at least

// Of a head: its sums, if there is no state.
struct Sums {
  float* head;
  Sums(Layout& layout, const Shape& s, bool has_state) : head(has_state ? nullptr : layout.take(s.head_floats())) {}
};

// Of a worker: columns of a block of keys.
struct Columns {
  float* data;
  Columns(Layout& layout, const Shape& s, bool) : data(layout.take(kKeys * s.lanes())) {}
};

struct Job {
  const Shape& shape;
  const attn_run& run;
  float scale;
  attnkit::Qkv<> x;
  View<const float> e, f;  // without f, e serves both
  attnkit::State state;
};

// Projects the keys, 16 of the rank a piece, then attends to what they became, some queries a piece.  Where queries
// see different keys sums wait for queries, and all is one piece.
struct Head {
  const Job& job;
  int64_t b, h;
  Sight sight;
  float* sums;
  bool alike;  // queries see the same keys

  Head(const Job& j, int64_t row, int64_t head, void* memory)
      : job(j), b(row), h(head), sight(j.run, row, false), alike(!sight.visible) {
    Layout layout(memory);
    const int64_t floats = j.shape.head_floats();
    sums = j.state ? j.state.row(b) + h * floats : Sums(layout, j.shape, false).head;
  }
  int stages() const { return sight.queries == 0 && !job.state ? 0 : alike ? 2 : 1; }
  int64_t pieces(int stage) const {
    if (!alike) return 1;
    if (stage == 0) return job.shape.lanes() / simd::kLanes;
    return sight.past + sight.fresh > 0 ? (sight.queries + kQueries - 1) / kQueries : 0;
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void* own) const {
    Layout layout(own);
    float* columns = Columns(layout, job.shape, false).data;
    if (!alike) {
      walk<Isa>(columns);
    } else if (stage == 0) {
      const Ranks ranks{begin * simd::kLanes, std::min(end * simd::kLanes, job.shape.rank)};
      if (!job.state) clear(ranks);
      append<Isa>(ranks, 0, sight.fresh, columns);
    } else {
      const int64_t stop = std::min(end * kQueries, sight.queries);
      for (int64_t i = begin * kQueries; i < stop; i += simd::kQueries)
        attend<Isa>(i, std::min(simd::kQueries, stop - i));
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void walk(float* columns) const {
    const Ranks all{0, job.shape.rank};
    if (!job.state) clear(all);
    int64_t block = 0;  // queries that see the same keys wait
    sight.walk(
        bool{job.state},
        [&](int64_t from, int64_t to) __attribute__((always_inline)) { append<Isa>(all, from, to, columns); },
        [&](int64_t i) __attribute__((always_inline)) {
          ++block;
          if (block < simd::kQueries && i + 1 < sight.queries && sight.seen(i + 1) == sight.seen(i)) return;
          attend<Isa>(i + 1 - block, block);
          block = 0;
        });
  }

  // Projected keys and values [begin, end), of whole vectors but for the last.
  struct Ranks {
    int64_t begin, end;
    int64_t count() const { return end - begin; }
    int64_t lanes() const { return simd::whole_lanes(count()); }
  };

  float* keys_of(const Ranks& ranks) const { return sums + ranks.begin; }
  float* values_of(const Ranks& ranks) const {
    return sums + job.shape.d * job.shape.lanes() + ranks.begin * job.shape.e;
  }

  void clear(const Ranks& ranks) const {
    const Shape& s = job.shape;
    for (int64_t c = 0; c < s.d; ++c)
      std::memset(keys_of(ranks) + c * s.lanes(), 0, static_cast<size_t>(ranks.lanes()) * sizeof(float));
    std::memset(values_of(ranks), 0, static_cast<size_t>(ranks.count() * s.e) * sizeof(float));
  }

  // Adds the mixtures of keys [from, to).
  template <class Isa>
  ATTNKIT_INLINE void append(const Ranks& ranks, int64_t from, int64_t to, float* columns) const {
    const Shape& s = job.shape;
    const attnkit::Qkv<>& x = job.x;
    const int64_t lanes = ranks.lanes();
    for (; from < to; from += kKeys) {
      const int64_t n = std::min(kKeys, to - from);
      const simd::Matrix<const float> projection{columns, n, lanes, lanes};
      const simd::Matrix<const float> keys{x.k.row(b, h, from), n, s.d, x.k.next};
      const simd::Matrix<const float> values{x.v.row(b, h, from), n, s.e, x.v.next};
      take<Isa>(job.e, ranks, sight.past + from, n, columns);
      simd::add_transposed_product<Isa, float>(keys, projection, {keys_of(ranks), s.d, lanes, s.lanes()});
      if (job.f.data) take<Isa>(job.f, ranks, sight.past + from, n, columns);
      simd::add_transposed_product<Isa, float>(projection, values, {values_of(ranks), ranks.count(), s.e, s.e});
    }
  }

  // Columns [from, from + n) of a projection as rows; the lanes past the rank are zero.
  template <class Isa>
  ATTNKIT_INLINE void take(const View<const float>& matrix, const Ranks& ranks, int64_t from, int64_t n,
                           float* columns) const {
    simd::pack_keys<Isa>(
        ranks.count(), n, [&](int64_t r) { return matrix.row(0, h, ranks.begin + r) + from; }, columns, ranks.lanes());
  }

  // n queries, at most simd::kQueries.
  template <class Isa>
  ATTNKIT_INLINE void attend(int64_t first, int64_t n) const {
    const Shape& s = job.shape;
    const attnkit::Qkv<>& x = job.x;
    const Ranks all{0, s.rank};
    const simd::Memory projected{sums, s.lanes(), values_of(all), s.e, s.rank, s.d, s.e};
    simd::attend<Isa>(x.q.row(b, h, first), x.q.next, n, projected, job.scale, x.o.row(b, h, first), x.o.next);
  }
};

struct Linformer : linformer::Model {
  using Model::Model;
  struct Plan {
    simd::Staged staged;
    uint64_t run_bytes, backward_bytes;  // of a worker in scratch
    uint32_t workers;
    int64_t rows, keys;  // of queries whose scores are kept, and the most keys
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    Plan plan{simd::Staged::measure<Sums, Columns>(shape, r.streams()), 0,     0, r.workers,
              r.shows_prefixes() ? r.queries : linformer::kRows,        r.keys};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      using Real = decltype(real);
      plan.backward_bytes = Layout::measure<linformer::GradientScratch<Real>>(shape, plan.rows, learned(r.keys));
      plan.run_bytes = info.scratch(r, r.is_f64() ? plan.backward_bytes : plan.staged.worker_bytes());
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
    simd::for_stages<Head>(run, shape.heads, flops, plan.staged,
                           Job{shape, run, scale, {run, io}, {run, e}, {run, f}, attnkit::State(run)});
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
