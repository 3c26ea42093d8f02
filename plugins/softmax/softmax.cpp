// softmax: scaled dot-product attention, the exact quadratic one.
//
// Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, Eq. 1.
//
//   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),   s_ij = scale Q_i . K_j
//
// A few queries walk their visible keys each by itself; more of them go together over blocks of keys, packed once for a
// block of queries.  Cost per head: 2 N M (D+E) + 5 N M flops, half of it when causal; the state is the cache of keys
// and values, [position][head][D + E] floats.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/work.hpp>

namespace {

using attnkit::Sight;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t kFew = 4;  // queries of a row from which blocks are faster

struct Shape {
  int64_t heads, d, e;
  int64_t token() const { return heads * (d + e); }  // floats of one position in the state
  // Packed keys and values of a block, and what its queries have so far.
  int64_t block_floats() const { return simd::kKeys * d + (simd::kKeys + simd::kQueries) * simd::whole_lanes(e); }
};

struct Ports {
  uint32_t q, k, v, o;
};

struct Plan {
  uint64_t worker_bytes;
};

// Keys and values of one head, wherever they stand.
struct Cache {
  const float *k, *v;
  int64_t k_next, v_next;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  float scale;
  bool causal;
  int64_t blocks;  // of queries, at least one
  View<const float> q, k, v;
  View<float> o;
};

// Blocks of queries [begin, end) of all heads of all batch rows.
struct Body : simd::Work<Job> {
  using Work::Work;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / job.blocks;
      one<Isa>(head / job.shape.heads, head % job.shape.heads, item % job.blocks);
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, int64_t block) const {
    const Sight sight(job.run, b, job.causal);
    const int64_t from = block * simd::kQueries, to = std::min(job.run.queries, from + simd::kQueries);
    const int64_t stop = std::min(sight.queries, to);
    for (int64_t i = std::max(from, stop); i < to; ++i)
      std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(job.shape.e) * sizeof(float));
    // By the row's own length, so that padding changes nothing.
    if (sight.queries >= kFew) {
      const int64_t share = (sight.fresh + job.blocks - 1) / job.blocks;
      remember(b, h, sight, block * share, std::min(sight.fresh, (block + 1) * share));
      if (from < stop) together<Isa>(b, h, sight, from, stop - from);
    } else if (block == 0) {
      remember(b, h, sight, 0, sight.fresh);
      for (int64_t i = 0; i < stop; ++i) alone(b, h, sight, i);
    }
  }

  ATTNKIT_INLINE float* scratch() const { return floats(); }
  ATTNKIT_INLINE float* state(int64_t b, int64_t h) const {
    const attn_run& run = job.run;
    auto* bytes =
        static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
    return reinterpret_cast<float*>(bytes) + h * (job.shape.d + job.shape.e);
  }

  // Copies keys and values [from, to) of this run behind those in the state, if there is one.
  ATTNKIT_INLINE void remember(int64_t b, int64_t h, const Sight& sight, int64_t from, int64_t to) const {
    const Shape& s = job.shape;
    for (int64_t j = from; job.run.state && j < to; ++j) {
      float* token = state(b, h) + (sight.past + j) * s.token();
      std::memcpy(token, job.k.row(b, h, j), static_cast<size_t>(s.d) * sizeof(float));
      std::memcpy(token + s.d, job.v.row(b, h, j), static_cast<size_t>(s.e) * sizeof(float));
    }
  }

  // Keys of earlier runs come from the state, those of this one from the ports: other blocks are still appending them.
  template <class Isa>
  ATTNKIT_INLINE void together(int64_t b, int64_t h, const Sight& sight, int64_t first, int64_t queries) const {
    const Shape& s = job.shape;
    const int64_t width = simd::whole_lanes(s.e), past = sight.past;
    const float* old = job.run.state ? state(b, h) : nullptr;
    float *keys = scratch(), *values = keys + simd::kKeys * s.d;
    int64_t seen[simd::kQueries], most = 0;
    for (int64_t i = 0; i < queries; ++i) {
      seen[i] = std::max<int64_t>(0, sight.seen(first + i));
      most = std::max(most, seen[i]);
    }
    simd::Online online;
    online.out = values + simd::kKeys * width;
    online.out_row = width;
    online.begin(queries, width);
    for (int64_t from = 0; from < most; from += simd::kKeys) {
      const int64_t n = std::min(simd::kKeys, most - from);
      const auto key = [&](int64_t j) {
        return from + j < past ? old + (from + j) * s.token() : job.k.row(b, h, from + j - past);
      };
      const auto value = [&](int64_t j) {
        return from + j < past ? old + (from + j) * s.token() + s.d : job.v.row(b, h, from + j - past);
      };
      simd::pack_keys(n, s.d, key, keys, simd::kKeys);
      simd::pack_values(n, s.e, value, values);
      simd::attend_block<Isa>(job.q.row(b, h, first), job.q.next, queries,
                              {keys, simd::kKeys, values, width, n, s.d, width}, from, seen, job.scale, online);
    }
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t c = 0; c < s.e; c += simd::kLanes) {
        const simd::Vec sum = simd::Vec{} + online.sum[i], x = simd::at(online.out + i * width + c).v;
        simd::store(seen[i] > 0 ? x / sum : simd::Vec{}, s.e - c, job.o.row(b, h, first + i) + c);
      }
  }

  // Query i; the keys of this run are in the state already, if there is one.
  ATTNKIT_INLINE void alone(int64_t b, int64_t h, const Sight& sight, int64_t i) const {
    const Shape& s = job.shape;
    const int64_t seen = sight.seen(i);
    float *weights = scratch(), *o = job.o.row(b, h, i);
    if (seen <= 0) {
      std::memset(o, 0, static_cast<size_t>(s.e) * sizeof(float));
      return;
    }
    Cache cache{job.k.row(b, h, 0), job.v.row(b, h, 0), job.k.next, job.v.next};
    if (job.run.state) cache = {state(b, h), state(b, h) + s.d, s.token(), s.token()};
    const float max = score(job.q.row(b, h, i), cache, seen, weights);
    mean(weights, exponentiate(weights, max, seen), cache, seen, o);
  }

  // Scores of the first n keys, 16 at a time; the last vector repeats key n - 1 and ends in -infinity.  Returns the
  // max.
  ATTNKIT_INLINE float score(const float* q, const Cache& cache, int64_t n, float* scores) const {
    const int64_t d = job.shape.d;
    float max = -__builtin_inff();
    for (int64_t j = 0; j < n; j += simd::kLanes) {
      simd::dots(q, cache.k + j * cache.k_next, cache.k_next, n - j, d, scores + j);
      for (int64_t r = 0; r < simd::kLanes; ++r) {
        float s = scores[j + r] * job.scale;
        s = j + r < n ? s : -__builtin_inff();
        scores[j + r] = s;
        max = s > max ? s : max;
      }
    }
    return max;
  }

  // weights = exp(scores - max); returns their sum.
  ATTNKIT_INLINE float exponentiate(float* scores, float max, int64_t n) const {
    simd::Vec sum{};
    for (int64_t j = 0; j < n; j += simd::kLanes) {
      simd::Vec x = simd::at(scores + j).v - max;
      simd::exp(x);
      simd::at(scores + j).v = x;
      sum += x;
    }
    return simd::sum(sum);
  }

  ATTNKIT_INLINE void mean(const float* weights, float sum, const Cache& cache, int64_t n, float* o) const {
    const int64_t e = job.shape.e;
    int64_t c = 0;
    for (; c + 4 * simd::kLanes <= e; c += 4 * simd::kLanes) panel<4>(weights, sum, cache, n, o, c);
    for (; c + simd::kLanes <= e; c += simd::kLanes) panel<1>(weights, sum, cache, n, o, c);
    for (; c < e; ++c) {
      float total = 0;
      for (int64_t j = 0; j < n; ++j) total += weights[j] * cache.v[j * cache.v_next + c];
      o[c] = total / sum;
    }
  }

  template <int C>
  ATTNKIT_INLINE void panel(const float* weights, float sum, const Cache& cache, int64_t n, float* o, int64_t c) const {
    simd::Vec even[C] = {}, odd[C] = {};
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
      const float *v = cache.v + j * cache.v_next + c, *next = v + cache.v_next;
      for (int x = 0; x < C; ++x) even[x] += weights[j] * simd::at(v + x * simd::kLanes).v;
      for (int x = 0; x < C; ++x) odd[x] += weights[j + 1] * simd::at(next + x * simd::kLanes).v;
    }
    if (j < n)
      for (int x = 0; x < C; ++x) even[x] += weights[j] * simd::at(cache.v + j * cache.v_next + c + x * simd::kLanes).v;
    for (int x = 0; x < C; ++x) simd::at(o + c + x * simd::kLanes).v = (even[x] + odd[x]) / sum;
  }
};

