// nystromformer: softmax attention through landmarks, the means of segments of the sequence.
// The slow form to compare with the paper: reference.hpp.
//
// Xiong et al.: Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention, AAAI 2021, arXiv:2102.03902,
// Eq. 13 and 14.
//
//   O = softmax(Q L_k^T / sqrt(D)) Z softmax(L_q K^T / sqrt(D)) V  (+ conv V),   Z ~ pinv(A)
//   A = softmax(L_q L_k^T / sqrt(D)),   row t of L_q, L_k: the mean of positions [t s, (t+1) s), s = N / l, l landmarks
//   Z_0 = A^T / (largest column sum of A),   Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z))), 6 times
//
// A row that is not a multiple of l long is padded to one with zeros, which enter the means; s = 1 is exact softmax.
// Cost per head: l (2 (D+E) + 5)(N + M + l) + 8 * 6 l^3 flops.
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>

#include "inverse.hpp"

namespace {

using attnkit::Sight;
using attnkit::View;
using attnkit::nystrom::Square;
using attnkit::nystrom::whole_doubles;
namespace simd = attnkit::simd;

struct Shape {
  int64_t heads, d, e, landmarks, length, iterations, kernel;  // kernel 0: no convolution
  // Positions that share a landmark in a row of n; 1 or less: the row needs no landmarks.
  int64_t segment(int64_t n) const { return length > 0 ? length / landmarks : (n + landmarks - 1) / landmarks; }
};

struct Ports {
  uint32_t q, k, v, o, conv;
};

// Where the parts of one worker's scratch begin, in floats; doubles come first.
struct Plan {
  int64_t a, z, work, queries, keys, values;   // l x l, and landmarks of queries and keys, and l x E, in f64
  int64_t all, landmark_q, landmark_k, mixed;  // in f32
  uint64_t worker_bytes;
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  float scale;
  View<const float> q, k, v, conv;
  View<float> o;
};

struct Body : simd::HeadWork<Body, Job> {
  using HeadWork::HeadWork;

