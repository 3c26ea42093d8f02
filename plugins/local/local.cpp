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
// flops; the state is a ring of the last w keys and values, [position mod w][head][D + E] floats.
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/exponential.hpp>
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/work.hpp>
#include <limits>

#include "window.hpp"

namespace {

using attnkit::Sight;
using attnkit::View;
using attnkit::local::Window;
namespace simd = attnkit::simd;

constexpr int64_t kBlock = 64;  // queries of one task when there is no state to append to

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

// Keys and values of positions that follow one another in memory.
struct Segment {
  const float *k, *v;
  int64_t k_next, v_next, count;
};

// A window in the order of positions: what is left of the past in one or two segments of the ring, then this run's.
struct Segments {
  Segment list[3];
  int n = 0;
  ATTNKIT_INLINE void add(const Segment& s) {
    if (s.count > 0) list[n++] = s;
  }
};

struct Job {
  const Shape& shape;
  const Window& window;
  const Plan& plan;
  const attn_run& run;
  float scale;
  int64_t blocks;
  View<const float> q, k, v;
  View<float> o;
};

// Tasks [begin, end).
struct Body : simd::Work<Job> {
  using Work::Work;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / job.blocks, block = item % job.blocks;
      one(row / job.shape.heads, row % job.shape.heads, block * kBlock,
          job.blocks == 1 ? job.run.queries : std::min(job.run.queries, (block + 1) * kBlock));
    }
  }

  ATTNKIT_INLINE void one(int64_t b, int64_t h, int64_t from, int64_t to) const {
    const Sight sight(job.run, b, job.window.causal);
    float* ring = job.run.state ? ring_of(b, h) : nullptr;
    float* const weights = floats();
    for (int64_t i = from; i < to; ++i) {
      float* o = job.o.row(b, h, i);
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      const auto range = job.window.at(sight.q_pos + i, seen);
      if (range.end <= range.begin) {
        std::memset(o, 0, static_cast<size_t>(job.shape.e) * sizeof(float));
        continue;
      }
      const Segments segments = gather(b, h, ring, sight.past, range);
      const int64_t n = range.end - range.begin;
      const float max = score(job.q.row(b, h, i), segments, n, weights);
      mean(weights, exponentiate(weights, max, n), segments, o);
    }
    if (ring) remember(b, h, sight, ring);
  }

  ATTNKIT_INLINE float* ring_of(int64_t b, int64_t h) const {
    const attn_run& run = job.run;
    auto* bytes =
        static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
    return reinterpret_cast<float*>(bytes) + h * (job.shape.d + job.shape.e);
  }

  ATTNKIT_INLINE Segments gather(int64_t b, int64_t h, const float* ring, int64_t past, Window::Range left) const {
    const int64_t w = job.window.size, d = job.shape.d, token = job.shape.token();
    Segments segments;
    while (ring && left.begin < past && left.begin < left.end) {
      const int64_t slot = left.begin % w, count = std::min(w - slot, std::min(past, left.end) - left.begin);
      const float* k = ring + slot * token;
      segments.add({k, k + d, token, token, count});
      left.begin += count;
    }
    if (left.begin < left.end)
      segments.add({job.k.row(b, h, left.begin - past), job.v.row(b, h, left.begin - past), job.k.next, job.v.next,
                    left.end - left.begin});
    return segments;
  }

  // Only after all queries were answered: a chunk longer than the window overwrites keys that its first queries see.
  ATTNKIT_INLINE void remember(int64_t b, int64_t h, const Sight& sight, float* ring) const {
    const Shape& s = job.shape;
    for (int64_t j = std::max<int64_t>(0, sight.fresh - job.window.size); j < sight.fresh; ++j) {
      float* token = ring + (sight.past + j) % job.window.size * s.token();
      std::memcpy(token, job.k.row(b, h, j), static_cast<size_t>(s.d) * sizeof(float));
      std::memcpy(token + s.d, job.v.row(b, h, j), static_cast<size_t>(s.e) * sizeof(float));
    }
  }

  // Scores of n keys, then -infinity up to a whole vector; a key's score does not depend on its segment.  Returns the
  // max.
  ATTNKIT_INLINE float score(const float* q, const Segments& segments, int64_t n, float* scores) const {
    float* to = scores;
    for (int s = 0; s < segments.n; ++s) {
      const Segment& x = segments.list[s];
      for (int64_t j = 0; j < x.count; j += simd::kLanes)
        simd::dots(q, x.k + j * x.k_next, x.k_next, x.count - j, job.shape.d, to + j);
      to += x.count;
    }
    for (int64_t r = n; r % simd::kLanes != 0; ++r) scores[r] = -__builtin_inff();
    simd::Vec most = -__builtin_inff() - simd::Vec{};
    for (int64_t j = 0; j < n; j += simd::kLanes) {
      const simd::Vec y = simd::at(scores + j).v * job.scale;
      simd::at(scores + j).v = y;
      most = y > most ? y : most;
    }
    float lanes[simd::kLanes], max = -__builtin_inff();
    simd::at(lanes).v = most;
    for (const float x : lanes) max = x > max ? x : max;
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

  ATTNKIT_INLINE void mean(const float* weights, float sum, const Segments& segments, float* o) const {
    const int64_t e = job.shape.e;
    int64_t c = 0;
    for (; c + 4 * simd::kLanes <= e; c += 4 * simd::kLanes) panel<4>(weights, sum, segments, o, c);
    for (; c + simd::kLanes <= e; c += simd::kLanes) panel<1>(weights, sum, segments, o, c);
    if (c < e) panel<1>(weights, sum, segments, o, c, e - c);
  }

  // C vectors, or the first lanes of one.  Keys of even and of odd places in the window are added up separately,
  // wherever their segments begin.
  template <int C>
  ATTNKIT_INLINE void panel(const float* weights, float sum, const Segments& segments, float* o, int64_t c,
                            int64_t lanes = simd::kLanes) const {
    simd::Vec even[C] = {}, odd[C] = {};
    int64_t place = 0;
    for (int s = 0; s < segments.n; ++s) {
      const Segment& x = segments.list[s];
      const float *v = x.v + c, *weight = weights + place;
      int64_t j = 0;
      if (place % 2 != 0) add<C>(weight[j++], v, lanes, odd);
      for (; j + 2 <= x.count; j += 2) {
        add<C>(weight[j], v + j * x.v_next, lanes, even);
        add<C>(weight[j + 1], v + (j + 1) * x.v_next, lanes, odd);
      }
      if (j < x.count) add<C>(weight[j], v + j * x.v_next, lanes, even);
      place += x.count;
    }
    for (int l = 0; l < C; ++l) simd::store((even[l] + odd[l]) / sum, lanes, o + c + l * simd::kLanes);
  }

  template <int C>
  ATTNKIT_INLINE void add(float weight, const float* v, int64_t lanes, simd::Vec* sums) const {
#pragma GCC unroll 4
    for (int l = 0; l < C; ++l) {
      simd::Vec x;
      simd::load(v + l * simd::kLanes, lanes, x);
      sums[l] += weight * x;
    }
  }
};

