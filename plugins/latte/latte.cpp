// latte: attention through latents, softmax over the latents of a query times softmax over the positions of each
// latent.
// The slow form to compare with the paper: reference.hpp.
//
// Dolga, Cobzarenco, Barber: Latent Attention for Linear Time Transformers, 2024, arXiv:2402.17512.
//
//   o_i = sum_l softmax_l(a_i)_l sum_j softmax_j(b_.l)_j v_j,   a = X W_q [N, l], b = X W_k [M, l], l = L / H per head
//
// over the keys j that query i sees.  It runs as the paper's causal recursion with a running maximum m in every form:
//
//   m_l' = max(m_l, b_jl),  f_l = e^(m_l - m_l'),  z_l' = z_l f_l + e^(b_jl - m_l'),  S_l' = S_l f_l + e^(b_jl - m_l')
//   v_j o_i  = (sum_l e^(a_il - max a_i) S_l / z_l) / sum_l e^(a_il - max a_i)
//
// z >= 1 after the first key, so nothing stands under the fraction but z.  Cost per head: 2 l (E+1)(N+M) flops; state
// l (E+2) floats, whatever the length.
#include <attnkit/kernels/work.hpp>

#include "latents.hpp"

namespace {

using attnkit::Sight;
using attnkit::View;
using latte::Shape;

struct Ports {
  uint32_t q, k, v, o;
};

struct Plan {
  uint64_t worker_bytes;  // rows of the events, then S, z, m if stateless
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  bool causal;
  View<const float> q, k, v;
  View<float> o;
};

struct Body : attnkit::simd::HeadWork<Body, Job> {
  using HeadWork::HeadWork;

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const attn_run& run = job.run;
    char* const rows = scratch();
    latte::Walker<Isa> walker(job.shape, head(b, h, rows), reinterpret_cast<float*>(rows));
    const Sight sight(run, b, job.causal);
    int64_t appended = 0;
    const auto append_to = [&](int64_t limit) __attribute__((always_inline)) {
      for (; appended < limit; ++appended) walker.append(job.k.row(b, h, appended), job.v.row(b, h, appended));
    };
    for (int64_t i = 0; i < run.queries; ++i) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      if (seen <= 0) {
        std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(job.shape.values) * sizeof(float));
        continue;
      }
      append_to(seen - sight.past);
      walker.read(job.q.row(b, h, i), job.o.row(b, h, i));
    }
    if (run.state) append_to(sight.fresh);
    walker.flush();
  }

  ATTNKIT_INLINE float* head(int64_t b, int64_t h, char* rows) const {
    const attn_run& run = job.run;
    const uint64_t bytes = job.shape.head_bytes();
    if (run.state) {
      auto* row =
          static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
      return reinterpret_cast<float*>(row + static_cast<uint64_t>(h) * bytes);
    }
    auto* fresh = rows + attnkit::aligned(job.shape.rows_bytes());
    std::memset(fresh, 0, bytes);
    return reinterpret_cast<float*>(fresh);
  }
};

struct Latte {
  static constexpr attnkit::About about{
      .name = "latte",
      .summary = "attention through latents: linear cost, a state of constant size",
      .citation = "Dolga, Cobzarenco and Barber, Latent Attention for Linear Time Transformers, arXiv:2402.17512",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("latents", 0, 0, 1 << 16,
                                     "L, the latents of all heads together; heads must divide it; 0 means d_model"),
            attnkit::Option::text("scale", "none", {"none", "inverse_sqrt"},
                                  "multiplies both logits by 1 (none) or D^-1/2 (inverse_sqrt), D = d_model / heads"),
            attnkit::Option::boolean("cross", false,
                                     "allows cross attention, which the paper does not define: queries' latents from "
                                     "the target, keys' latents and values from the source")};
  }

  Latte(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), cross(values.boolean("cross")) {
    const int64_t given = values.integer("latents"), all = given != 0 ? given : b.d_model;
    if (all % b.heads != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("latents ", all, " cannot be shared out among ", b.heads,
                                          " heads: choose a multiple of ", b.heads),
                             values.index("latents"));
    const double d = static_cast<double>(b.d_model) / b.heads;
    const double scale = values.text("scale") == "none" ? 1 : 1 / std::sqrt(d);
    shape = {b.heads, all / b.heads, b.head_width, static_cast<float>(scale)};
    io = {ports.query("latent_q", shape.latents, "a query's logits over the latents of its head", ATTN_NO_BIAS),
          ports.key("latent_k", shape.latents, "a position's logits for each latent of its head", ATTN_NO_BIAS),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted mean of the values")};
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    if (block.role == ATTN_DECODER_CROSS && !cross)
      throw attnkit::unsupported(
          "Latte's paper defines self attention alone: set cross = true for the form with queries' latents from the "
          "target and keys' latents and values from the source, or use another mechanism here");
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto items = static_cast<uint64_t>(r.batch * shape.heads);
    const uint64_t head = shape.head_bytes(), state = stream ? items * head : 0;
    const Plan plan{attnkit::aligned(shape.rows_bytes()) + (stream ? 0 : attnkit::aligned(head))};
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.state_bytes = stream ? attnkit::aligned(static_cast<uint64_t>(shape.heads) * head) : 0;
    info.flops = items * static_cast<uint64_t>(flops(r.queries + r.keys));
    info.bytes_read =
        items * static_cast<uint64_t>(r.queries * shape.latents + r.keys * (shape.latents + shape.values)) * 4 + state;
    info.bytes_written = items * static_cast<uint64_t>(r.queries * shape.values) * 4 + (r.keys > 0 ? state : 0);
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Job job{shape,
                  plan,
                  run,
                  block.causal != 0,
                  View<const float>(run.ports[io.q]),
                  View<const float>(run.ports[io.k]),
                  View<const float>(run.ports[io.v]),
                  View<float>(run.ports[io.o])};
    attnkit::simd::share_heads<Body>(job, static_cast<double>(flops(run.queries + run.keys)));
  }

  // Of one head with this many queries and keys together.
  int64_t flops(int64_t rows) const { return 2 * shape.latents * (shape.values + 1) * rows; }

  attn_block block;
  bool cross;
  Shape shape{};
  Ports io{};
};

}  // namespace

ATTNKIT_PLUGIN(Latte)
