// softmax: scaled dot-product attention, the exact quadratic one.
// reference.hpp is the slow form of what follows, as the paper writes it.
//
// Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, Eq. 1.
//
//   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),   s_ij = scale Q_i . K_j
//
// A few queries walk their visible keys one by one, all heads together; more of them go together over blocks of keys,
// packed once for a block of queries.  Cost per head: 2 N M (D+E) + 5 N M flops, half of it when causal; the state is
// the cache of keys and values, [position][head of keys][D + E] numbers: floats, or rounded ones of fewer bytes.
#include <attnkit/kernels/attend_blocks.hpp>
#include <attnkit/kernels/cache.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>

#include "model.hpp"

namespace {

using attnkit::Layout;
using attnkit::Sight;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

constexpr int64_t kNear = 1 << 18;  // floats of states that stay near the processor
constexpr int64_t kTurn = 64;       // positions of which heads take turns where they do not

using Shape = attnkit::Widths;

// rows: a block of keys and values that were rounded.
struct Block : attend::Block {
  float* rows;
  Block(Layout& layout, const Shape& s, bool rounds)
      : attend::Block(layout, s), rows(layout.take(rounds ? simd::kKeys * (s.d + s.e) : 0)) {}
};

// Of one query of each head: the weights of all its keys, their max and sum, what even and odd keys add to the mix;
// rows: a block of keys or values that were rounded.
struct Few {
  int64_t keys, width;  // floats from head to head
  float *weights, *max, *sum, *even, *odd, *rows;
  Few(Layout& layout, const Shape& s, int64_t max_keys, bool rounds)
      : keys(simd::whole_lanes(max_keys)),
        width(simd::whole_lanes(s.e)),
        weights(layout.take(s.heads * keys)),
        max(layout.take(s.heads)),
        sum(layout.take(s.heads)),
        even(layout.take(s.heads * width)),
        odd(layout.take(s.heads * width)),
        rows(layout.take(rounds ? simd::kKeys * std::max(s.d, s.e) : 0)) {}
};

// One run; called for blocks of queries [begin, end) of all heads of all batch rows.
struct Run {
  const Shape& shape;
  const attnkit::Cache& cache;
  int64_t token;  // floats of one position in the state
  const attn_run& run;
  float scale;
  bool causal;
  attend::Cut cut;
  int64_t max_keys;  // that a plan allows
  bool far;          // do the states of all rows lie beyond?
  attnkit::Qkv<> x;
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* scratch) const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t blocks = cut.blocks, block = item % blocks, row = item / blocks;
      const int64_t b = row / shape.heads, h = row % shape.heads;
      const Sight sight(run, b, causal);
      // By the row's own length, so that padding changes nothing.
      if (sight.queries >= attend::kFew)
        one<Isa>(b, h, sight, block, scratch);
      else if (block == 0 && (h == 0 || item - blocks < begin))  // with the heads of the row that follow here
        few<Isa>(b, h, std::min<int64_t>(shape.heads, h + (end - item + blocks - 1) / blocks), sight, scratch);
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, const Sight& sight, int64_t block, void* scratch) const {
    const attend::Span queries = cut.of(sight, block), share = cut.share(sight, block);
    if (h % shape.group() == 0) append(b, h / shape.group(), sight, share.begin, share.end);
    if (queries.size() > 0) blocked<Isa>(b, h, sight, queries, scratch);
  }

  // Heads [first, last) of a row of a few queries.
  template <class Isa>
  ATTNKIT_INLINE void few(int64_t b, int64_t first, int64_t last, const Sight& sight, void* scratch) const {
    if (state && sight.fresh > 0) {
      // A worker that appends keys reads them for all heads of queries that share them.
      const int64_t group = shape.group();
      first = (first + group - 1) / group * group;
      last = (last + group - 1) / group * group;
      for (int64_t h = first; h < last; h += group) append(b, h / group, sight, 0, sight.fresh);
    }
    Layout layout(scratch);
    const Few own(layout, shape, max_keys, cache.rounds());
    for (int64_t i = 0; i < sight.queries; ++i) single<Isa>(b, first, last, sight, i, own);
  }

  // A head's keys in the state, its values behind each.
  ATTNKIT_INLINE float* kept(int64_t b, int64_t kv) const {
    return state.row(b) + kv * (cache.floats(shape.d) + cache.floats(shape.e));
  }

  // Copies keys and values [from, to) of this run behind those in the state, if there is one.
  ATTNKIT_INLINE void append(int64_t b, int64_t kv, const Sight& sight, int64_t from, int64_t to) const {
    for (int64_t j = from; state && j < to; ++j) {
      float* at = kept(b, kv) + (sight.past + j) * token;
      cache.keep(x.k.row(b, kv, j), shape.d, at);
      cache.keep(x.v.row(b, kv, j), shape.e, at + cache.floats(shape.d));
    }
  }

  // Keys, or values, of n positions from `from` as attention sees them where they are rounded, `next` floats apart.
  ATTNKIT_INLINE void see(bool keys, int64_t b, int64_t kv, const Sight& sight, int64_t from, int64_t n, float* to,
                          int64_t next) const {
    const int64_t width = keys ? shape.d : shape.e;
    for (int64_t p = from; p < from + n; ++p, to += next)
      if (p < sight.past)
        cache.see(kept(b, kv) + p * token + (keys ? 0 : cache.floats(shape.d)), width, to);
      else
        cache.round((keys ? x.k : x.v).row(b, kv, p - sight.past), width, to);
  }

  template <class Isa>
  ATTNKIT_INLINE void blocked(int64_t b, int64_t h, const Sight& sight, const attend::Span& queries,
                              void* scratch) const {
    const int64_t kv = h / shape.group();
    Layout layout(scratch);
    const Block block(layout, shape, cache.rounds());
    const attend::Head head{run, shape, x, b, h, sight, state ? kept(b, kv) : nullptr, token};
    const auto pack = [&](int64_t from, int64_t n) __attribute__((always_inline)) {
      if (!cache.rounds()) return head.pack<Isa>(from, n, block);
      const int64_t next = shape.d + shape.e;
      see(true, b, kv, sight, from, n, block.rows, next);
      see(false, b, kv, sight, from, n, block.rows + shape.d, next);
      block.pack<Isa>(
          shape, n, [&](int64_t j) { return block.rows + j * next; },
          [&](int64_t j) { return block.rows + j * next + shape.d; });
    };
    head.attend<Isa>(queries, scale, block, pack, [](int64_t, int64_t, int64_t, float*) {});
  }

  // Calls body(head of [first, last), keys and values of a block, the block's first key) for all keys that are seen.
  // Heads take turns where the cache is not near: what they read of a position lies side by side, while a head's own
  // part is a page away from position to position.
  template <class Body>
  ATTNKIT_INLINE void walk(bool keys, int64_t b, int64_t first, int64_t last, const Sight& sight, int64_t seen,
                           const Few& own, const Body& body) const {
    const int64_t width = keys ? shape.d : shape.e, step = cache.rounds() ? simd::kKeys : far ? kTurn : seen;
    for (int64_t from = 0; from < seen; from += step) {
      const int64_t n = std::min(step, seen - from);
      for (int64_t h = first; h < last; ++h) {
        const int64_t kv = h / shape.group();
        if (cache.rounds()) {
          if (h == first || h % shape.group() == 0) see(keys, b, kv, sight, from, n, own.rows, width);
          body(h, simd::Segment{own.rows, own.rows, width, width, n}, from);
        } else if (state) {
          const float* k = kept(b, kv) + from * token;
          body(h, simd::Segment{k, k + shape.d, token, token, n}, from);
        } else {
          body(h, simd::Segment{x.k.row(b, kv, from), x.v.row(b, kv, from), x.k.next, x.v.next, n}, from);
        }
      }
    }
  }

  // Query i of heads [first, last); the keys of this run are in the state already, if there is one.
  template <class Isa>
  ATTNKIT_INLINE void single(int64_t b, int64_t first, int64_t last, const Sight& sight, int64_t i,
                             const Few& own) const {
    const int64_t seen = sight.seen(i), e = shape.e, whole = e / simd::kLanes * simd::kLanes;
    if (seen <= 0) return;
    std::fill(own.max + first, own.max + last, -__builtin_inff());
    walk(
        true, b, first, last, sight, seen,
        own, [&](int64_t h, const simd::Segment& rows, int64_t from) __attribute__((always_inline)) {
          simd::Segments keys;
          keys.add(rows);
          own.max[h] = std::max(
              own.max[h], simd::score<Isa>(x.q.row(b, h, i), shape.d, scale, keys, own.weights + h * own.keys + from));
        });
    for (int64_t h = first; h < last; ++h)
      own.sum[h] = simd::weigh<Isa>(own.weights + h * own.keys, 1, own.max[h], seen);
    for (float* sums : {own.even, own.odd}) std::fill(sums + first * own.width, sums + last * own.width, 0.0f);
    walk(
        false, b, first, last, sight, seen,
        own, [&](int64_t h, const simd::Segment& rows, int64_t from) __attribute__((always_inline)) {
          mix<Isa>(own, h, rows, from, whole);
        });
    for (int64_t h = first; h < last; ++h) {
      float *o = x.o.row(b, h, i), *even = own.even + h * own.width, *odd = own.odd + h * own.width;
      const float sum = own.sum[h];
      if (float* lse = attend::saved<float>(run, shape, b, h)) lse[i] = own.max[h] + std::log(sum);
      for (int64_t c = 0; c < whole; c += simd::kLanes)
        simd::store((simd::at<Isa>(even + c) + simd::at<Isa>(odd + c)) / sum, o + c);
      for (int64_t c = whole; c < e; ++c) o[c] = even[c] / sum;
    }
  }

  // Adds a block of values to what a head has of them.
  template <class Isa>
  ATTNKIT_INLINE void mix(const Few& own, int64_t h, const simd::Segment& rows, int64_t from, int64_t whole) const {
    const float* weights = own.weights + h * own.keys + from;
    float *even = own.even + h * own.width, *odd = own.odd + h * own.width;
    const auto panel = [&](auto count, int64_t c) __attribute__((always_inline)) {
      constexpr int C = count;
      simd::Vec<Isa> a[C], z[C];
      for (int l = 0; l < C; ++l) {
        a[l] = simd::at<Isa>(even + c + l * simd::kLanes);
        z[l] = simd::at<Isa>(odd + c + l * simd::kLanes);
      }
      simd::add_values<Isa, C>(weights, 0, rows, c, simd::kLanes, a, z);
      for (int l = 0; l < C; ++l) {
        simd::store(a[l], even + c + l * simd::kLanes);
        simd::store(z[l], odd + c + l * simd::kLanes);
      }
    };
    int64_t c = 0;
    for (; c + 4 * simd::kLanes <= whole; c += 4 * simd::kLanes) panel(std::integral_constant<int, 4>(), c);
    for (; c < whole; c += simd::kLanes) panel(std::integral_constant<int, 1>(), c);
    for (; c < shape.e; ++c) {
      float total = even[c];
      for (int64_t j = 0; j < rows.count; ++j) total += weights[j] * rows.v[j * rows.v_next + c];
      even[c] = total;
    }
  }
};

