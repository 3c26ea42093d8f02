// The part of leap that is the same on every device.
#pragma once
#include <array>
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/random.hpp>

namespace leap {

// The ports of a module.
struct ModulePorts {
  std::array<attnkit::Port, 4> ports{};
  int64_t d = 0, r = 0;
  bool by_head = false;

  bool is_inner(uint32_t port) const { return port == ports[0] || port == ports[1]; }
  int64_t floats() const { return r == 1 ? d + 1 : r * (d + 2) + 1; }
};

struct Model {
  static constexpr attnkit::About about{
      .name = "leap",
      .summary = "linear attention with learned proportions: constant state, needs no length",
      .citation = "Agostinelli, Hong and Chen, LeaPformer, ICML 2024",
      .state_revision = "1"};
  static attnkit::Options options() {
    return {attnkit::Guard::option("clamp"), attnkit::Guard::eps_option(0.1), attnkit::scale_option(),
            attnkit::Option::integer("factor", 4, 1, 1 << 20, "the modules' inner width is D / factor; must divide D"),
            attnkit::Option::boolean("shared", true, "all heads use one pair of modules; false: each has its own")};
  }

  template <class Setup>
  explicit Model(const Setup& s) : d(s.shape.d), scale(attnkit::scale_from(s.values, d)) {
    const int64_t factor = s.values.integer("factor");
    if (d % factor != 0)
      throw attnkit::unsupported("factor ", factor, " does not divide the head width ", d, ": choose a divisor of ", d)
          .at(s.values.index("factor"));
    s.shape.features = 2 * d;
    q = module(s, d / factor, {"q_w1", "q_b1", "q_w2", "q_b2"},
               {"LeaP of queries: W1", "LeaP of queries: b1", "LeaP of queries: W2", "LeaP of queries: b2"});
    k = module(s, d / factor, {"k_w1", "k_b1", "k_w2", "k_b2"},
               {"LeaP of keys: W1", "LeaP of keys: b1", "LeaP of keys: W2", "LeaP of keys: b2"});
  }

  template <class Setup>
  ModulePorts module(const Setup& s, int64_t r, std::array<const char*, 4> names,
                     std::array<const char*, 4> docs) const {
    const bool shared = s.values.boolean("shared");
    const auto matrix = [&](size_t i, int64_t rows, int64_t columns) {
      return shared ? s.ports.learned(names[i], {rows, columns}, docs[i])
                    : s.ports.learned(names[i], {s.shape.heads, rows, columns}, docs[i]);
    };
    const auto vector = [&](size_t i, int64_t n) {
      return shared ? s.ports.learned(names[i], {n}, docs[i]) : s.ports.learned(names[i], {s.shape.heads, n}, docs[i]);
    };
    ModulePorts m{{matrix(0, r, d), vector(1, r)}, d, r, !shared};
    if (r > 1) {
      m.ports[2] = matrix(2, 1, r);
      m.ports[3] = vector(3, 1);
    }
    return m;
  }

  // torch.nn.Linear's default: weights and biases uniform in +-1/sqrt(fan in), of 24 bits.
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    const int64_t fan_in = q.is_inner(port) || k.is_inner(port) ? d : q.r;
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    auto random = attnkit::Random::plain(seed + (uint64_t{port} << 32));
    for (int64_t i = 0; i < count; ++i)
      data[i] = static_cast<float>(bound * (static_cast<double>(random.bits() >> 40) / 8388608.0 - 1.0));
  }

  // The LEARNED ports, in a Learned of the device.
  template <class Learned>
  Learned list() const {
    Learned all;
    for (const ModulePorts* m : {&q, &k}) {
      const int64_t floats[] = {m->r * d, m->r, m->r, 1};
      for (size_t i = 0; i < (m->r == 1 ? 2 : 4); ++i) all.add(m->ports[i], floats[i], m->by_head);
    }
    return all;
  }

  double flops() const { return 2.0 * static_cast<double>(d * q.r + q.r); }

  int64_t d;
  double scale;
  ModulePorts q{}, k{};
};

}  // namespace leap
