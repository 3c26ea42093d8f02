// skyformer: the Gaussian kernel of queries and keys, approximated from a few sampled rows of both.
// The slow form to compare with the paper: reference.hpp.
//
// Chen, Zeng, Ji, Yang: Skyformer: Remodel Self-Attention with Gaussian Kernel and Nystrom Method, NeurIPS 2021,
// arXiv:2111.00035.
//
//   o ~ exp(-s^2 |Q_i - K_j|^2 / 2) v, without a denominator;  k(x, y) = exp(-s^2 |x - y|^2 / 2),  s = D^-1/4
//   A = k([Q; K], X),  X = m sampled rows of [Q; K],  M = A_X + gamma I,  delta = diag(M 1)^-1/2
//   o = A_Q delta Z delta A_K^T v,   Z ~ (delta M delta)^-1 by some steps of a fixed iteration
//
// Keys are summed to S = A_K^T v as in kernels/linear.hpp, queries read delta Z delta S.  Cost per head:
// m (3 D + 2 E)(N+M) + 3 D m^2 + 8 m^3 steps + 2 m^2 E flops; no state, since every query needs every key and sample.
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>

#include "gaussian.hpp"

namespace {

using attnkit::Sight;
using attnkit::View;
using skyformer::kRows;
using skyformer::Model;
using skyformer::Scratch;
namespace simd = attnkit::simd;

struct Ports {
  uint32_t q, k, v, samples, o;
};

struct Plan {
  uint64_t worker_bytes;
};

struct Job {
  const Model& model;
  const Plan& plan;
  const attn_run& run;
  const float* samples;
  View<const float> q, k, v;
  View<float> o;
};

// Heads [begin, end) of all batch rows.
struct Body : simd::Work<Job> {
  using Work::Work;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    Scratch scratch;
    scratch.lay(job.model, this->scratch());
    for (int64_t item = begin; item < end; ++item) one<Isa>(item / job.model.heads, item % job.model.heads, scratch);
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, const Scratch& scratch) const {
    const Model& model = job.model;
    const Sight sight(job.run, b, false);
    const int64_t queries = sight.fresh > 0 ? sight.queries : 0;
    for (int64_t i = 0; i < job.run.queries; ++i)
      std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(model.e) * sizeof(float));
    if (queries == 0) return;
    gather(b, h, sight, scratch.x);
    std::memset(scratch.s, 0, static_cast<size_t>(model.m * model.e) * sizeof(float));
    for (int64_t j = 0; j < sight.fresh; j += kRows) {
      const int64_t n = std::min(kRows, sight.fresh - j);
      skyformer::weigh<Isa>(model, job.k.row(b, h, j), job.k.next, n, scratch);
      attnkit::linear::Event events[kRows];
      for (int64_t r = 0; r < n; ++r)
        events[r] = {scratch.weights + r * model.padded(), job.v.row(b, h, j + r), nullptr, nullptr, 0};
      attnkit::linear::sweep<Isa>(scratch.s, model.m, model.e, events, n);
    }
    skyformer::solve<Isa>(model, scratch);
    for (int64_t i = 0; i < queries; i += kRows) {
      const int64_t n = std::min(kRows, queries - i);
      skyformer::weigh<Isa>(model, job.q.row(b, h, i), job.q.next, n, scratch);
      attnkit::linear::Event events[kRows];
      for (int64_t r = 0; r < n; ++r)
        events[r] = {nullptr, nullptr, scratch.weights + r * model.padded(), job.o.row(b, h, i + r), 0};
      attnkit::linear::sweep<Isa>(scratch.u, model.m, model.e, events, n);
    }
  }

  // Samples are places in [Q; K], from 0 to 1 in Q and from 1 to 2 in K, whatever the length of the row.
  ATTNKIT_INLINE void gather(int64_t b, int64_t h, const Sight& sight, float* x) const {
    const int64_t m = job.model.m, next = job.model.padded();
    for (int64_t i = 0; i < next; ++i) {
      const double place = i < m ? job.samples[i] : 0.0;
      const float* row = place < 1
                             ? job.q.row(b, h, static_cast<int64_t>(place * static_cast<double>(sight.queries)))
                             : job.k.row(b, h, static_cast<int64_t>((place - 1) * static_cast<double>(sight.fresh)));
      for (int64_t f = 0; f < job.model.d; ++f) x[f * next + i] = row[f];
    }
  }
};