struct Softmax : softmax::Model {
  using Model::Model;
  struct Plan {
    int64_t keys;    // of a row, at most
    uint64_t bytes;  // scratch of a worker
    attend::Plan backward;
  };

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    cache.check(r);
    count(r, info);
    const uint64_t few = Layout::measure<Few>(shape, r.capacity(), cache.rounds()),
                   bytes = std::max(few, r.queries < attend::kFew ? 0 : Layout::measure<Block>(shape, cache.rounds()));
    return {r.capacity(), info.scratch(r, bytes), attend::Plan(shape, r, info)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (is_f64(run, io.o)) {
      attend::run_f64(run, io, shape, scale, block.causal != 0,
                      [](const Sight& sight, int64_t, int64_t i, const auto& see) {
                        for (int64_t j = 0; j < sight.seen(i); ++j) see(j);
                      });
      return;
    }
    const attend::Cut cut(run, shape.heads);
    const Run body{shape,
                   cache,
                   token(),
                   run,
                   factor(),
                   block.causal != 0,
                   cut,
                   plan.keys,
                   cut.all_keys * token() > kNear,
                   {run, io},
                   attnkit::State(run)};
    simd::for_items(run, run.batch * shape.heads * cut.blocks, {cut.flops(shape), plan.bytes}, body);
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