struct Softmax {
  static constexpr attnkit::About about{
      .name = "softmax",
      .summary = "scaled dot-product attention: exact, quadratic, the state grows with the length",
      .citation = "Vaswani et al., Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2")};
  }

  Softmax(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), b.head_width} {
    const double given = values.real("scale");
    // Never 0, which would make the -infinity of keys that are not seen NaN.
    scale = std::max(static_cast<float>(given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d))),
                     std::numeric_limits<float>::min());
    io = {ports.query("q", shape.d, "queries"), ports.key("k", shape.d, "keys"), ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "weighted mean of the values")};
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t capacity = r.past + r.keys, rows = r.batch * shape.heads;
    // A row of a few queries holds all scores of one.
    const Plan plan{attnkit::aligned(size(std::max(capacity, r.queries < kFew ? 0 : shape.block_floats())))};
    info.flags = ATTN_REWINDS;
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.state_bytes = stream ? attnkit::aligned(size(capacity * shape.token())) : 0;
    info.flops = static_cast<uint64_t>(shape.heads) * attnkit::pairs(r, block.causal) *
                 static_cast<uint64_t>(2 * (shape.d + shape.e) + 5);
    info.bytes_read =
        size(rows * (r.queries * shape.d + (stream ? r.past + 2 * r.keys : r.keys) * (shape.d + shape.e)));
    info.bytes_written = size(rows * (r.queries * shape.e + (stream ? r.keys * (shape.d + shape.e) : 0)));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Job job{shape,
                  plan,
                  run,
                  scale,
                  block.causal != 0,
                  std::max<int64_t>(1, (run.queries + simd::kQueries - 1) / simd::kQueries),
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<float>(run.ports[io.o])};
    int64_t keys = 0;
    for (int64_t b = 0; b < run.batch; ++b) {
      const Sight sight(run, b, false);
      keys = std::max(keys, sight.past + sight.fresh);
    }
    simd::share<Body>(job, run.batch * shape.heads * job.blocks,
                      2.0 * static_cast<double>(std::min(run.queries, simd::kQueries) * keys * (shape.d + shape.e)));
  }

  attn_block block;
  Shape shape;
  float scale;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Softmax)
