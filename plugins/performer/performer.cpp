// performer: softmax attention estimated with positive random features (FAVOR+).
//
// Choromanski et al.: Rethinking Attention with Performers, ICLR 2021, arXiv:2009.14794.
//
//   o_i = sum_j (A_i . B_j) v_j / g(sum_j A_i . B_j),   A_i = phi(Q_i), B_j = phi(K_j),   x^ = D^-1/4 x
//   phi(x)_f = m^-1/2 (e^(w_f . x^ - |x^|^2 / 2 - c) + feature_eps),   E[phi(q) . phi(k)] e^(..c) = e^(q . k / D^1/2)
//
// c, the stabiliser, keeps e^ within range.  While feature_eps is 0 and there is no guard it cancels, so each feature
// may have its own, here one that follows the keys: S_f = sum_j e^(a_jf - c_f) v_j, and queries carry e^(c_f).  Cost
// per head: 2 m (D + E + 1)(N + M) flops; state m (E + 2) floats, whatever the length.
#include <attnkit/kernels/work.hpp>

#include "head.hpp"
#include "omega.hpp"

namespace {

using attnkit::Guard;
using attnkit::Sight;
using attnkit::View;
namespace linear = attnkit::linear;
using namespace attnkit::performer;

struct Plan {
  linear::Plan core;
  uint64_t worker_bytes;
};

struct Job {
  const linear::Shape& shape;
  const Guard& guard;
  const Map& map;
  const Plan& plan;
  const attn_run& run;
  bool causal;
  View<const float> q, k, v, omega;
  View<float> o;
};

// Heads [begin, end) of all batch rows; omega is laid out once for all of them.
struct Body : attnkit::simd::Work<Job> {
  using Work::Work;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const Map& map = job.map;
    char* const scratch = this->scratch();
    auto* own = reinterpret_cast<float*>(scratch + job.plan.core.worker_bytes);
    transpose(job.omega, map.scale, map.m, map.d, own);
    for (int64_t item = begin; item < end; ++item)
      one<Isa>(item / job.shape.heads, item % job.shape.heads, scratch, own);
  }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h, char* scratch, float* t) const {
    const linear::Shape& shape = job.shape;
    const attn_run& run = job.run;
    const Map& map = job.map;
    const Sight sight(run, b, job.causal);
    float* s = state(b, h, scratch);
    float *z = s + map.m * shape.values, *rows = t + padded(map.m) * map.d;
    const Projected<Isa> keys(t, map.m, map.d, job.k.row(b, h, 0), job.k.next, sight.fresh, rows);
    rows += kAhead * padded(map.m);
    Head<Isa> head{map,
                   linear::Walker<Isa>(shape, job.guard, s, reinterpret_cast<float*>(scratch)),
                   Projected<Isa>(t, map.m, map.d, job.q.row(b, h, 0), job.q.next, sight.queries, rows),
                   keys,
                   s,
                   z,
                   z + map.m,
                   shape.values,
                   map.stabiliser == Stabiliser::kFixed ? map.fixed : 0};
    if (map.stabiliser == Stabiliser::kGlobal) {
      head.constant = most(head.keys, sight.fresh);
      head.keys = keys;  // from the first one again
    }
    walk(head, sight, b, h);
  }

  template <class Isa>
  ATTNKIT_INLINE void walk(Head<Isa>& head, const Sight& sight, int64_t b, int64_t h) const {
    int64_t appended = 0;
    for (int64_t i = 0; i < job.run.queries; ++i) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      if (seen <= 0) {
        std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(job.shape.values) * sizeof(float));
        continue;
      }
      for (; appended < seen - sight.past; ++appended)
        head.append(appended, sight.past + appended == 0, job.v.row(b, h, appended));
      head.read(i, job.o.row(b, h, i));
    }
    for (; job.run.state && appended < sight.fresh; ++appended)
      head.append(appended, sight.past + appended == 0, job.v.row(b, h, appended));
    head.walker.flush();
  }

  // S, z and, when running, c of one head: in the state, or zeros in scratch.
  ATTNKIT_INLINE float* state(int64_t b, int64_t h, char* scratch) const {
    const attn_run& run = job.run;
    const uint64_t bytes = job.shape.head_bytes();
    if (run.state) {
      const auto slot = static_cast<uint64_t>(run.slots ? run.slots[b] : b);
      return reinterpret_cast<float*>(static_cast<char*>(run.state) + slot * run.state_stride +
                                      static_cast<uint64_t>(h) * bytes);
    }
    char* s = scratch + job.plan.core.worker_bytes - attnkit::aligned(bytes);
    std::memset(s, 0, bytes);
    return reinterpret_cast<float*>(s);
  }

  // The largest w_f . k^ of n keys.
  template <class Isa>
  ATTNKIT_INLINE float most(Projected<Isa>& keys, int64_t n) const {
    Vec max = -__builtin_inff() - Vec{};
    for (int64_t j = 0; j < n; ++j) {
      const float* p = keys(j);
      for (int64_t f = 0; f < job.map.m; f += kLanes) max = at(p + f).v > max ? at(p + f).v : max;
    }
    return largest(max);
  }
};

