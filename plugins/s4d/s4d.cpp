// s4d: a diagonal state space in place of attention; each channel is filtered by a sum of damped oscillations.
// The slow form to compare with the paper: reference.hpp.
//
// Gu, Gupta, Goel and Re: On the Parameterization and Initialization of Diagonal State Space Models, NeurIPS 2022,
// arXiv:2206.11893, S4D-Lin with zero-order hold.
//
//   y_t = Re sum_n G_n . h_t,n + D u_t,   h_t = h_(t-1) + (e^(dA) - 1) h_(t-1) + u_t,   G = 2 C (e^(dA) - 1) / A
//
// per channel, A_n = -e^a_n + i w_n for one of each conjugate pair, n = 1 ... order / 2.  It is the paper's
// x_t = e^(dA) x_(t-1) + B u_t, y_t = 2 Re C . x_t + D u_t, with B = (e^(dA) - 1) / A moved into the readout.  In a
// bidirectional block a second readout of the same oscillations runs from the end over the rows after t.  Cost per
// channel and row: 6 order + 2 flops, 10 order + 2 in both directions; state per channel: order + 1 floats.
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>

#include "filter.hpp"

namespace {

using attnkit::View;
using s4d::Filter;
using s4d::Job;
using s4d::kTile;
using s4d::Shape;
namespace simd = attnkit::simd;
using simd::kLanes;

struct Ports {
  uint32_t x, log_step, log_decay, frequency, skip, readout, backward, o;
};

// Items [begin, end): 16 channels of some batch rows each.
struct Body : simd::Work<Job> {
  using Work::Work;

  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const Shape& shape = job.shape;
    const int64_t blocks = (shape.channels + kLanes - 1) / kLanes;
    float* const scratch = floats();
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item % blocks * kLanes, row = item / blocks * job.rows_of_item;
      s4d::discretise<Isa>(job.learned, shape.channels, first, shape.directions, {scratch, shape.half});
      for (int64_t b = row; b < std::min(row + job.rows_of_item, job.run.batch); ++b)
        Filter<Isa>(job, b, first, scratch)();
    }
  }
};

struct S4d {
  static constexpr attnkit::About about{
      .name = "s4d",
      .summary = "diagonal state space: a learned filter per channel, constant state, no attention weights",
      .citation =
          "Gu et al., On the Parameterization and Initialization of Diagonal State Space Models, NeurIPS 2022, "
          "arXiv:2206.11893",
      .state_revision = "1"};
  using Plan = s4d::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("order", 64, 2, 1024, "size N of a channel's state, in conjugate pairs: even"),
            attnkit::Option::real("step_min", 1e-3, 1e-9, 1e3, "the least initial step; steps are log-uniform"),
            attnkit::Option::real("step_max", 1e-1, 1e-9, 1e3, "the largest initial step"),
            attnkit::Option::boolean("projected", true, "passes the result through the block's output projection")};
  }

  S4d(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model, values.integer("order") / 2, b.causal ? 1 : 2},
        log_min(attnkit::exact_log(values.real("step_min"))),
        log_max(attnkit::exact_log(values.real("step_max"))) {
    if (values.integer("order") % 2 != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("order is ", values.integer("order"),
                                          ", and states come in conjugate pairs: set order to an even number"),
                             values.index("order"));
    if (log_min > log_max)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("step_min is ", values.real("step_min"), " and step_max ",
                                          values.real("step_max"), ": set step_min to step_max or less"),
                             values.index("step_min"));
    const int64_t d = shape.channels, half = shape.half;
    io.x = ports.key("x", d, "the block's input itself", ATTN_RAW);
    io.log_step = ports.learned("log_step", {d}, "natural logarithm of a channel's step");
    io.log_decay = ports.learned("log_decay", {d, half}, "natural logarithm of -Re A");
    io.frequency = ports.learned("frequency", {d, half}, "Im A");
    io.skip = ports.learned("skip", {d}, "D, what a row adds of itself to its result");
    io.readout = ports.learned("readout", {d, half, 2}, "C, real and imaginary part");
    io.backward = io.readout;
    if (!b.causal) io.backward = ports.learned("readout_back", {d, half, 2}, "C of the scan from the end");
    io.o = ports.output("o", d / shape.heads, "the filtered sequence", values.boolean("projected") ? 0 : ATTN_RAW);
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "a state space filters one sequence and has no queries to read another with: use s4d for self attention and "
          "a mechanism such as softmax or linear for cross attention");
    attnkit::check_sight(block, r);
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "a bidirectional state space would have to run anew for every length of the visible prefix: run it without "
          "ATTN_PREFIX, or make the block causal");
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const Plan plan{attnkit::aligned(size(shape.worker_floats()))};
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const int64_t d = shape.channels, order = 2 * shape.half, sides = shape.directions;
    const uint64_t state = stream ? size(r.batch * shape.state_floats()) : 0;
    const int64_t learned = r.batch > 0 && r.queries + r.keys > 0 ? d * (2 + order * (1 + sides)) : 0;
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.state_bytes = stream ? attnkit::aligned(size(shape.state_floats())) : 0;
    info.flops = static_cast<uint64_t>(r.batch * d) *
                 static_cast<uint64_t>(4 * sides * order * r.keys + (2 * sides * order + 2) * r.queries);
    info.bytes_read = size(r.batch * r.keys * d + learned) + state;
    info.bytes_written = size(r.batch * r.queries * d) + (r.keys > 0 ? state : 0);
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto row = [&run](uint32_t port) { return static_cast<const float*>(run.ports[port].data); };
    const auto view = [&run](uint32_t port) { return View<const float>(run.ports[port]); };
    const bool many = run.keys < kTile;  // then making the discrete form costs as much as running it
    const Job job{
        shape,
        plan,
        run,
        block.causal != 0,
        many ? std::max<int64_t>(run.batch, 1) : 1,
        {row(io.log_step), row(io.skip), view(io.log_decay), view(io.frequency), {view(io.readout), view(io.backward)}},
        view(io.x),
        View<float>(run.ports[io.o]),
        shape.channels / shape.heads};
    const int64_t blocks = (shape.channels + kLanes - 1) / kLanes;
    const int64_t groups = (run.batch + job.rows_of_item - 1) / job.rows_of_item;
    const auto rows = static_cast<double>(std::max(run.keys, run.queries) * job.rows_of_item);
    simd::share<Body>(job, blocks * groups,
                      static_cast<double>(kLanes * shape.half * shape.directions) * (12 * rows + 200));
  }

  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) {
      double x = random.normal();
      if (port == io.log_step) x = log_min + random.uniform() * (log_max - log_min);
      if (port == io.log_decay) x = -0.69314718055994531;
      if (port == io.frequency) x = 3.1415926535897932 * static_cast<double>(i % shape.half);
      if (port == io.readout || port == io.backward) x *= 0.70710678118654752;  // a complex number of variance 1
      data[i] = static_cast<float>(x);
    }
  }

  attn_block block;
  Shape shape;
  double log_min, log_max;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(S4d)
