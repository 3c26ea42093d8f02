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
#include <attnkit/kernels/cache.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>
#include <limits>

namespace {

using attnkit::Sight;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

constexpr int64_t kBlock = 64;  // queries of one task when there is no state to append to

// The keys that a sliding window shows, and their number.
struct Window {
  int64_t size;  // w
  bool causal;

  // Keys before and behind a query, its own aside: |i - j| < w / 2, or i - w < j <= i.
  int64_t before() const { return causal ? size - 1 : (size - 1) / 2; }
  int64_t behind() const { return causal ? 0 : (size - 1) / 2; }
  int64_t width() const { return before() + behind() + 1; }
  // Positions of the keys that query i sees.
  attend::Span of(const Sight& sight, int64_t i) const {
    const int64_t position = sight.q_pos + i, begin = std::max<int64_t>(0, position - before());
    return {begin, std::max(begin, std::min(sight.seen(i), position + behind() + 1))};
  }

  // 1 + 2 + ... + x, each at most limit.
  static int64_t capped_sum(int64_t x, int64_t limit) {
    const int64_t free = std::min(x, limit);
    return free * (free + 1) / 2 + (x - free) * limit;
  }
  // Pairs that one run weighs.  Queries stand at the last positions of a causal block, from 0 on otherwise.
  int64_t pairs(const attnkit::Request& r) const {
    const int64_t all = r.capacity();
    if (causal) return capped_sum(all, size) - capped_sum(all - std::min(r.queries, all), size);
    const int64_t n = std::min(r.queries, all + before());  // those further on see nothing
    const int64_t missed = std::max<int64_t>(0, n - 1 - before());
    return capped_sum(n + behind(), all) - capped_sum(behind(), all) - missed * (missed + 1) / 2;
  }
  // Keys of the past that some query of such a run sees.
  int64_t old(const attnkit::Request& r) const {
    if (r.queries == 0) return 0;
    const int64_t first = std::max<int64_t>(0, r.capacity() - r.queries - before());
    return std::max<int64_t>(0, r.past - first);
  }
};

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
      const attend::Span span = window.of(sight, i);
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

struct Local {
  static constexpr attnkit::About about{
      .name = "local",
      .summary = "softmax attention in a sliding window: linear cost, constant state, blind beyond the window",
      .citation = "Beltagy et al., Longformer, arXiv:2004.05150; Tay et al., Long Range Arena, ICLR 2021",
      .state_revision = "1"};
  struct Plan {
    int64_t keys;    // of a window, at most
    uint64_t bytes;  // scratch of a worker
    attend::Plan backward;
  };

  static attnkit::Options options() {
    return {attnkit::Option::integer("window", 128, 1, 1 << 24,
                                     "w: a query sees keys nearer than w / 2, in causal blocks the last w"),
            attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2"),
            attnkit::Cache::option()};
  }

  Local(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape(b, true),
        window{values.integer("window"), b.causal != 0},
        io(ports.qkv(shape, "weighted mean of the values in the window")),
        cache(values) {
    const double given = values.real("scale");
    scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d));
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    cache.check(r);
    attnkit::check_sight(block, r);
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "local attention sees the keys around a query's own position, and positions of a target and a source are not "
          "related in cross attention: use it in self attention, and a mechanism such as softmax or linear here");
    const int64_t all = r.capacity(), token = shape.kv_heads * (cache.floats(shape.d) + cache.floats(shape.e));
    info.flags = r.streams() && all > 0 && all <= window.size ? ATTN_REWINDS : 0;
    info.state(r, {std::min(all, window.size) * token, window.old(r) * token, std::min(r.keys, window.size) * token});
    info.flops = static_cast<uint64_t>(r.batch * shape.heads * window.pairs(r) * (2 * (shape.d + shape.e) + 5));
    const int64_t keys = std::min(window.width(), all);
    return {keys, info.scratch(r, attnkit::Layout::measure<Own>(shape, keys, cache.rounds())),
            attend::Plan(shape, r, info)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale, window.causal,
                      [this](const Sight& sight, int64_t, int64_t i, const auto& see) {
                        const attend::Span span = window.of(sight, i);
                        for (int64_t j = span.begin; j < span.end; ++j) see(j);
                      });
      return;
    }
    const int64_t blocks = run.state ? 1 : std::max<int64_t>(1, (run.queries + kBlock - 1) / kBlock);
    const auto queries = static_cast<double>(run.state ? run.queries : std::min(run.queries, kBlock));
    const int64_t together = run.state ? shape.group() : 1;
    const double flops = 2.0 * queries * static_cast<double>(together * window.width() * (shape.d + shape.e));
    // Never 0, which would make the -infinity of lanes past the window NaN.
    const float factor = std::max(static_cast<float>(scale), std::numeric_limits<float>::min());
    simd::for_items(run, run.batch * shape.heads / together * blocks, {flops, plan.bytes},
                    Run{shape, cache, window, run, factor, blocks, plan.keys, {run, io}, attnkit::State(run)});
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const auto keys = static_cast<double>(std::min(window.width(), grad.run->keys));
    attnkit::with_real(is_f64(*grad.run, io.o), [&](auto real) {
      const attend::Gradient<decltype(real)> gradient(shape, scale, plan.backward, grad, io);
      gradient.over_spans(keys, window.causal, [this](const Sight& sight, int64_t i) { return window.of(sight, i); });
    });
  }

  attn_block block;
  attnkit::Widths shape;
  Window window;
  double scale;
  attnkit::QkvPorts io;
  attnkit::Cache cache;
};

}  // namespace

ATTNKIT_PLUGIN(Local)
