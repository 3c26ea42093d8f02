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
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>

namespace {

using attnkit::Layout;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t whole_doubles(int64_t n) { return (n + 7) / 8 * 8; }

// Square matrices of n rows, `row` doubles apart; what stands past column n is zero.
struct Square {
  int64_t n, row;
  explicit Square(int64_t side) : n(side), row(whole_doubles(side)) {}
  int64_t size() const { return n * row; }

  ATTNKIT_INLINE void diagonal(double x, double* to) const {
    std::memset(to, 0, static_cast<size_t>(size()) * sizeof(double));
    for (int64_t i = 0; i < n; ++i) to[i * row + i] = x;
  }
  // to += a b.
  template <class Isa>
  ATTNKIT_INLINE void multiply(const double* a, const double* b, double* to) const {
    simd::add_product<Isa, double>({a, row, 1}, {b, n, row, row}, {to, n, row, row});
  }
};

// Rows of scores become softmax rows.
ATTNKIT_INLINE void softmax_rows(const Square& s, double scale, double* a) {
  for (int64_t i = 0; i < s.n; ++i) {
    double *x = a + i * s.row, max = -__builtin_inf(), sum = 0;
    for (int64_t j = 0; j < s.n; ++j) {
      x[j] *= scale;
      max = x[j] > max ? x[j] : max;
    }
    for (int64_t j = 0; j < s.n; ++j) sum += x[j] = std::exp(x[j] - max);
    for (int64_t j = 0; j < s.n; ++j) x[j] /= sum;
  }
}

// The pseudo-inverse z of softmax rows a by a fixed number of steps, in f64: they leave small singular values
// unconverged, and each multiplies what rounding puts into directions that a lacks (equal landmarks make some) by up to
// 13 / 4: f32 would show.  From the transpose of a over its largest column sum, z <- 1/4 z (13 I - y (15 I - y (7 I -
// y))), y = a z, so many times.  work: three squares.
template <class Isa>
ATTNKIT_INLINE void inverse(const Square& s, int64_t iterations, const double* a, double* z, double* work) {
  double *y = work, *t = y + s.size(), *u = t + s.size();
  double largest = 0;
  for (int64_t j = 0; j < s.n; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < s.n; ++i) sum += a[i * s.row + j];
    largest = sum > largest ? sum : largest;
  }
  s.diagonal(0, z);
  for (int64_t i = 0; i < s.n; ++i)
    for (int64_t j = 0; j < s.n; ++j) z[j * s.row + i] = a[i * s.row + j] / largest;
  for (int64_t step = 0; step < iterations; ++step) {
    s.diagonal(0, y);
    s.multiply<Isa>(a, z, y);
    s.diagonal(7, t);
    for (int64_t i = 0; i < s.size(); ++i) t[i] -= y[i];
    s.diagonal(-15, u);
    s.multiply<Isa>(y, t, u);
    s.diagonal(13, t);
    s.multiply<Isa>(y, u, t);
    s.diagonal(0, u);
    s.multiply<Isa>(z, t, u);
    for (int64_t i = 0; i < s.size(); ++i) z[i] = 0.25 * u[i];
  }
}

struct Shape : attnkit::Widths {
  int64_t landmarks, length, iterations, kernel;  // kernel 0: no convolution
  // Positions that share a landmark in a row of n; 1 or less: the row needs no landmarks.
  int64_t segment(int64_t n) const { return length > 0 ? length / landmarks : (n + landmarks - 1) / landmarks; }
  uint64_t flops(int64_t n, int64_t m) const {  // of a head
    const int64_t pair = 2 * (d + e) + 5, l = landmarks, convolution = 2 * kernel * n * e;
    if (n == 0 || m == 0) return 0;
    if (segment(std::max(n, m)) <= 1) return static_cast<uint64_t>(pair * n * m + convolution);
    return static_cast<uint64_t>(pair * l * (n + m + l) + 8 * iterations * l * l * l + convolution);
  }
};