struct Local {
  static constexpr attnkit::About about{
      .name = "local",
      .summary = "softmax attention in a sliding window: linear cost, constant state, blind beyond the window",
      .citation = "Beltagy et al., Longformer, arXiv:2004.05150; Tay et al., Long Range Arena, ICLR 2021",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("window", 128, 1, 1 << 24,
                                     "w: a query sees keys nearer than w / 2, in causal blocks the last w"),
            attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2")};
  }

  Local(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), b.head_width},
        window{values.integer("window"), b.causal != 0} {
    const double given = values.real("scale");
    // Never 0, which would make the -infinity of lanes past the window NaN.
    scale = std::max(static_cast<float>(given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d))),
                     std::numeric_limits<float>::min());
    io = {ports.query("q", shape.d, "queries"), ports.key("k", shape.d, "keys"), ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "weighted mean of the values in the window")};
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "local attention sees the keys around a query's own position, and positions of a target and a source are not "
          "related in cross attention: use it in self attention, and a mechanism such as softmax or linear here");
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t all = r.past + r.keys, rows = r.batch * shape.heads, both = shape.d + shape.e;
    const Plan plan{attnkit::aligned(size(std::min(window.most(), all) + 2 * simd::kLanes))};
    info.flags = stream && all > 0 && all <= window.size ? ATTN_REWINDS : 0;
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.state_bytes = stream ? attnkit::aligned(size(std::min(all, window.size) * shape.token())) : 0;
    info.flops = static_cast<uint64_t>(rows * window.pairs(r.queries, r.keys, r.past) * (2 * both + 5));
    info.bytes_read =
        size(rows * (r.queries * shape.d + (r.keys + (stream ? window.old(r.queries, r.keys, r.past) : 0)) * both));
    info.bytes_written = size(rows * (r.queries * shape.e + (stream ? std::min(r.keys, window.size) * both : 0)));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Job job{shape,
                  window,
                  plan,
                  run,
                  scale,
                  run.state ? 1 : std::max<int64_t>(1, (run.queries + kBlock - 1) / kBlock),
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<float>(run.ports[io.o])};
    const double queries = static_cast<double>(run.state ? run.queries : std::min(run.queries, kBlock));
    simd::share<Body>(job, run.batch * shape.heads * job.blocks,
                      2.0 * queries * static_cast<double>(window.most() * (shape.d + shape.e)));
  }

  attn_block block;
  Shape shape;
  Window window;
  float scale;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Local)
