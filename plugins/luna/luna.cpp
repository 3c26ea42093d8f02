// luna: attention through a short sequence P that travels from block to block; linear in the length.
// The slow form to compare with the paper: reference.hpp.
//
// Ma, Kong, Wang, Zhou, May, Ma and Zettlemoyer: Luna: Linear Unified Nested Attention, NeurIPS 2021, arXiv:2106.01540.
//
//   pack:    Y = softmax(s P W_pq (C W_pk)^T) C W_pv,   P' = LN(Y + P)
//   unpack:  o_i = softmax(s q_i (Y W_k)^T) Y W_v
//   causal:  A_tr = w(s (P W_pq)_r . pk_t),   K_tr = sum_(j <= t) A_jr k_j,   V_tr = sum_(j <= t) A_jr v_j,
//            o_t = 1/t sum_r softmax_r(s/t q_t . K_tr) V_tr
//
// by heads; C is the block's context, P has l rows, s = D^-1/2, and w is positive.  Tied: W_pk = W_pv and W_k = W_v.
// Cost per head: 4 l D (N + M) flops, and those of projecting P and Y; the state has l rows of a few numbers.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>
#include <limits>

#include "gradient.hpp"

namespace {

using attnkit::float_bytes;
using namespace luna;
using simd::kLanes;
using simd::Vec;

constexpr int64_t kTile = 64;     // keys that are packed at once
constexpr int64_t kQueries = 64;  // that a worker unpacks at least

// Scratch of a worker: weights of l rows for a tile of keys, and keys and values of a head of the pack attention.
struct Own {
  float *weights, *key, *values;
  Own(Layout& layout, const Shape& s)
      // score writes whole vectors wherever it ends
      : weights(layout.take((s.causal ? 1 : kTile) * lanes(s) + kLanes)),
        key(layout.take(s.causal ? 0 : s.pack_d())),
        values(layout.take(s.causal ? 0 : kTile * s.pack_d())) {}
};

// A learned projection, [out][in] and [out].
struct Dense {
  View<const float> weight, bias;

  // Outputs [from, from + 16) of rows [0, n) of x, times scale.  Rows of x are as far apart as they are wide.
  template <class Isa>
  ATTNKIT_INLINE void apply(const float* x, int64_t n, int64_t width, float scale, int64_t from, float* out,
                            int64_t outputs) const {
    const int64_t here = std::min(kLanes, outputs - from);
    Vec<Isa> b;
    simd::load(bias.data + from, here, b);
    for (int64_t i = 0; i < n; ++i) {
      float sums[kLanes];
      simd::dots<Isa>(x + i * width, weight.row(from), weight.next, here, width, sums);
      simd::store((simd::at<Isa>(sums) + b) * scale, here, out + i * outputs + from);
    }
  }
};

// One run.
struct Run {
  const Shape& shape;
  const attn_run& run;
  Shared<> shared;
  uint64_t worker_bytes;
  Tensors<> x;
  View<float> next, o;
  attnkit::State state;

  float* memory(int64_t b) const { return state ? state.row(b) : shared.memory + b * shared.memory_next; }
  Sight sight(int64_t b) const { return Sight(run, b, shape.causal); }
  float scale(int64_t width) const { return static_cast<float>(luna::scale(width)); }

  // Calls body(isa, item, own) for n items of about this many flops each.
  template <class Body>
  void each(int64_t n, double flops, const Body& body) const {
    const auto items = [&](auto isa, int64_t begin, int64_t end, void* scratch) __attribute__((always_inline)) {
      Layout layout(scratch);
      const Own own(layout, shape);
      for (int64_t item = begin; item < end; ++item) body(isa, item, own);
    };
    simd::for_items(run, n, {flops, worker_bytes}, items);
  }

