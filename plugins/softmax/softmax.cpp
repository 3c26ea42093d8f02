// softmax: scaled dot-product attention, the exact quadratic one.
//
// Vaswani et al.: Attention Is All You Need, NeurIPS 2017, arXiv:1706.03762, Eq. 1.
//
//   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),   s_ij = scale Q_i . K_j
//
// Each query walks its visible keys by itself, so nothing depends on the chunking.  Cost per head: 2 N M (D+E) + 5 N M
// flops, half of it when causal; the state is the cache of keys and values, [position][head][D + E] floats.
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/guard.hpp>

namespace {

using attnkit::Sight;
using attnkit::View;
namespace simd = attnkit::simd;

struct Shape {
  int64_t heads, d, e;
  int64_t token() const { return heads * (d + e); }  // floats of one position in the state
};

struct Ports {
  uint32_t q, k, v, o;
};

struct Plan {
  uint64_t worker_bytes;  // the scores of one query, in whole vectors
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
  View<const float> q, k, v;
  View<float> o;
};

// Heads [begin, end) of all batch rows; the body that simd::dispatch compiles three times.
struct Body {
  const Job& job;
  int64_t begin, end;
  uint32_t worker;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) one(item / job.shape.heads, item % job.shape.heads);
  }

  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const attn_run& run = job.run;
    const Sight sight(run, b, job.causal);
    const Cache cache = remember(b, h, sight);
    auto* weights = reinterpret_cast<float*>(static_cast<char*>(run.exec->scratch) + worker * job.plan.worker_bytes);
    for (int64_t i = 0; i < run.queries; ++i) {
      float* o = job.o.row(b, h, i);
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      if (seen <= 0) {
        std::memset(o, 0, static_cast<size_t>(job.shape.e) * sizeof(float));
        continue;
      }
      const float max = score(job.q.row(b, h, i), cache, seen, weights);
      mean(weights, exponentiate(weights, max, seen), cache, seen, o);
    }
  }

  // Copies this run's keys and values behind those in the state, if there is one.
  ATTNKIT_INLINE Cache remember(int64_t b, int64_t h, const Sight& sight) const {
    const attn_run& run = job.run;
    const Shape& s = job.shape;
    if (!run.state) return {job.k.row(b, h, 0), job.v.row(b, h, 0), job.k.next, job.v.next};
    auto* bytes =
        static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
    float* base = reinterpret_cast<float*>(bytes) + h * (s.d + s.e);
    for (int64_t j = 0; j < sight.fresh; ++j) {
      float* token = base + (sight.past + j) * s.token();
      std::memcpy(token, job.k.row(b, h, j), static_cast<size_t>(s.d) * sizeof(float));
      std::memcpy(token + s.d, job.v.row(b, h, j), static_cast<size_t>(s.e) * sizeof(float));
    }
    return {base, base + s.d, s.token(), s.token()};
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

void task(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  simd::dispatch(Body{*reinterpret_cast<const Job*>(arg), begin, end, worker});
}

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
    scale = static_cast<float>(given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d)));
    io = {ports.query("q", shape.d, "queries"), ports.key("k", shape.d, "keys"), ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "weighted mean of the values")};
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t capacity = r.past + r.keys, rows = r.batch * shape.heads;
    const Plan plan{attnkit::aligned(size(capacity))};
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
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<float>(run.ports[io.o])};
    int64_t keys = 0;
    for (int64_t b = 0; b < run.batch; ++b) {
      const Sight sight(run, b, false);
      keys = std::max(keys, sight.past + sight.fresh);
    }
    attnkit::for_each(*run.exec, run.batch * shape.heads,
                      2.0 * static_cast<double>(run.queries * keys * (shape.d + shape.e)), task, &job);
  }

  attn_block block;
  Shape shape;
  float scale;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Softmax)
