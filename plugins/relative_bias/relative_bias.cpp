// relative_bias: softmax attention with T5's learned bias for how far apart a query and a key are.
// The slow form to compare with the paper: reference.hpp.
//
// Raffel et al.: Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, JMLR 2020,
// arXiv:1910.10683, Section 2.1; how distances share a bias is that of the code published with it.
//
//   o_i = sum_j p_ij v_j,   p_ij = exp(s_ij - max_j s_ij) / sum_j exp(s_ij - max_j s_ij),
//   s_ij = scale Q_i . K_j + B[bucket(j - i)][h]
//
// A few queries walk their visible keys one by one; more of them go together over blocks of keys, whose biases stand
// in a row by distance, made once for a block of queries.  Cost per head: 2 N M (D+E) + 6 N M flops, half of it when
// causal; the state is the cache of keys and values, [position][head][D + E] floats.
#include <attnkit/kernels/attend_blocks.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/segments.hpp>
#include <attnkit/kernels/work.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace {

using attnkit::Layout;
using attnkit::Sight;
namespace attend = attnkit::attend;
namespace simd = attnkit::simd;

// The bias for a distance: half of the buckets are for one distance each, the others for ranges that grow with it, and
// the last one for all from the longest on.  Where later keys are seen they have the other half of all buckets.
class Buckets {
 public:
  Buckets(int64_t count, int64_t longest, bool causal) : later_(causal ? 0 : count / 2) {
    const int64_t own = causal ? count : count / 2, exact = own / 2;
    for (int64_t distance = 0; distance <= longest; ++distance) {
      int64_t bucket = distance;
      if (distance >= exact) {
        // In float as T5 computes it: where a range begins depends on the rounding.
        const float part = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                           static_cast<float>(std::log(static_cast<double>(longest) / static_cast<double>(exact)));
        bucket = exact + static_cast<int64_t>(part * static_cast<float>(own - exact));
      }
      of_.push_back(std::min(bucket, own - 1));
    }
  }
  // Of a key that stands so many positions later than the query.
  int64_t of(int64_t distance) const {
    const int64_t last = static_cast<int64_t>(of_.size()) - 1;
    return of_[static_cast<size_t>(std::min(std::abs(distance), last))] + (distance > 0 ? later_ : 0);
  }

 private:
  std::vector<int64_t> of_;  // by distance
  int64_t later_;
};

struct Shape : attnkit::Widths {
  using Widths::Widths;
  int64_t token() const { return heads * (d + e); }  // floats of one position in the state
};

// The table, and, where they are wanted, the sums of its gradients: by row, head and block of keys, which are added up
// in this order for any number of workers.
template <class Real>
struct Bias {
  const Buckets* buckets = nullptr;
  const attn_run* run = nullptr;
  attn_tensor table{};  // (buckets, heads)
  Real* sums = nullptr;

  double of(const Sight& sight, int64_t h, int64_t i, int64_t j) const {
    return static_cast<const Real*>(table.data)[buckets->of(j - sight.q_pos - i) * table.stride[0] + h];
  }
  void add(int64_t b, int64_t h, const attend::Span& queries, const attend::Span& keys, Real scale,
           Real* weights) const {
    const Sight sight(*run, b, false);
    for (int64_t i = 0; i < queries.size(); ++i)
      for (int64_t j = 0; j < keys.size(); ++j) {
        Real& weight = weights[i * attend::kTile + j];
        weight = weight * scale + static_cast<Real>(of(sight, h, queries.begin + i, keys.begin + j));
      }
  }
  void take(int64_t b, int64_t h, const attend::Span& queries, const attend::Span& keys, const attend::Span* seen,
            const Real* slopes) const {
    if (!sums) return;
    const Sight sight(*run, b, false);
    Real* to = sums_of(b, h) + keys.begin / attend::kTile * table.shape[0];
    for (int64_t i = 0; i < queries.size(); ++i) {
      const attend::Span span = seen ? seen[i] : attend::Span{0, keys.size()};
      for (int64_t j = span.begin; j < span.end; ++j)
        to[buckets->of(keys.begin + j - sight.q_pos - queries.begin - i)] += slopes[i * attend::kTile + j];
    }
  }
  static int64_t blocks(int64_t keys) { return (keys + attend::kTile - 1) / attend::kTile; }
  Real* sums_of(int64_t b, int64_t h) const {
    return sums + (b * table.shape[1] + h) * blocks(run->keys) * table.shape[0];
  }
  void collect(const attn_tensor& to) const {
    for (int64_t h = 0; h < table.shape[1]; ++h)
      for (int64_t bucket = 0; bucket < table.shape[0]; ++bucket) {
        Real sum = 0;
        for (int64_t b = 0; b < run->batch; ++b)
          for (int64_t n = 0; n < blocks(run->keys); ++n) sum += sums_of(b, h)[n * table.shape[0] + bucket];
        static_cast<Real*>(to.data)[bucket * to.stride[0] + h * to.stride[1]] += sum;
      }
  }
};