  ATTNKIT_INLINE float* part(int64_t at) const { return floats() + at; }
  ATTNKIT_INLINE double* wide(int64_t at) const { return reinterpret_cast<double*>(part(at)); }

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const Shape& s = job.shape;
    const Sight sight(job.run, b, false);
    const int64_t queries = sight.fresh > 0 ? sight.queries : 0;
    for (int64_t i = queries; i < job.run.queries; ++i)
      std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(s.e) * sizeof(float));
    if (queries == 0) return;
    const int64_t lanes = simd::whole_lanes(sight.fresh), segment = s.segment(std::max(queries, sight.fresh));
    simd::pack_keys(
        sight.fresh, s.d, [&](int64_t j) { return job.k.row(b, h, j); }, part(job.plan.all), lanes);
    const simd::Memory all{part(job.plan.all), lanes, job.v.row(b, h, 0), job.v.next, sight.fresh, s.d, s.e};
    if (segment > 1) {
      read<Isa>(b, h, queries, through_landmarks<Isa>(b, h, segment, queries, all));
    } else {
      read<Isa>(b, h, queries, all);
    }
    if (s.kernel > 0) convolve(b, h, queries, sight.fresh);
  }

  template <class Isa>
  ATTNKIT_INLINE void read(int64_t b, int64_t h, int64_t queries, const simd::Memory& memory) const {
    for (int64_t i = 0; i < queries; i += simd::kQueries)
      simd::attend<Isa>(job.q.row(b, h, i), job.q.next, std::min(simd::kQueries, queries - i), memory, job.scale,
                        job.o.row(b, h, i), job.o.next);
  }

  // What a query attends to instead of all keys: the landmarks of the keys, each with its row of Z B V as a value.
  template <class Isa>
  ATTNKIT_INLINE simd::Memory through_landmarks(int64_t b, int64_t h, int64_t segment, int64_t queries,
                                                const simd::Memory& all) const {
    const Shape& s = job.shape;
    const Plan& p = job.plan;
    const int64_t l = s.landmarks, lanes = simd::whole_lanes(l);
    const Square square(l);
    means(job.q, b, h, segment, queries, wide(p.queries), s.d, 1);
    means(job.k, b, h, segment, all.n, wide(p.keys), 1, square.row);
    for (int64_t i = 0; i < l * s.d; ++i) part(p.landmark_q)[i] = static_cast<float>(wide(p.queries)[i]);
    for (int64_t f = 0; f < s.d; ++f)
      for (int64_t t = 0; t < l; ++t)
        part(p.landmark_k)[f * lanes + t] = static_cast<float>(wide(p.keys)[f * square.row + t]);
    square.diagonal(0, wide(p.a));
    simd::add_product<Isa, double>({wide(p.queries), s.d}, {wide(p.keys), s.d, l, square.row},
                                   {wide(p.a), l, l, square.row});
    attnkit::nystrom::soften_rows(square, 1 / std::sqrt(static_cast<double>(s.d)), wide(p.a));
    attnkit::nystrom::inverse<Isa>(square, s.iterations, wide(p.a), wide(p.z), wide(p.work));
    for (int64_t t = 0; t < l; t += simd::kQueries)
      simd::attend<Isa>(part(p.landmark_q) + t * s.d, s.d, std::min(simd::kQueries, l - t), all, job.scale,
                        part(p.mixed) + t * s.e, s.e);
    mix<Isa>(square);
    return {part(p.landmark_k), lanes, part(p.mixed), s.e, l, s.d, s.e};
  }

  // Element f of landmark t to to[t * next + f * step].
  ATTNKIT_INLINE void means(const View<const float>& x, int64_t b, int64_t h, int64_t segment, int64_t n, double* to,
                            int64_t next, int64_t step) const {
    for (int64_t t = 0; t < job.shape.landmarks; ++t) {
      for (int64_t f = 0; f < job.shape.d; ++f) to[t * next + f * step] = 0;
      for (int64_t i = t * segment; i < std::min(n, (t + 1) * segment); ++i)
        for (int64_t f = 0; f < job.shape.d; ++f) to[t * next + f * step] += double{x.row(b, h, i)[f]};
      for (int64_t f = 0; f < job.shape.d; ++f) to[t * next + f * step] /= static_cast<double>(segment);
    }
  }

  // The l rows of B V become those of Z B V.
  template <class Isa>
  ATTNKIT_INLINE void mix(const Square& square) const {
    const int64_t l = square.n, e = job.shape.e, row = whole_doubles(e);
    double *in = wide(job.plan.values), *out = in + l * row;
    float* mixed = part(job.plan.mixed);
    std::memset(in, 0, static_cast<size_t>(2 * l * row) * sizeof(double));
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) in[t * row + c] = double{mixed[t * e + c]};
    simd::add_product<Isa, double>({wide(job.plan.z), square.row}, {in, l, row, row}, {out, l, row, row});
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) mixed[t * e + c] = static_cast<float>(out[t * row + c]);
  }

  // o_i += sum_u w_u v_(i + u - kernel / 2), values past the ends being zero.
  ATTNKIT_INLINE void convolve(int64_t b, int64_t h, int64_t queries, int64_t n) const {
    const Shape& s = job.shape;
    const float* w = job.conv.row(h);
    for (int64_t i = 0; i < queries; ++i) {
      float* o = job.o.row(b, h, i);
      const int64_t first = i - s.kernel / 2;
      for (int64_t j = std::max<int64_t>(0, first); j < std::min(n, first + s.kernel); ++j) {
        const float *v = job.v.row(b, h, j), weight = w[j - first];
        for (int64_t c = 0; c < s.e; ++c) o[c] += weight * v[c];
      }
    }
  }
};

struct Nystromformer {
  static constexpr attnkit::About about{
      .name = "nystromformer",
      .summary = "softmax attention through landmarks and a pseudo-inverse: linear cost, whole sequences only",
      .citation = "Xiong et al., Nystromformer, AAAI 2021, arXiv:2102.03902",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {attnkit::Option::integer("landmarks", 64, 1, 4096, "l, the number of segment means of queries and of keys"),
            attnkit::Option::integer("iterations", 6, 1, 16, "steps towards the pseudo-inverse"),
            attnkit::Option::boolean("conv", false, "adds a depthwise convolution of the values, one filter per head"),
            attnkit::Option::integer("kernel", 35, 1, 4095, "width of the convolution, odd"),
            attnkit::Option::integer("length", 0, 0, 1 << 20,
                                     "padded length that segments divide, part of the model; 0: each row's own length, "
                                     "rounded up to a multiple of landmarks")};
  }

  Nystromformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads,
              b.d_model / static_cast<int64_t>(b.heads),
              b.head_width,
              values.integer("landmarks"),
              values.integer("length"),
              values.integer("iterations"),
              values.boolean("conv") ? values.integer("kernel") : 0} {
    if (shape.length % shape.landmarks != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("length ", shape.length, " is not a multiple of landmarks ", shape.landmarks,
                                          ": segments are equally long, choose a multiple, or 0"),
                             values.index("length"));
    if (values.integer("kernel") % 2 == 0)
      throw attnkit::Refusal(
          ATTN_UNSUPPORTED,
          attnkit::say("kernel ", values.integer("kernel"),
                       " is even and would shift the sequence by half a position: choose an odd one"),
          values.index("kernel"));
    io = {ports.query("q", shape.d, "queries"), ports.key("k", shape.d, "keys"), ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "approximate weighted mean of the values"), 0};
    if (shape.kernel > 0) io.conv = ports.learned("conv", {shape.heads, shape.kernel}, "filter of the values, by head");
  }

  // torch.nn.Conv2d's default with one input channel: uniform in +-1/sqrt(kernel).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    const double bound = 1 / std::sqrt(static_cast<double>(shape.kernel));
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    refuse(r);
    const Plan plan = layout(r);
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t items = r.batch * shape.heads;
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.flops = static_cast<uint64_t>(items) * item_flops(r.queries, r.keys);
    info.bytes_read = size(items * (r.queries * shape.d + r.keys * (shape.d + shape.e)) +
                           (items > 0 ? shape.heads * shape.kernel : 0));
    info.bytes_written = size(items * r.queries * shape.e);
    return plan;
  }

  void refuse(const attn_request& r) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "landmarks of queries and keys are segments of one sequence, so there is no cross attention: use a mechanism "
          "such as softmax or linformer there");
    if (block.causal)
      throw attnkit::unsupported(
          "a landmark is the mean of positions that a causal query may not see, so there is no causal form: make the "
          "block bidirectional, or use a mechanism such as softmax or linear");
    attnkit::check_sight(block, r);
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "landmarks are means over the whole sequence, so a query cannot see a part of it: run it without "
          "ATTN_PREFIX");
    const int64_t most = std::max(r.queries, r.keys);
    if (shape.length > 0 && most > shape.length)
      throw attnkit::unsupported("length = ", shape.length, " cannot hold a sequence of ", most,
                                 ": shorten it, or set a larger length, or 0");
  }

  Plan layout(const attn_request& r) const {
    const int64_t l = shape.landmarks, d = shape.d, e = shape.e, square = Square(l).size();
    const bool landmarks = shape.segment(std::max(r.queries, r.keys)) > 1;
    Plan p{};
    int64_t at = 0;
    const auto take = [&at](int64_t floats) {
      const int64_t begin = at;
      at += simd::whole_lanes(floats);
      return begin;
    };
    if (landmarks) {
      p.a = take(2 * square);
      p.z = take(2 * square);
      p.work = take(6 * square);
      p.queries = take(2 * l * d);
      p.keys = take(2 * d * whole_doubles(l));
      p.values = take(4 * l * whole_doubles(e));
      p.landmark_q = take(l * d);
      p.landmark_k = take(d * simd::whole_lanes(l));
      p.mixed = take(l * e);
    }
    p.all = take(d * simd::whole_lanes(r.keys));
    p.worker_bytes = static_cast<uint64_t>(at) * sizeof(float);
    return p;
  }

  uint64_t item_flops(int64_t n, int64_t m) const {
    const int64_t pair = 2 * (shape.d + shape.e) + 5, l = shape.landmarks;
    const int64_t convolution = 2 * shape.kernel * n * shape.e;
    if (n == 0 || m == 0) return 0;
    if (shape.segment(std::max(n, m)) <= 1) return static_cast<uint64_t>(pair * n * m + convolution);
    return static_cast<uint64_t>(pair * l * (n + m + l) + 8 * shape.iterations * l * l * l + convolution);
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto view = [&run](uint32_t port) { return View<const float>(run.ports[port]); };
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)));
    const Job job{
        shape, plan, run, scale, view(io.q), view(io.k), view(io.v), view(io.conv), View<float>(run.ports[io.o])};
    simd::share_heads<Body>(job, static_cast<double>(item_flops(run.queries, run.keys)));
  }

  attn_block block;
  Shape shape;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Nystromformer)
