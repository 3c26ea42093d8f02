// ssru: a recurrent unit in place of attention; each channel is a mean of what was written into it, forgotten at a rate
// that the newest row decides.  The slow form to compare with the paper: reference.hpp.
//
// Kim, Junczys-Dowmunt, Hassan, Fikri Aji, Heafield, Grundkiewicz and Bogoychev: From Research to Production and Back:
// Ludicrously Fast Neural Machine Translation, WNGT 2019, aclanthology.org/D19-5632, Section 3.1, with a relu.
//
//   o_t = relu(c_t),   c_t = f_t c_(t-1) + (1 - f_t) (x_t W),   f_t = sigmoid(x_t W_f + b_f)
//
// for every channel, c_0 = 0.  Cost per row: 4 d^2 + 4 d flops; state: d floats, the newest c.
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>

#include "gradient.hpp"

namespace {

using attnkit::Layout;
using attnkit::Port;
using attnkit::Sight;
using attnkit::unsupported;
using attnkit::View;
namespace simd = attnkit::simd;

struct Ssru {
  static constexpr attnkit::About about{
      .name = "ssru",
      .summary = "simpler simple recurrent unit: a gated mean per channel, constant state, no attention weights",
      .citation =
          "Kim et al., From Research to Production and Back: Ludicrously Fast Neural Machine Translation, WNGT 2019, "
          "aclanthology.org/D19-5632",
      .state_revision = "1"};
  struct Plan {
    uint64_t run_bytes, backward_bytes;  // scratch of a worker
    int64_t rows, workers;               // batch rows times keys, at most
  };

  static attnkit::Options options() {
    return {attnkit::Option::boolean("projected", false, "passes the result through the block's output projection")};
  }

  Ssru(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), shape{b.heads, b.d_model} {
    const int64_t d = shape.channels;
    if (d % shape.heads != 0)
      throw unsupported("d_model is ", d, ", which its ", shape.heads,
                        " heads do not divide: use another mechanism where heads have a width of their own");
    x = ports.key("x", d, "the block's input itself", ATTN_RAW);
    value = ports.learned("value", {d, d}, "W, a row for each input");
    forget = ports.learned("forget", {d, d}, "W_f, a row for each input");
    forget_bias = ports.learned("forget_bias", {d}, "b_f, of the gate");
    o = ports.output("o", d / shape.heads, "relu(c)", values.boolean("projected") ? 0 : ATTN_RAW);
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw unsupported(
          "a recurrent unit runs over one sequence and has no queries to read another with: use ssru for self "
          "attention and a mechanism such as softmax or linear for cross attention");
    if (!block.causal)
      throw unsupported(
          "a recurrent unit sees what came before alone: use ssru in decoder.self, or make the block causal");
    attnkit::check_sight(block, r);
    const int64_t d = shape.channels, rows = r.batch * r.keys;
    info.state(r, d);
    info.flops = static_cast<uint64_t>(rows * d * (4 * d + 4));
    Plan plan{r.is_f64() ? Layout::measure<ssru::Tile<double>>() : Layout::measure<ssru::Tile<float>>(), 0, rows,
              static_cast<int64_t>(r.workers)};
    plan.backward_bytes = plan.run_bytes;
    info.scratch(r, plan.run_bytes);
    // Of every row x W, the gates and c; and the gradients of x W and x W_f, which all workers need.
    info.train(r, ssru::kSaved * rows * d, plan.backward_bytes, r.real_bytes(2 * rows * d));
    return plan;
  }

  void run(const Plan& plan, const attn_run& run) const {
    attnkit::with_real(attnkit::is_f64(run, o), [&](auto real) { this->run_as<decltype(real)>(plan, run); });
  }

  template <class Real>
  void run_as(const Plan& plan, const attn_run& run) const {
    const ssru::Job<Real> job{shape, run, learned<const Real>(run.ports), {run, x}, {run, o}, attnkit::State(run)};
    constexpr int64_t lanes = simd::Lanes<Real>::count;
    const int64_t batch = run.batch, blocks = (shape.channels + lanes - 1) / lanes;
    // Batch rows that an item runs: together where they are short, since the weights are read once for all.
    const int64_t together = run.keys < ssru::kRows ? std::max<int64_t>(batch, 1) : 1,
                  groups = (batch + together - 1) / together;
    const auto body = [&](auto isa, int64_t begin, int64_t end, void* memory) __attribute__((always_inline)) {
      Layout layout(memory);
      const ssru::Tile<Real> tile(layout);
      for (int64_t item = begin; item < end; ++item) {
        const int64_t from = item / blocks * together;
        for (int64_t b = from; b < std::min(from + together, batch); ++b)
          ssru::Scan<decltype(isa), Real>(job, b, item % blocks * lanes, tile)();
      }
    };
    const double flops = 4.0 * static_cast<double>(lanes * shape.channels * together * std::max(run.keys, run.queries));
    simd::for_items<Real>(run, blocks * groups, {flops, plan.run_bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    attnkit::with_real(attnkit::is_f64(*grad.run, o), [&](auto real) {
      using Real = decltype(real);
      const attn_run& run = *grad.run;
      auto* shared = reinterpret_cast<Real*>(static_cast<char*>(run.exec->scratch) +
                                             plan.backward_bytes * static_cast<uint64_t>(plan.workers));
      const ssru::Gradient<Real> gradient{
          shape,     run,   learned<const Real>(run.ports), learned<Real>(grad.grads), {run, x}, {grad, x},
          {grad, o}, shared};
      gradient(plan.backward_bytes);
    });
  }

  template <class Real>
  ssru::Learned<Real> learned(const attn_tensor* tensors) const {
    const auto view = [tensors](Port port) { return View<Real>(port.of(tensors)); };
    return {view(value), view(forget), view(forget_bias).data};
  }

  // W and W_f uniform (Glorot and Bengio 2010), b_f 0, as Marian has them.
  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port);
    const double bound = std::sqrt(3.0 / static_cast<double>(shape.channels));
    for (int64_t i = 0; i < count; ++i)
      data[i] = port == forget_bias ? 0 : static_cast<float>(bound * (2 * random.uniform() - 1));
  }

  attn_block block;
  ssru::Shape shape;
  Port x, value, forget, forget_bias, o;
};

}  // namespace

ATTNKIT_PLUGIN(Ssru)
