// mean: every query gets the mean of the values it sees, the newer ones weighted more if asked.
//
//   o_i = sum_j decay^(n_i - j) v_j / sum_j decay^(n_i - j),   j = 1 ... n_i, the keys that query i sees
//
// It reads no queries, so it is no useful attention, but it is the smallest one that streams.  Cost per head: 2 (E+1)
// flops per key, E per query; state E+1 floats, whatever the length: the weighted sum of the values, then of 1.
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>

namespace {

struct Mean {
  static constexpr attnkit::About about{.name = "mean",
                                        .summary = "the mean of the values: the smallest mechanism that streams",
                                        .citation = "none, a sample of attnkit",
                                        .state_revision = "1"};
  struct Plan {};

  static attnkit::Options options() {
    return {attnkit::Option::real("decay", 1, 0, 1, "weight of a value relative to the next newer one")};
  }

  Mean(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), heads(b.heads), e(b.head_width), decay(static_cast<float>(values.real("decay"))) {
    v = ports.key("v", e, "values");
    o = ports.output("o", e, "mean of the values");
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    info.state(r, heads * (e + 1));
    info.scratch_bytes = r.streams() ? 0 : attnkit::aligned(r.real_bytes(e + 1));
    info.flops = static_cast<uint64_t>(r.batch * heads * (r.keys * 2 * (e + 1) + r.queries * e));
    return {};
  }

  void run(const Plan&, const attn_run& run) const {
    attnkit::with_real(attnkit::is_f64(run, o), [&](auto real) {
      for (int64_t b = 0; b < run.batch; ++b)
        for (int64_t h = 0; h < heads; ++h) one<decltype(real)>(run, b, h);
    });
  }

  // One head of one batch row, in float or double.
  template <class Real>
  void one(const attn_run& run, int64_t b, int64_t h) const {
    const attnkit::State state(run);
    const attnkit::View<const Real> values(run, v);
    const attnkit::View<Real> out(run, o);
    Real* sums = state.head(b, h, e + 1, static_cast<Real*>(run.exec->scratch));
    const auto append = [&](int64_t from, int64_t to) {
      for (int64_t j = from; j < to; ++j) {
        for (int64_t c = 0; c < e; ++c) sums[c] = decay * sums[c] + values.row(b, h, j)[c];
        sums[e] = decay * sums[e] + 1;
      }
    };
    const auto read = [&](int64_t i) {
      for (int64_t c = 0; c < e; ++c) out.row(b, h, i)[c] = sums[c] / sums[e];
    };
    attnkit::Sight(run, b, block.causal != 0).walk(bool{state}, append, read);
  }

  void backward(const Plan&, const attn_grad& grad) const {
    attnkit::with_real(attnkit::is_f64(*grad.run, o), [&](auto real) {
      for (int64_t b = 0; b < grad.run->batch; ++b)
        for (int64_t h = 0; h < heads; ++h) gradient<decltype(real)>(grad, b, h);
    });
  }

  // dv_j = decay dv_(j+1) + sum_i do_i / sum of i's weights, over the queries i whose newest key is j.
  template <class Real>
  void gradient(const attn_grad& grad, int64_t b, int64_t h) const {
    const attnkit::View<const Real> given(grad, o);
    const attnkit::View<Real> dv(grad, v);
    const attnkit::Sight sight(*grad.run, b, block.causal != 0);
    int64_t left = sight.queries;
    for (int64_t j = dv ? sight.fresh - 1 : -1; j >= 0; --j) {
      const double n = static_cast<double>(j + 1), d = decay, weights = d == 1 ? n : (1 - std::pow(d, n)) / (1 - d);
      for (; left > 0 && sight.seen(left - 1) == j + 1; --left)
        for (int64_t c = 0; c < e; ++c) dv.row(b, h, j)[c] += given.row(b, h, left - 1)[c] / weights;
      for (int64_t c = 0; j > 0 && c < e; ++c) dv.row(b, h, j - 1)[c] = decay * dv.row(b, h, j)[c];
    }
  }

  attn_block block;
  int64_t heads, e;
  float decay;
  attnkit::Port v, o;
};

}  // namespace

ATTNKIT_PLUGIN(Mean)
