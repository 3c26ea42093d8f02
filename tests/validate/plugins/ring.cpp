// The mean of the newest keys that a query sees, kept in a ring: laws that only a mechanism of this kind meets.  The
// test writes one of its forms over GOOD, as in faulty.c.
#include <attnkit/kernels/gradient.hpp>
#include <attnkit/plugin.hpp>
#include <cmath>
#include <cstring>

namespace {

const volatile char form[] = "MISDEED:GOOD\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

bool is(const char* wanted) {
  char name[33] = {};
  for (int i = 0; i < 32; ++i) name[i] = form[8 + i];
  return std::strcmp(name, wanted) == 0;
}

struct Ring {
  static constexpr attnkit::About about{
      .name = "faulty", .summary = "the mean of the newest values", .citation = "none", .state_revision = "1"};
  struct Plan {};
  static attnkit::Options options() { return {}; }

  Ring(const attn_block& b, const attnkit::Values&, attnkit::Ports& ports)
      : block(b), heads(b.heads), e(b.head_width), v(ports.key("v", e, "values")) {
    const bool raw = is("RAW_OUTPUT");
    if (raw && heads * e != b.d_model)
      throw attnkit::unsupported("an output of width ", heads * e, " is not as wide as the model, ", b.d_model);
    o = ports.output("o", e, "their mean", raw ? ATTN_RAW : 0);
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    info.state(r, heads * size * e);
    if (is("SAYS_IT_REWINDS") && r.streams()) info.flags = ATTN_REWINDS;
    info.flops = size == 1 ? 0 : static_cast<uint64_t>(r.batch * heads * r.queries * size * e);
    return {};
  }

  void run(const Plan&, const attn_run& run) const {
    attnkit::with_real(attnkit::is_f64(run, o), [&](auto real) {
      for (int64_t b = 0; b < run.batch; ++b)
        for (int64_t h = 0; h < heads; ++h) one<decltype(real)>(run, b, h);
    });
  }
  template <class Real>
  void one(const attn_run& run, int64_t b, int64_t h) const {
    const attnkit::State state(run);
    const attnkit::View<const Real> values(run, v);
    const attnkit::View<Real> out(run, o);
    const attnkit::Sight sight(run, b, block.causal != 0);
    float* const ring = state ? state.row(b) + h * size * e : nullptr;
    for (int64_t i = 0; i < sight.queries; ++i)
      for (int64_t c = 0; c < e; ++c) {
        const int64_t now = sight.seen(i), first = std::max<int64_t>(now - size, 0);
        Real sum = 0;
        for (int64_t j = first; j < now; ++j)
          sum += of(j < sight.past ? static_cast<Real>(ring[j % size * e + c]) : values.row(b, h, j - sight.past)[c]);
        if (now > 0) out.row(b, h, i)[c] = sum / static_cast<Real>(now - first);
      }
    for (int64_t j = std::max<int64_t>(sight.fresh - size, 0); ring != nullptr && j < sight.fresh; ++j)
      for (int64_t c = 0; c < e; ++c)
        ring[(sight.past + j) % size * e + c] = static_cast<float>(values.row(b, h, j)[c]);
  }

  void backward(const Plan&, const attn_grad& grad) const {
    attnkit::with_real(attnkit::is_f64(*grad.run, o), [&](auto real) {
      for (int64_t b = 0; b < grad.run->batch; ++b)
        for (int64_t h = 0; h < heads; ++h) gradient<decltype(real)>(grad, b, h);
    });
  }
  template <class Real>
  void gradient(const attn_grad& grad, int64_t b, int64_t h) const {
    const attnkit::View<const Real> values(*grad.run, v), given(grad, o);
    const attnkit::View<Real> dv(grad, v);
    const attnkit::Sight sight(*grad.run, b, block.causal != 0);
    for (int64_t i = 0; dv && i < sight.queries; ++i) {
      const int64_t now = sight.seen(i), first = std::max<int64_t>(now - size, 0);
      for (int64_t j = first; j < now; ++j)
        for (int64_t c = 0; c < e; ++c)
          dv.row(b, h, j)[c] += given.row(b, h, i)[c] * slope(values.row(b, h, j)[c]) / static_cast<Real>(now - first);
    }
  }

  template <class Real>
  Real of(Real x) const {
    return gated ? x / (1 + std::exp(-x)) : x;
  }
  template <class Real>
  Real slope(Real x) const {
    const Real gate = 1 / (1 + std::exp(-x));
    return gated ? gate + x * gate * (1 - gate) : 1;
  }

  attn_block block;
  int64_t heads, e, size = is("COPIES") ? 1 : is("SAYS_IT_REWINDS") ? 64 : 16;
  bool gated = is("GATED_RING");
  attnkit::Port v, o;
};

}  // namespace

ATTNKIT_PLUGIN(Ring)