struct Performer {
  static constexpr attnkit::About about{
      .name = "performer",
      .summary = "softmax attention estimated with positive random features (FAVOR+): constant state, streams",
      .citation = "Choromanski et al., Rethinking Attention with Performers, ICLR 2021, arXiv:2009.14794",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    using attnkit::Option;
    return {Option::integer("features", 128, 1, 65536, "random features m: rows of omega"),
            Option::real("feature_eps", 0, 0, 1, "added to every feature; not the guard's eps"),
            Option::text("scaling", "gaussian", {"gaussian", "sqrt_d"},
                         "norms of omega's rows: those of independent Gaussian rows, or all D^1/2"),
            Option::text("stabiliser", "running", {"running", "fixed", "global"},
                         "what exponents of keys are lowered by: a running maximum, the option fixed, or the largest "
                         "projection of all keys of the head"),
            Option::real("fixed", 0, -1e4, 1e4, "the constant of stabiliser = fixed; part of the model"),
            Guard::option("none"),
            Guard::eps_option(1e-6)};
  }

  Performer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), values.integer("features"), b.head_width},
        guard(Guard::from(values)),
        equal_norms(values.text("scaling") == "sqrt_d") {
    const double width = static_cast<double>(shape.width);
    map = {shape.features,
           shape.width,
           Stabiliser::kRunning,
           static_cast<float>(1 / std::sqrt(std::sqrt(width))),
           static_cast<float>(1 / std::sqrt(width)),
           static_cast<float>(values.real("fixed")),
           static_cast<float>(values.real("feature_eps")),
           values.real("feature_eps") == 0 && guard.kind == Guard::kNone};
    choose(values);
    shape.extra = map.stabiliser == Stabiliser::kRunning ? shape.features : 0;
    io = {ports.query("q", shape.width, "queries"), ports.key("k", shape.width, "keys"),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted mean of the values")};
    omega = ports.table("omega", {shape.features, shape.width}, "random directions, shared by the heads");
  }

  void choose(const attnkit::Values& values) {
    const auto name = values.text("stabiliser");
    const auto refuse = [&](const char* option, const std::string& message) {
      return attnkit::Refusal(ATTN_UNSUPPORTED, message, values.index(option));
    };
    if (name == "running" && map.eps > 0)
      throw refuse("feature_eps", attnkit::say("feature_eps = ", values.real("feature_eps"),
                                               " would make results depend on the order of the keys, because a running "
                                               "stabiliser only cancels at 0: set stabiliser to fixed or global"));
    if (name == "running" && guard.kind != Guard::kNone)
      throw refuse("guard",
                   attnkit::say("guard = ", values.text("guard"),
                                " needs a scale and a running stabiliser has none of its own; its denominators "
                                "are 1 or more: leave the guard none, or set stabiliser to fixed or global"));
    if (name != "fixed" && map.fixed != 0)
      throw refuse("fixed", attnkit::say("fixed = ", values.real("fixed"), " is not read when stabiliser is ", name,
                                         ": set stabiliser to fixed, or leave fixed out"));
    if (name == "fixed") map.stabiliser = Stabiliser::kFixed;
    if (name == "global" && !map.cancels) map.stabiliser = Stabiliser::kGlobal;
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    if (map.stabiliser == Stabiliser::kGlobal && (block.causal || request.flags & (ATTN_STREAM | ATTN_PREFIX)))
      throw attnkit::unsupported(
          "stabiliser = global with feature_eps or a guard lets keys that a query does not see yet change its result, "
          "because a maximum over all keys does not cancel then: set feature_eps to 0 and guard to none, or stabiliser "
          "to fixed, for causal blocks, streams and prefixes");
    Plan plan{attnkit::linear::plan(shape, request, 2.0 * static_cast<double>(map.m * map.d), info), 0};
    const int64_t floats = padded(map.m) * (map.d + 2 * kAhead);
    plan.worker_bytes = plan.core.worker_bytes + attnkit::aligned(static_cast<uint64_t>(floats) * sizeof(float));
    info.scratch_bytes = plan.worker_bytes * request.workers;
    if (request.batch > 0) info.bytes_read += static_cast<uint64_t>(map.m * map.d) * sizeof(float);
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Job job{shape,
                  guard,
                  map,
                  plan,
                  run,
                  block.causal != 0,
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<const float>(run.ports[omega]),
                  View<float>(run.ports[io.o])};
    const double flops = 2.0 * static_cast<double>((run.queries + run.keys) * map.m * (map.d + shape.values + 1));
    attnkit::simd::share_heads<Body>(job, flops);
  }

  void fill(uint32_t port, uint64_t seed, float* data, int64_t) const {
    draw_omega(attnkit::Random(seed, port), equal_norms, map.m, map.d, data);
  }

  attn_block block;
  linear::Shape shape;
  Guard guard;
  bool equal_norms;
  Map map;
  linear::Ports io;
  uint32_t omega;
};

}  // namespace

ATTNKIT_PLUGIN(Performer)
