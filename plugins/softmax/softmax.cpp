// softmax: scaled dot-product attention, the exact quadratic one.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, Eq. 1.
//
//   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),   s_ij = scale Q_i . K_j
//
// A few queries walk their visible keys each by itself; more of them go together over blocks of keys, packed once for a
// block of queries.  Cost per head: 2 N M (D+E) + 5 N M flops, half of it when causal; the state is the cache of keys
// and values, [position][head of keys][D + E] floats.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/attend_gradient.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>

#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Sight;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

constexpr int64_t kFew = 4;  // queries of a row from which blocks are faster

using Shape = attnkit::Widths;

// Packed keys and values of a block, and what its queries have so far.
struct Block {
  float *keys, *values, *out;
  Block(Layout& layout, const Shape& s)
      : keys(layout.take(simd::kKeys * s.d)),
        values(layout.take(simd::kKeys * simd::whole_lanes(s.e))),
        out(layout.take(simd::kQueries * simd::whole_lanes(s.e))) {}
};

// One run; called for blocks of queries [begin, end) of all heads of all batch rows.
struct Run {
  const Shape& shape;
  int64_t token;  // floats of one position in the state
  const attn_run& run;
  float scale;
  bool causal;
  int64_t blocks;  // of queries, at least one
  attnkit::Qkv<> x;
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* scratch) const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / blocks;
      one<Isa>(head / shape.heads, head % shape.heads, item % blocks, scratch);
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, int64_t block, void* scratch) const {
    const Sight sight(run, b, causal);
    const int64_t kv = h / shape.group(), from = block * simd::kQueries,
                  stop = std::min(sight.queries, from + simd::kQueries);
    // By the row's own length, so that padding changes nothing.
    if (sight.queries >= kFew) {
      const int64_t share = (sight.fresh + blocks - 1) / blocks;
      if (h % shape.group() == 0) append(b, kv, sight, block * share, std::min(sight.fresh, (block + 1) * share));
      if (from < stop) blocked<Isa>(b, h, sight, from, stop - from, scratch);
    } else if (block == 0) {
      // A worker that appends keys reads them for all heads of queries that share them.
      const bool appends = state && sight.fresh > 0;
      if (appends && h % shape.group() != 0) return;
      append(b, kv, sight, 0, sight.fresh);
      for (int64_t head = h; head < h + (appends ? shape.group() : 1); ++head)
        for (int64_t i = 0; i < stop; ++i) single<Isa>(b, head, sight, i, static_cast<float*>(scratch));
    }
  }

  ATTNKIT_INLINE float* cache(int64_t b, int64_t kv) const { return state.row(b) + kv * (shape.d + shape.e); }

  // Copies keys and values [from, to) of this run behind those in the state, if there is one.
  ATTNKIT_INLINE void append(int64_t b, int64_t kv, const Sight& sight, int64_t from, int64_t to) const {
    for (int64_t j = from; state && j < to; ++j) {
      float* at = cache(b, kv) + (sight.past + j) * token;
      std::memcpy(at, x.k.row(b, kv, j), static_cast<size_t>(shape.d) * sizeof(float));
      std::memcpy(at + shape.d, x.v.row(b, kv, j), static_cast<size_t>(shape.e) * sizeof(float));
    }
  }

  // Keys of earlier runs come from the state, those of this one from the ports: other blocks are still appending them.
  template <class Isa>
  ATTNKIT_INLINE void blocked(int64_t b, int64_t h, const Sight& sight, int64_t first, int64_t queries,
                              void* scratch) const {
    const int64_t kv = h / shape.group(), width = simd::whole_lanes(shape.e), past = sight.past;
    const float* old = state ? cache(b, kv) : nullptr;
    Layout layout(scratch);
    const Block block(layout, shape);
    int64_t seen[simd::kQueries], most = 0;
    for (int64_t i = 0; i < queries; ++i) {
      seen[i] = std::max<int64_t>(0, sight.seen(first + i));
      most = std::max(most, seen[i]);
    }
    simd::Online online;
    online.out = block.out;
    online.out_row = width;
    online.begin(queries, width);
    for (int64_t from = 0; from < most; from += simd::kKeys) {
      const int64_t n = std::min(simd::kKeys, most - from);
      const auto key = [&](int64_t j) {
        return from + j < past ? old + (from + j) * token : x.k.row(b, kv, from + j - past);
      };
      const auto value = [&](int64_t j) {
        return from + j < past ? old + (from + j) * token + shape.d : x.v.row(b, kv, from + j - past);
      };
      simd::pack_keys<Isa>(n, shape.d, key, block.keys, simd::kKeys);
      simd::pack_values<Isa>(n, shape.e, value, block.values);
      simd::attend_block<Isa>(x.q.row(b, h, first), x.q.next, queries,
                              {block.keys, simd::kKeys, block.values, width, n, shape.d, width}, from, seen, scale,
                              online);
    }
    float* lse = attend::saved<float>(run, shape, b, h);
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t c = 0; c < shape.e; c += simd::kLanes) {
        const simd::Vec<Isa> sum = simd::Vec<Isa>{} + online.sum[i], o = simd::at<Isa>(online.out + i * width + c);
        simd::store(o / sum, shape.e - c, x.o.row(b, h, first + i) + c);
      }
      if (lse) lse[first + i] = online.max[i] + std::log(online.sum[i]);
    }
  }

  // Query i; the keys of this run are in the state already, if there is one.
  template <class Isa>
  ATTNKIT_INLINE void single(int64_t b, int64_t h, const Sight& sight, int64_t i, float* weights) const {
    const int64_t seen = sight.seen(i), kv = h / shape.group();
    if (seen <= 0) return;
    simd::Segments keys;
    if (state)
      keys.add({cache(b, kv), cache(b, kv) + shape.d, token, token, seen});
    else
      keys.add({x.k.row(b, kv, 0), x.v.row(b, kv, 0), x.k.next, x.v.next, seen});
    const float max = simd::score<Isa>(x.q.row(b, h, i), shape.d, scale, keys, weights);
    const float sum = simd::weigh<Isa>(weights, 1, max, seen);
    if (float* lse = attend::saved<float>(run, shape, b, h)) lse[i] = max + std::log(sum);
    float* o = x.o.row(b, h, i);
    for (int64_t c = simd::mean<Isa>(weights, sum, keys, shape.e, o); c < shape.e; ++c) {
      float total = 0;
      for (int64_t j = 0; j < seen; ++j) total += weights[j] * keys.list[0].v[j * keys.list[0].v_next + c];
      o[c] = total / sum;
    }
  }
};

