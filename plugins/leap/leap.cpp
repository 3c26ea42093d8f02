// leap: cosine re-weighting with learned proportions instead of positions.
//
// Agostinelli, Hong, Chen: LeaPformer: Enabling Linear Transformers for Autoregressive and Simultaneous Tasks via
// Learned Proportions, ICML 2024.
//
//   w_ij = (A_i . B_j) cos(pi/2 (p_i - r_j)),  A = ReLU(s Q), B = ReLU(K),  p_i = LeaP_q(A_i), r_j = LeaP_k(B_j)
//   o_i  = sum_j w_ij v_j / g(sum_j w_ij)
//   LeaP(x) = sigmoid(W2 ReLU(W1 x + b1) + b2),  W1 [r, D], W2 [1, r], r = D / factor;  r = 1: sigmoid(W1 x + b1)
//
// The modules read the row after ReLU and are shared by all heads, or each head has its own (section 3.3).  Cost per
// head: (4 D (E+1) + 2 (D r + r))(N+M) flops; state 2 D (E+1) floats, whatever the length.
#include <array>
#include <attnkit/kernels/dots.hpp>
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;

// One LeaP module: where its tensors stand in the ports, then what they hold in a run.
struct Module {
  uint32_t w1, b1, w2, b2;
};

struct Leap {
  ATTNKIT_INLINE double operator()(const float* x, int64_t h) const {
    const float *b = b1.row(h), *w = r == 1 ? nullptr : w2.row(0, h, 0);
    double t = 0;
    for (int64_t i = 0; i < r; i += attnkit::simd::kLanes) {
      float y[attnkit::simd::kLanes];
      attnkit::simd::dots(x, w1.row(0, h, i), w1.next, r - i, d, y);
      for (int64_t j = 0; j < attnkit::simd::kLanes && i + j < r; ++j) {
        y[j] += b[i + j];
        t += r == 1 ? y[j] : (y[j] < 0 ? 0 : y[j]) * w[i + j];
      }
    }
    if (r != 1) t += b2.row(h)[0];
    return 1 / (1 + std::exp(-t));
  }
  int64_t d, r;
  // Tensors without a leading dimension of heads have steps of 0 from head to head.
  attnkit::View<const float> w1, b1, w2, b2;
};

struct Map {
  int64_t d;
  float scale;
  Leap q, k;

  ATTNKIT_INLINE void query(const float* x, int64_t, int64_t h, int64_t, float* row) const {
    attnkit::relu(x, scale, d, row);
    attnkit::rotate(row, d, q(row, h));
  }
  ATTNKIT_INLINE void key(const float* x, int64_t, int64_t h, int64_t, float* row) const {
    attnkit::relu(x, 1, d, row);
    attnkit::rotate(row, d, k(row, h));
  }
};

// Step i of splitmix64 (Steele, Lea, Flood 2014) from a seed, as a number in [-1, 1) with 24 bits.
double uniform(uint64_t seed, uint64_t i) {
  uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 40) / 8388608.0 - 1.0;
}

struct LeaP {
  static constexpr attnkit::About about{
      .name = "leap",
      .summary = "linear attention with learned proportions: constant state, needs no length",
      .citation = "Agostinelli, Hong and Chen, LeaPformer, ICML 2024",
      .state_revision = "1"};
  using Plan = attnkit::linear::Plan;

  static attnkit::Options options() {
    return {Guard::option("clamp"), Guard::eps_option(0.1), attnkit::scale_option(),
            attnkit::Option::integer("factor", 4, 1, 1 << 20, "the modules' inner width is D / factor; must divide D"),
            attnkit::Option::boolean("shared", true, "all heads use one pair of modules; false: each has its own")};
  }

  LeaP(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), 0, b.head_width},
        guard(Guard::from(values)) {
    const int64_t d = shape.width, factor = values.integer("factor");
    if (d % factor != 0)
      throw attnkit::Refusal(
          ATTN_UNSUPPORTED,
          attnkit::say("factor ", factor, " does not divide the head width ", d, ": choose a divisor of ", d),
          values.index("factor"));
    shape.features = 2 * d;
    scale = attnkit::scale_from(values, d);
    r = d / factor;
    io = {ports.query("q", d, "queries"), ports.key("k", d, "keys"), ports.key("v", shape.values, "values"),
          ports.output("o", shape.values, "weighted mean of the values")};
    const bool shared = values.boolean("shared");
    q = module(ports, shared, {"q_w1", "q_b1", "q_w2", "q_b2"},
               {"LeaP of queries: W1", "LeaP of queries: b1", "LeaP of queries: W2", "LeaP of queries: b2"});
    k = module(ports, shared, {"k_w1", "k_b1", "k_w2", "k_b2"},
               {"LeaP of keys: W1", "LeaP of keys: b1", "LeaP of keys: W2", "LeaP of keys: b2"});
  }

  Module module(attnkit::Ports& ports, bool shared, std::array<const char*, 4> names,
                std::array<const char*, 4> docs) const {
    const int64_t d = shape.width, h = shape.heads;
    const auto matrix = [&](size_t i, int64_t rows, int64_t columns) {
      return shared ? ports.learned(names[i], {rows, columns}, docs[i])
                    : ports.learned(names[i], {h, rows, columns}, docs[i]);
    };
    const auto vector = [&](size_t i, int64_t n) {
      return shared ? ports.learned(names[i], {n}, docs[i]) : ports.learned(names[i], {h, n}, docs[i]);
    };
    Module m{matrix(0, r, d), vector(1, r), 0, 0};
    if (r > 1) {
      m.w2 = matrix(2, 1, r);
      m.b2 = vector(3, 1);
    }
    return m;
  }

  // torch.nn.Linear's default: weights and biases uniform in +-1/sqrt(fan in).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    const bool inner = port == q.w1 || port == q.b1 || port == k.w1 || port == k.b1;
    const double bound = 1 / std::sqrt(static_cast<double>(inner ? shape.width : r));
    for (int64_t i = 0; i < count; ++i)
      data[i] = static_cast<float>(bound * uniform(seed + (uint64_t{port} << 32), static_cast<uint64_t>(i)));
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    return attnkit::linear::plan(shape, request, 2.0 * static_cast<double>(shape.width * r + r), info);
  }

  void run(const Plan& plan, const attn_run& run) const {
    const Map map{shape.width, scale, weights(q, run), weights(k, run)};
    attnkit::linear::run(shape, guard, plan, io, block.causal, map, run);
  }

  Leap weights(const Module& m, const attn_run& run) const {
    const auto view = [&](uint32_t port) { return attnkit::View<const float>(run.ports[port]); };
    if (r == 1) return {shape.width, r, view(m.w1), view(m.b1), {}, {}};
    return {shape.width, r, view(m.w1), view(m.b1), view(m.w2), view(m.b2)};
  }

  attn_block block;
  attnkit::linear::Shape shape;
  Guard guard;
  float scale;
  int64_t r;
  attnkit::linear::Ports io;
  Module q, k;
};

}  // namespace

ATTNKIT_PLUGIN(LeaP)