struct Skyformer {
  static constexpr attnkit::About about{
      .name = "skyformer",
      .summary = "a Gaussian kernel by the Nystrom method over sampled queries and keys: linear cost, encoders only",
      .citation = "Chen et al., Skyformer, NeurIPS 2021, arXiv:2111.00035",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("samples", 128, 1, 1024, "m, rows sampled from queries and keys, half from each"),
            attnkit::Option::real("gamma", 0.1, 0, 1e6, "added to the diagonal, which rows sampled twice make needful"),
            attnkit::Option::integer("iterations", 6, 1, 16, "steps of the iteration for the inverse"),
            attnkit::Option::real("scale", 0, 0, 1e6, "multiplies queries and keys; 0 means D^-1/4")};
  }

  Skyformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports) : block(b) {
    const int64_t d = b.d_model / static_cast<int64_t>(b.heads);
    const double given = values.real("scale");
    model = {b.heads,
             d,
             b.head_width,
             values.integer("samples"),
             values.integer("iterations"),
             given != 0 ? given : std::pow(static_cast<double>(d), -0.25),
             values.real("gamma")};
    io.q = ports.query("q", d, "queries");
    io.k = ports.key("k", d, "keys");
    io.v = ports.key("v", model.e, "values");
    io.samples = ports.table("samples", {model.m}, "places of the sampled rows: 0 to 1 in queries, 1 to 2 in keys");
    io.o = ports.output("o", model.e, "values weighted by the kernel");
  }

  // The first half uniform in [0, 1), the rest in [1, 2), by 24 and 23 bits, so that none rounds up to the bound.
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) {
      const bool query = i < count / 2;
      const auto bits = static_cast<double>(random.bits() >> (query ? 40 : 41));
      data[i] = static_cast<float>(query ? bits * 0x1p-24 : 1 + bits * 0x1p-23);
    }
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    check(r);
    Scratch scratch;
    const Plan plan{scratch.lay(model, nullptr)};
    const auto items = static_cast<uint64_t>(r.batch * model.heads);
    info.scratch_bytes = plan.worker_bytes * r.workers;
    if (works(r.batch, r.queries, r.keys)) {
      info.flops = items * static_cast<uint64_t>(model.flops(r.queries + r.keys));
      info.bytes_read = items * static_cast<uint64_t>(r.queries * model.d + r.keys * (model.d + model.e)) * 4 +
                        static_cast<uint64_t>(model.m) * 4;
    }
    info.bytes_written = items * static_cast<uint64_t>(r.queries * model.e) * 4;
    return plan;
  }

  // Otherwise a run only writes zeros.
  static bool works(int64_t batch, int64_t queries, int64_t keys) { return batch > 0 && queries > 0 && keys > 0; }

  void check(const attn_request& r) const {
    attnkit::check::only_f32(r);
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "Skyformer samples its landmarks from the queries and keys of one sequence and is not defined across two: "
          "use it in encoder.self, and a mechanism such as softmax, linear or relu here");
    if (block.causal)
      throw attnkit::unsupported(
          "Skyformer passes every value through rows sampled from the whole sequence, later ones included, so it "
          "cannot be causal: make the block bidirectional, or use a mechanism such as softmax, linear or relu");
    if (r.flags & ATTN_STREAM)
      throw attnkit::unsupported(
          "Skyformer cannot stream: its sampled rows are places in the whole sequence, and each new token would move "
          "them: run whole sequences");
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "Skyformer has no prefix form: its sampled rows may lie beyond what a query is to see: run it without "
          "ATTN_PREFIX");
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto* samples = static_cast<const float*>(run.ports[io.samples].data);
    for (int64_t i = 0; i < model.m && works(run.batch, run.queries, run.keys); ++i)
      if (!(samples[i] >= 0 && samples[i] < 2))
        throw attnkit::Refusal(ATTN_INVALID,
                               attnkit::say("samples[", i, "] is ", double{samples[i]},
                                            ": a place among the queries is 0 to 1, one among the keys 1 to 2"),
                               static_cast<int32_t>(io.samples));
    const Job job{model,
                  plan,
                  run,
                  samples,
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<float>(run.ports[io.o])};
    simd::share<Body>(job, run.batch * model.heads, model.flops(run.queries + run.keys));
  }

  attn_block block;
  Model model{};
  Ports io{};
};

}  // namespace

ATTNKIT_PLUGIN(Skyformer)