struct Softmax : softmax::Model {
  using Model::Model;
  struct Plan {
    uint64_t bytes;  // scratch of a worker
    attend::Plan backward;
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    count(r, info);
    // A row of a few queries holds all scores of one.
    const uint64_t scores = attnkit::aligned(attnkit::float_bytes(r.capacity()));
    const uint64_t bytes = std::max(scores, r.queries < kFew ? 0 : Layout::measure<Block>(shape));
    return {info.scratch(r, bytes), attend::Plan(shape, r, info)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale, block.causal != 0,
                      [](const Sight& sight, int64_t, int64_t i, const auto& see) {
                        for (int64_t j = 0; j < sight.seen(i); ++j) see(j);
                      });
      return;
    }
    const int64_t blocks = std::max<int64_t>(1, (run.queries + simd::kQueries - 1) / simd::kQueries);
    const Run body{shape, token(), run, factor(), block.causal != 0, blocks, {run, io}, attnkit::State(run)};
    int64_t keys = 0;
    for (int64_t b = 0; b < run.batch; ++b) {
      const Sight sight(run, b, false);
      keys = std::max(keys, sight.past + sight.fresh);
    }
    const int64_t queries = std::min(run.queries, simd::kQueries);
    simd::for_items(run, run.batch * shape.heads * blocks,
                    {2.0 * static_cast<double>(queries * keys * (shape.d + shape.e)), plan.bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const bool causal = block.causal != 0;
    const auto keys = static_cast<double>(grad.run->keys) / (causal ? 2 : 1);
    attnkit::with_real(is_f64(*grad.run, io.o), [&](auto real) {
      const attend::Gradient<decltype(real)> gradient(shape, scale, plan.backward, grad, io);
      gradient.over_spans(keys, causal, [](const Sight& sight, int64_t i) {
        return attend::Span{0, std::max<int64_t>(0, sight.seen(i))};
      });
    });
  }
};

}  // namespace

ATTNKIT_PLUGIN(Softmax)
