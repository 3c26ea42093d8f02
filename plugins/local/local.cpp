// local: softmax attention in a sliding window.
// The slow form to compare with the paper: reference.hpp.
//
// The window of Beltagy et al.: Longformer, arXiv:2004.05150, Section 3.1, and of Tay et al.: Long Range Arena, ICLR
// 2021, arXiv:2011.04006.
//
//   o_i = sum_j p_ij v_j over the window of i,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),
//   s_ij = scale Q_i . K_j;   window: |i - j| < w / 2, in causal blocks i - w < j <= i
//
// Each query walks its window by itself, so nothing depends on the chunking.  Cost per head: about N w (2 (D+E) + 5)
// flops; the state is a ring of the last w keys and values, [position mod w][head of keys][D + E] numbers: floats, or
// rounded ones of fewer bytes.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/attend_gradient.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>

#include "model.hpp"

namespace {

using attnkit::Sight;
using local::Window;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

constexpr int64_t kBlock = 64;  // queries of one task when there is no state to append to

// Positions of the keys that query i sees.
attend::Span span_of(const Window& window, const Sight& sight, int64_t i) {
  const int64_t position = sight.q_pos + i, begin = std::max<int64_t>(0, position - window.before());
  return {begin, std::max(begin, std::min(sight.seen(i), position + window.behind() + 1))};
}

// The weights of a window's keys, and the keys and values themselves where they are rounded.
struct Own {
  float *weights, *rows;
  Own(attnkit::Layout& layout, const attnkit::Widths& s, int64_t keys, bool rounds)
      : weights(layout.take(keys + 2 * simd::kLanes)), rows(layout.take(rounds ? keys * (s.d + s.e) : 0)) {}
};

// One run; called for blocks of queries of all heads of all batch rows, with a state for all queries of the heads that
// share one of keys.
struct Run {
  const attnkit::Widths& shape;
  const attnkit::Cache& cache;
  const Window& window;
  const attn_run& run;
  float scale;
  int64_t blocks, keys;  // keys: of a window, at most
  attnkit::Qkv<> x;
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* scratch) const {
    const int64_t together = state ? shape.group() : 1, heads = shape.heads / together;
    attnkit::Layout layout(scratch);
    const Own own(layout, shape, keys, cache.rounds());
    for (int64_t item = begin; item < end; ++item) {
      const int64_t b = item / blocks / heads, first = item / blocks % heads * together, from = item % blocks * kBlock;
      for (int64_t h = first; h < first + together; ++h)
        one<Isa>(b, h, from, blocks == 1 ? run.queries : from + kBlock, own);
      if (state) append(b, first / shape.group(), Sight(run, b, window.causal));
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, int64_t from, int64_t to, const Own& own) const {
    const Sight sight(run, b, window.causal);
    float* weights = own.weights;
    for (int64_t i = from; i < std::min(sight.queries, to); ++i) {
      const attend::Span span = span_of(window, sight, i);
      const simd::Segments keys = gather(b, h / shape.group(), sight.past, span.begin, span.end, own.rows);
      float* o = x.o.row(b, h, i);
      if (keys.count == 0) {
        std::memset(o, 0, static_cast<size_t>(shape.e) * sizeof(float));
        continue;
      }
      const float max = simd::score<Isa>(x.q.row(b, h, i), shape.d, scale, keys, weights);
      const float sum = simd::weigh<Isa>(weights, 1, max, keys.count);
      if (float* lse = attend::saved<float>(run, shape, b, h)) lse[i] = max + std::log(sum);
      const int64_t c = simd::mean<Isa>(weights, sum, keys, shape.e, o);
      if (c < shape.e) simd::mean_panel<Isa, 1>(weights, sum, keys, c, shape.e - c, o);
    }
  }

  // A head's part of what the state holds for a position.
  ATTNKIT_INLINE float* token(int64_t b, int64_t h, int64_t position) const {
    return state.row(b) +
           (position % window.size * shape.kv_heads + h) * (cache.floats(shape.d) + cache.floats(shape.e));
  }

  // Positions [begin, end): what is left of the past in one or two segments of the ring, then this run's.  Those that
  // are rounded are in `rows`.
  ATTNKIT_INLINE simd::Segments gather(int64_t b, int64_t h, int64_t past, int64_t begin, int64_t end,
                                       float* rows) const {
    const int64_t next = shape.kv_heads * (shape.d + shape.e), row = shape.d + shape.e;
    simd::Segments keys;
    if (cache.rounds()) {
      keys.add({rows, rows + shape.d, row, row, end - begin});
      for (int64_t p = begin; p < end; ++p, rows += row)
        if (p < past) {
          const float* kept = token(b, h, p);
          cache.see(kept, shape.d, rows);
          cache.see(kept + cache.floats(shape.d), shape.e, rows + shape.d);
        } else {
          cache.round(x.k.row(b, h, p - past), shape.d, rows);
          cache.round(x.v.row(b, h, p - past), shape.e, rows + shape.d);
        }
      return keys;
    }
    while (state && begin < std::min(past, end)) {
      const int64_t count = std::min(window.size - begin % window.size, std::min(past, end) - begin);
      const float* k = token(b, h, begin);
      keys.add({k, k + shape.d, next, next, count});
      begin += count;
    }
    if (begin < end)
      keys.add({x.k.row(b, h, begin - past), x.v.row(b, h, begin - past), x.k.next, x.v.next, end - begin});
    return keys;
  }

  // Only after all queries were answered: a chunk longer than the window overwrites keys that its first queries see.
  ATTNKIT_INLINE void append(int64_t b, int64_t h, const Sight& sight) const {
    for (int64_t j = std::max<int64_t>(0, sight.fresh - window.size); j < sight.fresh; ++j) {
      float* to = token(b, h, sight.past + j);
      cache.keep(x.k.row(b, h, j), shape.d, to);
      cache.keep(x.v.row(b, h, j), shape.e, to + cache.floats(shape.d));
    }
  }
};

struct Local : local::Model {
  using Model::Model;
  struct Plan {
    int64_t keys;    // of a window, at most
    uint64_t bytes;  // scratch of a worker
    attend::Plan backward;
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    cache.check(r);
    count(r, info);
    const int64_t keys = std::min(window.width(), r.capacity());
    return {keys, info.scratch(r, attnkit::Layout::measure<Own>(shape, keys, cache.rounds())),
            attend::Plan(shape, r, info)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale, window.causal,
                      [this](const Sight& sight, int64_t, int64_t i, const auto& see) {
                        const attend::Span span = span_of(window, sight, i);
                        for (int64_t j = span.begin; j < span.end; ++j) see(j);
                      });
      return;
    }
    const int64_t blocks = run.state ? 1 : std::max<int64_t>(1, (run.queries + kBlock - 1) / kBlock);
    const auto queries = static_cast<double>(run.state ? run.queries : std::min(run.queries, kBlock));
    const int64_t together = run.state ? shape.group() : 1;
    const double flops = 2.0 * queries * static_cast<double>(together * window.width() * (shape.d + shape.e));
    simd::for_items(run, run.batch * shape.heads / together * blocks, {flops, plan.bytes},
                    Run{shape, cache, window, run, factor(), blocks, plan.keys, {run, io}, attnkit::State(run)});
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const auto keys = static_cast<double>(std::min(window.width(), grad.run->keys));
    attnkit::with_real(is_f64(*grad.run, io.o), [&](auto real) {
      const attend::Gradient<decltype(real)> gradient(shape, scale, plan.backward, grad, io);
      gradient.over_spans(keys, window.causal,
                          [this](const Sight& sight, int64_t i) { return span_of(window, sight, i); });
    });
  }
};

}  // namespace

ATTNKIT_PLUGIN(Local)
