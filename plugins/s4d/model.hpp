// The part of s4d that is the same on every device.
#pragma once
#include <attnkit/kernels/random.hpp>
#include <attnkit/plugin.hpp>

namespace s4d {

using attnkit::Port;
using attnkit::unsupported;
using attnkit::View;

struct Shape {
  int64_t heads, channels, half, directions;  // half: states of a channel, one of each conjugate pair
  int64_t state_floats() const { return channels * (2 * half + 1); }
};

// The learned tensors, or their gradients.  readout: forward, backward.
template <class Real>
struct Learned {
  Real *log_step, *skip;
  View<Real> log_decay, frequency, readout[2];
};

struct Model {
  static constexpr attnkit::About about{
      .name = "s4d",
      .summary = "diagonal state space: a learned filter per channel, constant state, no attention weights",
      .citation =
          "Gu et al., On the Parameterization and Initialization of Diagonal State Space Models, NeurIPS 2022, "
          "arXiv:2206.11893",
      .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Option::integer("order", 64, 2, 1024, "size N of a channel's state, in conjugate pairs: even"),
            attnkit::Option::real("step_min", 1e-3, 1e-9, 1e3, "the least initial step; steps are log-uniform"),
            attnkit::Option::real("step_max", 1e-1, 1e-9, 1e3, "the largest initial step"),
            attnkit::Option::boolean("projected", true, "passes the result through the block's output projection")};
  }

  Model(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model, values.integer("order") / 2, b.causal ? 1 : 2},
        log_min(attnkit::exact_log(values.real("step_min"))),
        log_max(attnkit::exact_log(values.real("step_max"))) {
    if (values.integer("order") % 2 != 0)
      throw unsupported("order is ", values.integer("order"),
                        ", and states come in conjugate pairs: set order to an even number")
          .at(values.index("order"));
    if (shape.channels % shape.heads != 0)
      throw unsupported("d_model is ", shape.channels, ", which its ", shape.heads,
                        " heads do not divide: use another mechanism where heads have a width of their own");
    if (log_min > log_max)
      throw unsupported("step_min is ", values.real("step_min"), " and step_max ", values.real("step_max"),
                        ": set step_min to step_max or less")
          .at(values.index("step_min"));
    const int64_t d = shape.channels, half = shape.half;
    x = ports.key("x", d, "the block's input itself", ATTN_RAW);
    log_step = ports.learned("log_step", {d}, "natural logarithm of a channel's step");
    log_decay = ports.learned("log_decay", {d, half}, "natural logarithm of -Re A");
    frequency = ports.learned("frequency", {d, half}, "Im A");
    skip = ports.learned("skip", {d}, "D, what a row adds of itself to its result");
    readout = ports.learned("readout", {d, half, 2}, "C, real and imaginary part");
    if (!b.causal) readout_back = ports.learned("readout_back", {d, half, 2}, "C of the scan from the end");
    o = ports.output("o", d / shape.heads, "the filtered sequence", values.boolean("projected") ? 0 : ATTN_RAW);
  }

  // Refuses what no device can do, and counts state and work.
  void count(const attnkit::Request& r, attnkit::Info& info) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw unsupported(
          "a state space filters one sequence and has no queries to read another with: use s4d for self attention and "
          "a mechanism such as softmax or linear for cross attention");
    attnkit::check_sight(block, r);
    if (r.shows_prefixes())
      throw unsupported(
          "a bidirectional state space would have to run anew for every length of the visible prefix: run it without "
          "ATTN_PREFIX, or make the block causal");
    const int64_t d = shape.channels, order = 2 * shape.half, sides = shape.directions;
    info.state(r, shape.state_floats());
    info.flops = static_cast<uint64_t>(r.batch * d) *
                 static_cast<uint64_t>(4 * sides * order * r.keys + (2 * sides * order + 2) * r.queries);
  }

  template <class Real>
  Learned<Real> learned(const attn_tensor* tensors) const {
    const auto view = [tensors](Port port) { return View<Real>(port.of(tensors)); };
    return {
        view(log_step).data, view(skip).data, view(log_decay), view(frequency), {view(readout), view(readout_back)}};
  }

  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) {
      double number = random.normal();
      if (port == log_step) number = log_min + random.uniform() * (log_max - log_min);
      if (port == log_decay) number = -0.69314718055994531;
      if (port == frequency) number = 3.1415926535897932 * static_cast<double>(i % shape.half);
      if (port == readout || port == readout_back) number *= 0.70710678118654752;  // a complex number of variance 1
      data[i] = static_cast<float>(number);
    }
  }

  attn_block block;
  Shape shape;
  double log_min, log_max;
  Port x, log_step, log_decay, frequency, skip, readout, readout_back, o;
};

}  // namespace s4d