// What a worker has for rows of up to n queries and m keys.
struct Scratch {
  float* all;  // keys, transposed
  // l x l; landmarks of queries and keys; l x E.  Not there when no row needs landmarks.
  double *a = nullptr, *z = nullptr, *work = nullptr, *queries = nullptr, *keys = nullptr, *in = nullptr,
         *out = nullptr;
  float *landmark_q = nullptr, *landmark_k = nullptr, *mixed = nullptr;
  Scratch(Layout& layout, const Shape& s, int64_t n, int64_t m) : all(layout.take(s.d * simd::whole_lanes(m))) {
    if (s.segment(std::max(n, m)) <= 1) return;
    const int64_t l = s.landmarks, square = Square(l).size(), wide = l * whole_doubles(s.e);
    a = layout.take<double>(square);
    z = layout.take<double>(square);
    work = layout.take<double>(3 * square);
    queries = layout.take<double>(l * s.d);
    keys = layout.take<double>(s.d * whole_doubles(l));
    in = layout.take<double>(wide);
    out = layout.take<double>(wide);
    landmark_q = layout.take(l * s.d);
    landmark_k = layout.take(s.d * simd::whole_lanes(l));
    mixed = layout.take(l * s.e);
  }
};

// One run; called for each head of each batch row.
struct Run {
  const Shape& shape;
  const attn_run& run;
  const attnkit::Request& bounds;
  float scale;
  attnkit::Qkv<> x;
  View<const float> conv;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t b, int64_t h, void* memory) const {
    const Shape& s = shape;
    const attnkit::Sight sight(run, b, false);
    const int64_t queries = sight.queries, n = sight.fresh, lanes = simd::whole_lanes(n);
    if (queries == 0 || n == 0) return;
    Layout layout(memory);
    const Scratch scratch(layout, s, bounds.queries, bounds.keys);
    const int64_t segment = s.segment(std::max(queries, n));
    simd::pack_keys(
        n, s.d, [&](int64_t j) { return x.k.row(b, h, j); }, scratch.all, lanes);
    simd::Memory keys{scratch.all, lanes, x.v.row(b, h, 0), x.v.next, n, s.d, s.e};
    if (segment > 1) keys = through_landmarks<Isa>(b, h, segment, queries, keys, scratch);
    for (int64_t i = 0; i < queries; i += simd::kQueries)
      simd::attend<Isa>(x.q.row(b, h, i), x.q.next, std::min(simd::kQueries, queries - i), keys, scale,
                        x.o.row(b, h, i), x.o.next);
    if (conv.data) convolve(b, h, queries, n);
  }

  // What a query attends to instead of all keys: the landmarks of the keys, each with its row of Z B V as a value.
  template <class Isa>
  ATTNKIT_INLINE simd::Memory through_landmarks(int64_t b, int64_t h, int64_t segment, int64_t queries,
                                                const simd::Memory& all, const Scratch& p) const {
    const Shape& s = shape;
    const int64_t l = s.landmarks, lanes = simd::whole_lanes(l);
    const Square square(l);
    means(x.q, b, h, segment, queries, p.queries, s.d, 1);
    means(x.k, b, h, segment, all.n, p.keys, 1, square.row);
    for (int64_t i = 0; i < l * s.d; ++i) p.landmark_q[i] = static_cast<float>(p.queries[i]);
    for (int64_t f = 0; f < s.d; ++f)
      for (int64_t t = 0; t < l; ++t) p.landmark_k[f * lanes + t] = static_cast<float>(p.keys[f * square.row + t]);
    square.diagonal(0, p.a);
    simd::add_product<Isa, double>({p.queries, s.d, 1}, {p.keys, s.d, l, square.row}, {p.a, l, l, square.row});
    softmax_rows(square, 1 / std::sqrt(static_cast<double>(s.d)), p.a);
    inverse<Isa>(square, s.iterations, p.a, p.z, p.work);
    for (int64_t t = 0; t < l; t += simd::kQueries)
      simd::attend<Isa>(p.landmark_q + t * s.d, s.d, std::min(simd::kQueries, l - t), all, scale, p.mixed + t * s.e,
                        s.e);
    mix<Isa>(square, p);
    return {p.landmark_k, lanes, p.mixed, s.e, l, s.d, s.e};
  }

  // Element f of landmark t to to[t * next + f * step].
  ATTNKIT_INLINE void means(const View<const float>& rows, int64_t b, int64_t h, int64_t segment, int64_t n, double* to,
                            int64_t next, int64_t step) const {
    for (int64_t t = 0; t < shape.landmarks; ++t) {
      for (int64_t f = 0; f < shape.d; ++f) to[t * next + f * step] = 0;
      for (int64_t i = t * segment; i < std::min(n, (t + 1) * segment); ++i)
        for (int64_t f = 0; f < shape.d; ++f) to[t * next + f * step] += double{rows.row(b, h, i)[f]};
      for (int64_t f = 0; f < shape.d; ++f) to[t * next + f * step] /= static_cast<double>(segment);
    }
  }

  // The l rows of B V become those of Z B V.
  template <class Isa>
  ATTNKIT_INLINE void mix(const Square& square, const Scratch& p) const {
    const int64_t l = square.n, e = shape.e, row = whole_doubles(e);
    for (double* matrix : {p.in, p.out}) std::memset(matrix, 0, static_cast<size_t>(l * row) * sizeof(double));
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) p.in[t * row + c] = double{p.mixed[t * e + c]};
    simd::add_product<Isa, double>({p.z, square.row, 1}, {p.in, l, row, row}, {p.out, l, row, row});
    for (int64_t t = 0; t < l; ++t)
      for (int64_t c = 0; c < e; ++c) p.mixed[t * e + c] = static_cast<float>(p.out[t * row + c]);
  }

  // o_i += sum_u w_u v_(i + u - kernel / 2), values past the ends being zero.
  ATTNKIT_INLINE void convolve(int64_t b, int64_t h, int64_t queries, int64_t n) const {
    const Shape& s = shape;
    const float* w = conv.row(h);
    for (int64_t i = 0; i < queries; ++i) {
      float* o = x.o.row(b, h, i);
      const int64_t first = i - s.kernel / 2;
      for (int64_t j = std::max<int64_t>(0, first); j < std::min(n, first + s.kernel); ++j) {
        const float *v = x.v.row(b, h, j), weight = w[j - first];
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
  struct Plan {
    uint64_t worker_bytes;
    attnkit::Request bounds;
  };

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
        shape{attnkit::Widths(b), values.integer("landmarks"), values.integer("length"), values.integer("iterations"),
              values.boolean("conv") ? values.integer("kernel") : 0},
        io(ports.qkv(shape, "approximate weighted mean of the values")) {
    if (shape.length % shape.landmarks != 0)
      throw attnkit::unsupported("length ", shape.length, " is not a multiple of landmarks ", shape.landmarks,
                                 ": segments are equally long, choose a multiple, or 0")
          .at(values.index("length"));
    if (values.integer("kernel") % 2 == 0)
      throw attnkit::unsupported("kernel ", values.integer("kernel"),
                                 " is even and would shift the sequence by half a position: choose an odd one")
          .at(values.index("kernel"));
    if (shape.kernel > 0) conv = ports.learned("conv", {shape.heads, shape.kernel}, "filter of the values, by head");
  }

  // torch.nn.Conv2d's default with one input channel: uniform in +-1/sqrt(kernel).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random(seed, port).fill_uniform(1 / std::sqrt(static_cast<double>(shape.kernel)), data, count);
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    refuse(r);
    info.flops = static_cast<uint64_t>(r.batch * shape.heads) * shape.flops(r.queries, r.keys);
    return {info.scratch(r, Layout::measure<Scratch>(shape, r.queries, r.keys)), r};
  }

  void refuse(const attnkit::Request& r) const {
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "landmarks of queries and keys are segments of one sequence, so there is no cross attention: use a mechanism "
          "such as softmax or linformer there");
    if (block.causal)
      throw attnkit::unsupported(
          "a landmark is the mean of positions that a causal query may not see, so there is no causal form: make the "
          "block bidirectional, or use a mechanism such as softmax or linear");
    attnkit::check_sight(block, r);
    if (r.shows_prefixes())
      throw attnkit::unsupported(
          "landmarks are means over the whole sequence, so a query cannot see a part of it: run it without "
          "ATTN_PREFIX");
    const int64_t most = std::max(r.queries, r.keys);
    if (shape.length > 0 && most > shape.length)
      throw attnkit::unsupported("length = ", shape.length, " cannot hold a sequence of ", most,
                                 ": shorten it, or set a larger length, or 0");
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)));
    const auto flops = static_cast<double>(shape.flops(run.queries, run.keys));
    simd::for_heads(run, shape.heads, {flops, plan.worker_bytes},
                    Run{shape, run, plan.bounds, scale, {run, io}, {run, conv}});
  }

  attn_block block;
  Shape shape;
  attnkit::QkvPorts io;
  attnkit::Port conv;
};

}  // namespace

ATTNKIT_PLUGIN(Nystromformer)