  void operator()() const {
    const Shape& s = shape;
    const int64_t blocks = (s.width() + kLanes - 1) / kLanes;
    const auto rows = static_cast<double>(s.l * s.width());
    bool begins = false;
    for (int64_t b = 0; b < run.batch && run.keys > 0; ++b) begins |= !s.causal || sight(b).past == 0;
    if (begins)
      each(
          run.batch * blocks,
          2 * kLanes * rows, [&](auto isa, int64_t item, const Own&) __attribute__((always_inline)) {
            project_p<decltype(isa)>(item / blocks, item % blocks);
          });
    if (s.causal) {
      const auto steps = static_cast<double>(2 * (run.keys + run.queries) * s.l * (s.d + s.values()));
      each(
          run.batch * s.heads, steps, [&](auto isa, int64_t item, const Own& own) __attribute__((always_inline)) {
            recur<decltype(isa)>(item / s.heads, item % s.heads, own);
          });
      return;
    }
    if (run.keys > 0) {
      const int64_t value_blocks = s.tied ? 0 : (s.heads * s.e + kLanes - 1) / kLanes, all = blocks + value_blocks;
      // Rows of P apart read the keys again each time.
      const int64_t heads = run.batch * s.pack_heads;
      const int64_t cut = heads < static_cast<int64_t>(run.exec->workers) ? kLanes : lanes(s), cuts = lanes(s) / cut;
      each(
          heads * cuts, 4 * static_cast<double>(run.keys) * rows / static_cast<double>(s.pack_heads * cuts),
          [&](auto isa, int64_t item, const Own& own) __attribute__((always_inline)) {
            const int64_t head = item / cuts, first = item % cuts * cut;
            pack<decltype(isa)>(head / s.pack_heads, head % s.pack_heads, first, std::min(first + cut, s.l), own);
          });
      each(
          run.batch, 10 * rows, [&](auto, int64_t b, const Own&) __attribute__((always_inline)) { finish(b); });
      each(
          run.batch * all, 2 * kLanes * rows, [&](auto isa, int64_t item, const Own&) __attribute__((always_inline)) {
            project_packed<decltype(isa)>(item / all, item % all, blocks);
          });
    }
    const int64_t cuts = std::max<int64_t>(1, (run.queries + kQueries - 1) / kQueries);
    each(
        run.batch * s.heads * cuts, static_cast<double>(2 * std::min(run.queries, kQueries) * s.l * (s.d + s.values())),
        [&](auto isa, int64_t item, const Own& own) __attribute__((always_inline)) {
          const int64_t head = item / cuts;
          unpack<decltype(isa)>(head / s.heads, head % s.heads, item % cuts * kQueries, own);
        });
  }

  // Outputs [16 block, 16 block + 16) of pq, of a row that begins.
  template <class Isa>
  ATTNKIT_INLINE void project_p(int64_t b, int64_t block) const {
    const int64_t width = shape.width();
    const Sight s = sight(b);
    if (s.fresh == 0 || (shape.causal && s.past > 0)) return;
    const Causal<> known(memory(b), shape);
    float* pq = shape.causal ? known.pq : shared.pq + b * shape.l * width;
    const float by = scale(shape.causal ? shape.d : shape.pack_d());
    const Dense to_pq{x.pq_weight, x.pq_bias};
    for (int64_t i = 0; i < shape.l; ++i)
      to_pq.apply<Isa>(x.p.row(b, 0, i), 1, width, by, block * kLanes, pq + i * width, width);
    if (shape.causal && block == 0) *known.live = static_cast<float>(x.live(b, shape));
  }

  // o = softmax(scale q . keys) values / divisor over n rows, keys d wide.
  template <class Isa>
  ATTNKIT_INLINE void attend(const float* query, const simd::Segment& rows, float by, float divisor, float* weights,
                             float* to) const {
    const int64_t e = shape.values();
    simd::Segments all;
    all.add(rows);
    const float max = simd::score<Isa>(query, shape.d, by, all, weights);
    const float sum = simd::weigh<Isa>(weights, 1, max, rows.count) * divisor;
    std::memset(to, 0, float_bytes(e));
    simd::add_product<Isa, float>({weights, 0, 1}, {rows.v, rows.count, e, rows.v_next}, {to, 1, e, e});
    for (int64_t c = 0; c < e; ++c) to[c] /= sum;
  }

  // A head of a causal row.
  template <class Isa>
  ATTNKIT_INLINE void recur(int64_t b, int64_t h, const Own& own) const {
    const Shape& s = shape;
    const Causal<> known(memory(b), s);
    const Sight seen = sight(b);
    const float *pq = known.pq + h * s.d, by = scale(s.d);
    float *keys = known.keys + h * s.l * s.d, *values = known.values + h * s.l * s.values();
    if (!state) {
      std::memset(keys, 0, float_bytes(s.l * s.d));
      std::memset(values, 0, float_bytes(s.l * s.values()));
    }
    seen.walk(
        bool{state},
        [&](int64_t from, int64_t to) __attribute__((always_inline)) {
          for (int64_t j = from; j < to; ++j) {
            // A_r = w(pq_r . pk), then A k^T and A v^T are added to the sums.
            weigh<Isa>(x.pk.row(b, h, j), pq, s.width(), s.d, 0, s.l, own.weights);
            for (int64_t r = 0; r < s.l; r += kLanes) {
              Vec<Isa> a = simd::at<Isa>(own.weights + r), slope;
              activate(s.map, a, slope);
              simd::store(a, own.weights + r);
            }
            simd::add_product<Isa, float>({own.weights, 1, 0}, {x.k.row(b, h, j), 1, s.d, 0}, {keys, s.l, s.d, s.d});
            if (!s.tied)
              simd::add_product<Isa, float>({own.weights, 1, 0}, {x.v.row(b, h, j), 1, s.e, 0},
                                            {values, s.l, s.e, s.e});
          }
        },
        // o = (1 / t) softmax((1 / t) scale q . sums of A k^T) sums of A v^T.
        [&](int64_t i) __attribute__((always_inline)) {
          const auto t = static_cast<float>(seen.seen(i));
          const float live = *known.live;  // of a state whose bytes got lost anything
          const int64_t rows = live >= 0 && live <= static_cast<float>(s.l) ? static_cast<int64_t>(live) : 0;
          if (rows > 0)
            attend<Isa>(x.q.row(b, h, i), {keys, values, s.d, s.values(), rows}, by / t, t, own.weights,
                        o.row(b, h, i));
          else
            std::memset(o.row(b, h, i), 0, float_bytes(s.values()));
        });
  }