// biases: of all distances, from that of the block's last query and the first key on.
struct Block : attend::Block {
  float* biases;
  Block(Layout& layout, const Shape& s, int64_t max_keys)
      : attend::Block(layout, s), biases(layout.take(max_keys + simd::kQueries + simd::kLanes)) {}
};

// One run; called for blocks of queries [begin, end) of all heads of all batch rows.
struct Run {
  const Shape& shape;
  const Buckets& buckets;
  const attn_run& run;
  float scale;
  bool causal;
  attend::Cut cut;
  attnkit::Qkv<> x;
  attn_tensor bias;  // (buckets, heads)
  attnkit::State state;

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int64_t begin, int64_t end, void* scratch) const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t block = item % cut.blocks, row = item / cut.blocks;
      const int64_t b = row / shape.heads, h = row % shape.heads;
      const Sight sight(run, b, causal);
      // By the row's own length, so that padding changes nothing.
      if (sight.queries >= attend::kFew)
        blocked<Isa>(b, h, sight, cut.of(sight, block), cut.share(sight, block), scratch);
      else if (block == 0)
        few<Isa>(b, h, sight, static_cast<float*>(scratch));
    }
  }

  // A head's keys in the state, the value behind each.
  ATTNKIT_INLINE float* kept(int64_t b, int64_t h) const {
    return state ? state.row(b) + h * (shape.d + shape.e) : nullptr;
  }

  // Copies keys and values of this run behind those in the state, if there is one.
  ATTNKIT_INLINE void append(int64_t b, int64_t h, const Sight& sight, const attend::Span& fresh) const {
    for (int64_t j = fresh.begin; state && j < fresh.end; ++j) {
      float* token = kept(b, h) + (sight.past + j) * shape.token();
      std::memcpy(token, x.k.row(b, h, j), static_cast<size_t>(shape.d) * sizeof(float));
      std::memcpy(token + shape.d, x.v.row(b, h, j), static_cast<size_t>(shape.e) * sizeof(float));
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void blocked(int64_t b, int64_t h, const Sight& sight, const attend::Span& queries,
                              const attend::Span& share, void* scratch) const {
    append(b, h, sight, share);
    if (queries.size() <= 0) return;
    Layout layout(scratch);
    const Block block(layout, shape, cut.keys);
    const attend::Head head{run, shape, x, b, h, sight, kept(b, h), shape.token()};
    const int64_t last = queries.size() - 1, position = sight.q_pos + queries.begin + last;
    const int64_t distances = head.most(queries) + last + simd::kLanes;  // and what lanes behind the last key read
    const float* table = static_cast<const float*>(bias.data) + h;
    for (int64_t t = 0; t < distances; ++t) block.biases[t] = table[buckets.of(t - position) * bias.stride[0]];
    const auto pack = [&](int64_t from, int64_t n) __attribute__((always_inline)) { head.pack<Isa>(from, n, block); };
    const auto edit = [&](int64_t i, int64_t from, int64_t n, float* scores) __attribute__((always_inline)) {
      const float* biases = block.biases + from + last - i;
      for (int64_t j = 0; j < n; j += simd::kLanes)
        simd::store(simd::at<Isa>(scores + j) * scale + simd::at<Isa>(biases + j), scores + j);
    };
    head.attend<Isa>(queries, 1, block, pack, edit);
  }

  template <class Isa>
  ATTNKIT_INLINE void few(int64_t b, int64_t h, const Sight& sight, float* weights) const {
    append(b, h, sight, {0, sight.fresh});
    const float *table = static_cast<const float*>(bias.data) + h, *cache = kept(b, h);
    for (int64_t i = 0; i < sight.queries; ++i) {
      const int64_t seen = sight.seen(i), position = sight.q_pos + i;
      if (seen <= 0) continue;
      simd::Segments keys;
      if (state)
        keys.add({cache, cache + shape.d, shape.token(), shape.token(), seen});
      else
        keys.add({x.k.row(b, h, 0), x.v.row(b, h, 0), x.k.next, x.v.next, seen});
      simd::score<Isa>(x.q.row(b, h, i), shape.d, scale, keys, weights);
      for (int64_t j = 0; j < seen; ++j) weights[j] += table[buckets.of(j - position) * bias.stride[0]];
      const float max = simd::largest_of<Isa>(weights, seen), sum = simd::weigh<Isa>(weights, 1, max, seen);
      float* o = x.o.row(b, h, i);
      const int64_t c = simd::mean<Isa>(weights, sum, keys, shape.e, o);
      if (c < shape.e) simd::mean_panel<Isa, 1>(weights, sum, keys, c, shape.e - c, o);
      if (float* lse = attend::saved<float>(run, shape, b, h)) lse[i] = max + std::log(sum);
    }
  }
};

struct RelativeBias {
  static constexpr attnkit::About about{
      .name = "relative_bias",
      .summary =
          "softmax attention with T5's bias for how far apart two positions are; the state grows with the length",
      .citation =
          "Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, "
          "JMLR 2020, arXiv:1910.10683",
      .state_revision = "1"};
  struct Plan {
    uint64_t bytes;  // scratch of a worker
    attend::Plan backward;
  };

  static attnkit::Options options() {
    return {
        attnkit::Option::integer("buckets", 32, 4, 1024, "rows of the table of biases; even where later keys are seen"),
        attnkit::Option::integer("max_distance", 128, 2, 1 << 20,
                                 "from here on all distances have one bias; more than half of the buckets for a side"),
        attnkit::Option::real("scale", 0, 0, 1e6, "multiplies the scores; 0 means D^-1/2")};
  }

  RelativeBias(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape(b),
        count(values.integer("buckets")),
        buckets(checked(b, values)),
        io(ports.qkv(shape, "weighted mean of the values")),
        bias(ports.learned(b.causal ? "causal_table" : "table", {count, shape.heads}, "bias by bucket and head",
                           ATTN_PER_MODEL)) {
    const double given = values.real("scale");
    scale = given != 0 ? given : 1 / std::sqrt(static_cast<double>(shape.d));
  }

  static Buckets checked(const attn_block& b, const attnkit::Values& values) {
    const int64_t count = values.integer("buckets"), longest = values.integer("max_distance");
    if (!b.causal && count % 2 != 0)
      throw attnkit::unsupported("buckets = ", count,
                                 ": earlier and later keys have half of them each, so their number "
                                 "must be even");
    if (longest <= (b.causal ? count : count / 2) / 2)
      throw attnkit::unsupported("max_distance = ", longest, " is not more than the ",
                                 (b.causal ? count : count / 2) / 2,
                                 " distances that have a bucket each: make it larger, or buckets smaller");
    return {count, longest, b.causal != 0};
  }

  // Normal, with the deviation of weights around it.
  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t size) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < size; ++i) data[i] = static_cast<float>(random.normal());
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    attnkit::check_sight(block, r);
    if (block.role == ATTN_DECODER_CROSS)
      throw attnkit::unsupported(
          "T5's attention has a bias for the distance of two positions, and positions of a target and a source are not "
          "related in cross attention: use it in self attention, and a mechanism such as softmax here");
    const int64_t token = shape.token();
    info.flags = ATTN_REWINDS;
    info.state(r, {.floats = r.capacity() * token, .read = r.capacity() * token, .written = r.keys * token});
    info.flops = static_cast<uint64_t>(shape.heads) * attnkit::pairs(r, block.causal) *
                 static_cast<uint64_t>(2 * (shape.d + shape.e) + 6);
    const int64_t sums = r.batch * shape.heads * Bias<float>::blocks(r.keys) * count;
    const uint64_t few = attnkit::aligned(attnkit::float_bytes(r.capacity() + 2 * simd::kLanes)),
                   many = r.queries < attend::kFew ? 0 : Layout::measure<Block>(shape, r.capacity());
    return {info.scratch(r, std::max(few, many)), attend::Plan(shape, r, info, sums)};
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (is_f64(run, io.o)) {
      attend::run_f64(
          run, io, shape, scale, block.causal != 0,
          [](const Sight& sight, int64_t, int64_t i, const auto& see) {
            for (int64_t j = 0; j < sight.seen(i); ++j) see(j);
          },
          Bias<double>{&buckets, &run, bias.of(run.ports)});
      return;
    }
    const attend::Cut cut(run, shape.heads);
    // Never 0, which would make the -infinity of lanes past the keys NaN.
    const float factor = std::max(static_cast<float>(scale), std::numeric_limits<float>::min());
    const Run body{
        shape, buckets, run, factor, block.causal != 0, cut, {run, io}, bias.of(run.ports), attnkit::State(run)};
    simd::for_items(run, run.batch * shape.heads * cut.blocks, {cut.flops(shape), plan.bytes}, body);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    const bool causal = block.causal != 0;
    attnkit::with_real(is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      attend::Gradient<Real, Bias<Real>> gradient(shape, scale, plan.backward, grad, io);
      const attn_tensor to = bias.of(grad.grads);
      Real* sums = to.data ? gradient.means + run.batch * shape.heads * run.queries : nullptr;
      gradient.bias = {&buckets, &run, bias.of(run.ports), sums};
      if (sums) std::fill(sums, gradient.bias.sums_of(run.batch, 0), Real{0});
      gradient.over_spans(static_cast<double>(run.keys) / (causal ? 2 : 1), causal, [](const Sight& sight, int64_t i) {
        return attend::Span{0, std::max<int64_t>(0, sight.seen(i))};
      });
      if (sums) gradient.bias.collect(to);
    });
  }

  attn_block block;
  Shape shape;
  int64_t count;
  Buckets buckets;
  attnkit::QkvPorts io;
  attnkit::Port bias;
  double scale;
};

}  // namespace

ATTNKIT_PLUGIN(RelativeBias)