  // Scores of a row and those of the l rows from `first` to `last`; writes whole vectors.
  template <class Isa>
  ATTNKIT_INLINE void weigh(const float* row, const float* rows, int64_t row_next, int64_t width, int64_t first,
                            int64_t last, float* weights) const {
    for (int64_t r = first; r < last; r += kLanes)
      simd::dots<Isa>(row, rows + r * row_next, row_next, shape.l - r, width, weights + r);
  }

  // Rows [first, last) of P of one head of the pack attention over the fresh keys of one batch row.
  template <class Isa>
  ATTNKIT_INLINE void pack(int64_t b, int64_t head, int64_t first, int64_t last, const Own& own) const {
    const Shape& s = shape;
    const int64_t width = s.width(), dp = s.pack_d();
    const Sight seen = sight(b);
    if (seen.fresh == 0) return;
    const Packed<> known(memory(b), s);
    float *sums = known.sums + head * dp, *largest = known.largest + head * s.l, *totals = known.totals + head * s.l;
    if (seen.past == 0)
      for (int64_t i = first; i < last; ++i) {
        std::fill(sums + i * width, sums + i * width + dp, 0.0f);
        largest[i] = std::numeric_limits<float>::lowest();
        totals[i] = 0;
      }
    const float* pq = shared.pq + b * s.l * width + head * dp;
    for (int64_t t = 0; t < seen.fresh; t += kTile) {
      const int64_t n = std::min(kTile, seen.fresh - t);
      for (int64_t j = 0; j < n; ++j) {
        gather(x.pk, s.d, {b, t + j, head * dp, dp}, own.key);
        gather(x.pv, s.d, {b, t + j, head * dp, dp}, own.values + j * dp);
        weigh<Isa>(own.key, pq, width, dp, first, last, own.weights + j * lanes(s));
      }
      for (int64_t r = first; r < last; r += kLanes)
        rescale<Isa>(own.weights + r, n, s.l - r, largest + r, totals + r, sums + r * width);
      simd::add_product<Isa, float>({own.weights + first, 1, lanes(s)}, {own.values, n, dp, dp},
                                    {sums + first * width, last - first, dp, width});
    }
  }

  // Scores of n keys and 16 rows of P become e^(s - m), m the largest so far; what was summed shrinks to the new m.
  template <class Isa>
  ATTNKIT_INLINE void rescale(float* scores, int64_t n, int64_t rows, float* largest, float* totals,
                              float* sums) const {
    const int64_t key_next = lanes(shape), dp = shape.pack_d();
    Vec<Isa> old, total;
    simd::load(largest, rows, old);
    simd::load(totals, rows, total);
    Vec<Isa> top = old;
    for (int64_t j = 0; j < n; ++j) {
      const Vec<Isa> x = simd::at<Isa>(scores + j * key_next);
      top = simd::select(x > top, x, top);
    }
    Vec<Isa> factor = old - top;
    simd::exp(factor);
    total *= factor;
    for (int64_t j = 0; j < n; ++j) {
      Vec<Isa> x = simd::at<Isa>(scores + j * key_next) - top;
      simd::exp(x);
      simd::store(x, scores + j * key_next);
      total += x;
    }
    simd::store(top, rows, largest);
    simd::store(total, rows, totals);
    float factors[kLanes];
    simd::store(factor, factors);
    for (int64_t r = 0; r < kLanes && r < rows; ++r)
      if (factors[r] != 1)
        for (int64_t c = 0; c < dp; ++c) sums[r * shape.width() + c] *= factors[r];
  }

  // The packed sequence of one batch row, and P' = LN(packed + P): rows that do not count are zeros.
  ATTNKIT_INLINE void finish(int64_t b) const {
    const Shape& s = shape;
    const Sight seen = sight(b);
    if (seen.fresh == 0) return;
    const Packed<> known(memory(b), s);
    const int64_t width = s.width(), dp = s.pack_d(), rows = s.live(seen);
    for (int64_t i = 0; i < s.l; ++i) {
      float* y = shared.packed + (b * s.l + i) * width;
      for (int64_t c = 0; c < width; ++c) y[c] = known.sums[i * width + c] / known.totals[c / dp * s.l + i];
      if (s.contextual && i < rows)
        normalise(y, x.p.row(b, 0, i), width, x.norm_weight.data, x.norm_bias.data, known.p + i * width);
    }
    if (s.contextual) std::fill(known.p + rows * width, known.p + s.l * width, 0.0f);
  }

  // Sixteen outputs of the keys or values of the packed sequence.
  template <class Isa>
  ATTNKIT_INLINE void project_packed(int64_t b, int64_t block, int64_t key_blocks) const {
    const Shape& s = shape;
    if (sight(b).fresh == 0) return;
    const Packed<> known(memory(b), s);
    const float* packed = shared.packed + b * s.l * s.width();
    if (block < key_blocks)
      Dense{x.k_weight, x.k_bias}.apply<Isa>(packed, s.l, s.width(), 1, block * kLanes, known.keys, s.width());
    else
      Dense{x.v_weight, x.v_bias}.apply<Isa>(packed, s.l, s.width(), 1, (block - key_blocks) * kLanes, known.values,
                                             s.heads * s.e);
  }

  // One head of the queries of one batch row from `first` on; the first ones of head 0 also hand on P.
  template <class Isa>
  ATTNKIT_INLINE void unpack(int64_t b, int64_t h, int64_t first, const Own& own) const {
    const Shape& s = shape;
    const int64_t e = s.values(), width = s.width();
    const Sight seen = sight(b);
    const Packed<> known(memory(b), s);
    const int64_t rows = s.live(seen);
    const simd::Segment packed{known.keys + h * s.d, known.values + h * e, width, s.heads * e, rows};
    for (int64_t i = first; rows > 0 && i < std::min(first + kQueries, seen.queries); ++i)
      attend<Isa>(x.q.row(b, h, i), packed, scale(s.d), 1, own.weights, o.row(b, h, i));
    for (int64_t i = 0; s.contextual && h == 0 && first == 0 && i < s.l; ++i)
      if (seen.past + seen.fresh > 0)
        std::memcpy(next.row(b, 0, i), known.p + i * width, float_bytes(width));
      else
        std::memset(next.row(b, 0, i), 0, float_bytes(width));
  }
};

struct Luna : luna::Model {
  using Model::Model;
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // scratch of a worker
    uint32_t workers;
    bool trains;
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    check(r);
    count(r, info);
    Plan plan{Layout::measure<Own>(shape), 0, r.workers, r.trains()};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      using Real = decltype(real);
      plan.backward_bytes = Backward<Real>::worker_bytes(shape, r.queries);
      if (r.is_f64()) plan.run_bytes = plan.backward_bytes;
      const uint64_t shared = Layout::measure<Shared<Real>>(shape, r.batch, !shape.causal && r.keys > 0, r.streams());
      info.scratch_bytes = plan.run_bytes * r.workers + (plan.trains ? 0 : shared);
      info.train(r, static_cast<int64_t>(shared / sizeof(Real)), plan.backward_bytes,
                 Layout::measure<typename Backward<Real>::Sums>(shape, r.batch));
    });
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    char* scratch = static_cast<char*>(run.exec->scratch) + plan.run_bytes * run.exec->workers;
    if (attnkit::is_f64(run, io.o)) {
      const Forward body{pass<double>(plan.trains ? run.saved : scratch, run), {run, io.o}, {run, io.p_out}};
      const double flops = 4.0 * static_cast<double>(shape.l * shape.width() * (run.queries + run.keys));
      attnkit::for_each_head(run, 1, {flops, plan.run_bytes},
                             [&](int64_t b, int64_t, void* memory) { body(b, memory); });
      return;
    }
    const auto [s, r, x, shared] = pass<float>(plan.trains ? run.saved : scratch, run);
    Run{s, r, shared, plan.run_bytes, x, {run, io.p_out}, {run, io.o}, attnkit::State(run)}();
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    Layout layout(static_cast<char*>(run.exec->scratch) + plan.backward_bytes * plan.workers);
    attnkit::with_real(attnkit::is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      Backward<Real>{pass<Real>(run.saved, run), grad, io, plan.backward_bytes, {layout, shape, run.batch}}();
    });
  }

  // memory: of what workers share.
  template <class Real>
  Pass<Real> pass(void* memory, const attn_run& run) const {
    Layout layout(memory);
    return {
        shape, run, {run, io, shape}, {layout, shape, run.batch, !shape.causal && run.keys > 0, run.state != nullptr}};
  }
};

}  // namespace

ATTNKIT_PLUGIN(Luna)
