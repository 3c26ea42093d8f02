// reformer: softmax attention among tokens that a locality-sensitive hash puts near each other; queries are the keys.
// The slow form to compare with the paper: reference.hpp.
//
// Kitaev, Kaiser and Levskaya: Reformer: The Efficient Transformer, ICLR 2020, arXiv:2001.04451; chunks, masks and the
// scaling of keys as in its Hugging Face form.
//
//   k_j = x_j / sqrt(mean x_j^2 + eps) / sqrt(D),   s_ij = x_i . k_j, -1e5 where i = j
//   o_i = sum_r w_r sum_j softmax_j(s_ij) v_j,      w = softmax over the rounds r of logsumexp_j s_ij
//
// In each round tokens are sorted by argmax [x R; -x R] and cut into chunks; j runs over i's chunk and the one before
// it, the first chunk of a round seeing the last of the round before.  Cost per head and round: 2 D buckets/2 N +
// (2 (D+E) + 5) 2 chunk N flops.
//
// A bucket decides who sees whom, so the last bit of a product may not: every x . R_k is summed in f64 feature by
// feature, and a product of two f32 is exact in f64, so fused or not, in vectors of any width, each sum has the same
// bits on every machine.  Of equal maxima the first wins.  Padding is last in the order of every round, in a bucket of
// its own, and nobody sees it; so the tokens of a round are the first n of its order, and the chunks behind them are
// left out.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/stages.hpp>
#include <cmath>

#include "gradient.hpp"

namespace {

using attnkit::Layout;
using attnkit::unsupported;
using attnkit::View;
using reformer::kMaxRows;
using reformer::kSelf;
using reformer::Rounds;
using reformer::Saved;
using reformer::Shape;
using reformer::whole_doubles;
namespace simd = attnkit::simd;

constexpr int64_t kTile = 64;  // tokens that are hashed at a time

// Of a head with up to n tokens.
struct Shared {
  float *keys, *values;             // packed chunks of a round; the last one is the last chunk of the round before
  float *factor, *max, *sum;        // by token: what makes a key of it; its rounds so far
  int32_t *buckets, *order, *ends;  // by round
  Shared(Layout& layout, const Shape& s, int64_t n)
      : keys(layout.take((s.chunks(n) + 1) * s.key_floats())),
        values(layout.take((s.chunks(n) + 1) * s.value_floats())),
        factor(layout.take(n)),
        max(layout.take(n)),
        sum(layout.take(n)),
        buckets(layout.take<int32_t>(s.rounds * n)),
        order(layout.take<int32_t>(s.rounds * n)),
        ends(layout.take<int32_t>(s.rounds * 2 * s.columns)) {}
};

// Of a worker.
struct Own {
  double *rotations, *x, *products;  // [d][columns], [rows][d], [rows][columns], columns in whole vectors
  float *queries, *out;
  Own(Layout& layout, const Shape& s, int64_t)
      : rotations(layout.take<double>(s.d * whole_doubles(s.columns))),
        x(layout.take<double>(kMaxRows * s.d)),
        products(layout.take<double>(kMaxRows * whole_doubles(s.columns))),
        queries(layout.take(simd::kQueries * s.d)),
        out(layout.take(simd::kQueries * s.width())) {}
};

struct Job {
  const Shape& shape;
  const attn_run& run;
  int64_t tokens;  // that there is scratch for
  attnkit::Qkv<> x;
  View<const float> rotations;
};

// One head: hash all rounds, sort them, then round by round pack and attend, at last divide.
struct Head {
  const Job& job;
  const Shape& shape;
  int64_t b, h, n, rounds;
  void* memory;

  Head(const Job& j, int64_t row, int64_t head, void* shared)
      : job(j), shape(j.shape), b(row), h(head), n(attnkit::Sight(j.run, row, false).queries), memory(shared) {
    rounds = shape.rounds_of(n);
  }
  int stages() const { return n > 0 ? static_cast<int>(3 + 2 * rounds) : 0; }
  int64_t pieces(int stage) const {
    if (stage == 0 || stage == 2 + 2 * rounds) return (n + kTile - 1) / kTile;
    if (stage == 1) return rounds;
    return shape.chunks(n) + (stage % 2 == 0 ? 1 : 0);
  }

  template <class Isa>
  ATTNKIT_INLINE void operator()(Isa, int stage, int64_t begin, int64_t end, void* own_memory) const {
    Layout layout(memory), own_layout(own_memory);
    const Shared shared(layout, shape, job.tokens);
    const Own own(own_layout, shape, job.tokens);
    if (stage == 0)
      hash<Isa>(begin * kTile, std::min(n, end * kTile), shared, own);
    else if (stage == 1)
      for (int64_t round = begin; round < end; ++round)
        reformer::sort(shape, n, shared.buckets + round * n, shared.ends + round * 2 * shape.columns,
                       shared.order + round * n);
    else if (stage == 2 + 2 * rounds)
      finish(begin * kTile, std::min(n, end * kTile), shared);
    else if (const int64_t round = stage / 2 - 1; stage % 2 == 0)
      for (int64_t t = begin; t < end; ++t) pack<Isa>(round, t, shared);
    else
      for (int64_t t = begin; t < end; ++t) attend<Isa>(round, t, shared, own);
  }

  // Of tokens [begin, end): what makes keys of them, and their buckets in all rounds.
  template <class Isa>
  ATTNKIT_INLINE void hash(int64_t begin, int64_t end, const Shared& shared, const Own& own) const {
    constexpr int64_t R = Isa::rows;
    const int64_t d = shape.d;
    const auto offset = static_cast<float>(static_cast<double>(d) * shape.eps);
    for (int64_t i = begin; i < end; ++i) {
      const float* x = job.x.q.row(b, h, i);
      shared.factor[i] = 1 / std::sqrt(simd::dot<Isa>(x, x, d) + offset);
    }
    const int64_t half = shape.buckets_of(n) / 2, columns = whole_doubles(half);
    for (int64_t round = 0; round < rounds && !shape.plain(n); ++round) {
      for (int64_t f = 0; f < d; ++f)
        for (int64_t k = 0; k < columns; ++k)
          own.rotations[f * columns + k] = k < half ? double{job.rotations.row(h, f, round)[k]} : 0.0;
      for (int64_t i = begin; i < end; i += R) {
        for (int64_t r = 0; r < R; ++r) {
          const float* row = job.x.q.row(b, h, std::min(i + r, end - 1));
          for (int64_t f = 0; f < d; ++f) own.x[r * d + f] = row[f];
        }
        std::memset(own.products, 0, static_cast<size_t>(R * columns) * sizeof(double));
        simd::add_product<Isa, double>({own.x, d, 1}, {own.rotations, d, columns, columns},
                                       {own.products, R, columns, columns});
        for (int64_t r = 0; r < R && i + r < end; ++r)
          shared.buckets[round * n + i + r] = reformer::bucket<Isa>(own.products + r * columns, half, columns);
      }
    }
  }

  template <class Isa>
  ATTNKIT_INLINE void pack(int64_t round, int64_t t, const Shared& shared) const {
    const Rounds in{shape, n, rounds, shared.order};
    const int32_t* tokens = in.tokens(round, t);
    simd::pack_keys<Isa>(
        in.held(t), shape.d, [&](int64_t j) { return job.x.q.row(b, h, tokens[j]); },
        [&](int64_t j) { return shared.factor[tokens[j]]; }, shared.keys + t * shape.key_floats(), shape.slots());
    simd::pack_values<Isa>(
        in.held(t), shape.e, [&](int64_t j) { return job.x.v.row(b, h, tokens[j]); },
        shared.values + t * shape.value_floats());
  }

  // Chunk t of a round sees itself and the chunk before it.
  template <class Isa>
  ATTNKIT_INLINE void attend(int64_t round, int64_t t, const Shared& shared, const Own& own) const {
    const int32_t *order = shared.order + round * n,
                  *last = Rounds{shape, n, rounds, shared.order}.tokens(round, shape.chunks(n));
    simd::Online online;
    online.out = own.out;
    online.out_row = shape.width();
    const int64_t stop = std::min(n, (t + 1) * shape.chunk);
    for (int64_t from = t * shape.chunk; from < stop; from += simd::kQueries) {
      const int64_t count = std::min(simd::kQueries, stop - from);
      for (int64_t i = 0; i < count; ++i)
        std::memcpy(own.queries + i * shape.d, job.x.q.row(b, h, order[from + i]),
                    static_cast<size_t>(shape.d) * sizeof(float));
      online.begin(count, shape.width());
      see<Isa>(t, count, shared, own, online, [&](int64_t i, int64_t first_key, int64_t keys, float* scores) {
        const int64_t self = from + i - t * shape.chunk - first_key;
        if (self >= 0 && self < keys) scores[self] = kSelf;
      });
      if (t > 0)
        see<Isa>(t - 1, count, shared, own, online, [](int64_t, int64_t, int64_t, float*) {});
      else
        see<Isa>(shape.chunks(n), count, shared, own, online,
                 [&](int64_t i, int64_t first_key, int64_t keys, float* scores) {
                   for (int64_t j = 0; j < keys; ++j)
                     scores[j] = last[first_key + j] == order[from + i] ? kSelf : scores[j];
                 });
      merge(online, order + from, count, shared, round == 0);
    }
  }

  // The queries see packed chunk t.  hide(i, j, n, scores): sets the score of query i with itself, if it is among the n
  // keys from j on.
  template <class Isa, class Hide>
  ATTNKIT_INLINE void see(int64_t t, int64_t queries, const Shared& shared, const Own& own, simd::Online& online,
                          Hide hide) const {
    int64_t seen[simd::kQueries];
    std::fill(seen, seen + queries, shape.chunk);
    const int64_t all = Rounds{shape, n, rounds, shared.order}.held(t);
    for (int64_t j = 0; j < all; j += simd::kKeys) {
      const int64_t count = std::min(simd::kKeys, all - j);
      const simd::Memory chunk{shared.keys + t * shape.key_floats() + j,
                               shape.slots(),
                               shared.values + t * shape.value_floats() + j * shape.width(),
                               shape.width(),
                               count,
                               shape.d,
                               shape.width()};
      simd::attend_block<Isa>(own.queries, shape.d, queries, chunk, j, seen, 1.0f, online,
                              [&](int64_t i, float* scores) { hide(i, j, count, scores); });
    }
  }

  // Outputs of tokens [begin, end) from sums, and what backward needs.
  ATTNKIT_INLINE void finish(int64_t begin, int64_t end, const Shared& shared) const {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t c = 0; c < shape.e; ++c) job.x.o.row(b, h, i)[c] /= shared.sum[i];
    if (job.run.saved == nullptr) return;
    const Saved<float> saved(job.run, shape, b, h);
    for (int64_t i = begin; i < end; ++i) {
      saved.max[i] = shared.max[i];
      saved.sum[i] = shared.sum[i];
      for (int64_t round = 0; round < rounds; ++round) saved.order[round * n + i] = shared.order[round * n + i];
    }
  }

  // Adds a round to what its tokens have from earlier rounds: a softmax of the rounds by their logsumexp is one sum
  // over them all.
  ATTNKIT_INLINE void merge(const simd::Online& online, const int32_t* tokens, int64_t count, const Shared& shared,
                            bool first) const {
    const int64_t e = shape.e;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = tokens[r];
      const float* added = online.out + r * online.out_row;
      float* o = job.x.o.row(b, h, i);
      if (first) {
        shared.max[i] = online.max[r];
        shared.sum[i] = online.sum[r];
        std::memcpy(o, added, static_cast<size_t>(e) * sizeof(float));
        continue;
      }
      const float max = online.max[r] > shared.max[i] ? online.max[r] : shared.max[i];
      const float old = std::exp(shared.max[i] - max), fresh = std::exp(online.max[r] - max);
      shared.max[i] = max;
      shared.sum[i] = shared.sum[i] * old + online.sum[r] * fresh;
      for (int64_t c = 0; c < e; ++c) o[c] = o[c] * old + added[c] * fresh;
    }
  }
};

struct Reformer {
  static constexpr attnkit::About about{
      .name = "reformer",
      .summary = "softmax attention within chunks of tokens sorted by hash: queries are the keys, encoders only",
      .citation = "Kitaev, Kaiser and Levskaya, Reformer, ICLR 2020, arXiv:2001.04451",
      .state_revision = "1"};
  struct Plan {
    int64_t tokens;
    simd::Staged bytes;
    uint64_t backward_bytes;  // of a worker; in f64 of a run as well
  };

  static attnkit::Options options() {
    using attnkit::Option;
    return {
        Option::integer("chunk", 64, 2, 4096, "tokens in a chunk; a chunk sees itself and the one before it"),
        Option::integer("rounds", 2, 1, 16, "rounds of hashing"),
        Option::integer("buckets", 0, 0, 4096, "buckets of a round, even; 0: 2^floor(log2(2 N / chunk)) for N tokens"),
        Option::integer("length", 0, 0, 1 << 20,
                        "tokens to which every row is padded, a multiple of chunk; 0: its own length, up to a whole "
                        "chunk; part of the model"),
        Option::integer("max_length", 4096, 1, 1 << 20,
                        "the longest row that there are rotations for, where buckets and length are 0"),
        Option::real("eps", 1e-6, 1e-12, 1, "added to the mean square of a key's features")};
  }

  Reformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{attnkit::Widths(b),        values.integer("chunk"),  values.integer("rounds"),
              values.integer("buckets"), values.integer("length"), values.real("eps")},
        most(values.integer("max_length")) {
    if (shape.length % shape.chunk != 0)
      throw unsupported("length = ", shape.length, " is not a whole number of chunks of ", shape.chunk,
                        " tokens: make it a multiple of chunk")
          .at(values.index("length"));
    if (shape.buckets % 2 != 0)
      throw unsupported("buckets = ", shape.buckets,
                        " is odd, and half of the buckets are the opposites of the others: make it even, or 0 to let "
                        "the length decide")
          .at(values.index("buckets"));
    if (shape.length > 0) most = shape.length;
    const int64_t chunks = shape.whole(most, shape.chunk) / shape.chunk;
    shape.columns = (shape.buckets > 0 ? shape.buckets : shape.buckets_for(chunks)) / 2;
    io.q = ports.query("q", shape.d, "queries, which are also the keys", ATTN_NO_BIAS);
    io.v = ports.key("v", shape.e, "values");
    io.o = ports.output("o", shape.e, "weighted mean of the values");
    rotations = ports.table("rotations", {shape.heads, shape.d, shape.rounds, shape.columns},
                            "random directions; with fewer buckets the first ones count");
  }

  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(random.normal());
  }

  Plan plan(const attnkit::Request& r, attnkit::Info& info) const {
    check_place(r);
    const int64_t n = r.queries, d = shape.d, used = shape.plain(n) ? 0 : d * shape.rounds * (shape.buckets_of(n) / 2);
    Plan plan{n, simd::Staged::measure<Shared, Own>(shape, n), 0};
    attnkit::with_real(r.is_f64(), [&](auto real) {
      plan.backward_bytes = Layout::measure<reformer::GradientScratch<decltype(real)>>(shape, n, r.is_f64());
    });
    info.scratch(r, r.is_f64() ? plan.backward_bytes : plan.bytes.worker_bytes());
    info.train(r, Saved<float>::numbers(r, shape), plan.backward_bytes);
    info.flops = static_cast<uint64_t>(r.batch * shape.heads * (2 * n * used + pairs(n) * (2 * (d + shape.e) + 5)));
    info.bytes_read = r.real_bytes(shape.heads * r.batch * n * (d + shape.e)) +
                      attnkit::float_bytes(shape.heads * used);  // of rotations
    return plan;
  }

  void check_place(const attnkit::Request& r) const {
    if (block.causal || block.role != ATTN_ENCODER_SELF)
      throw unsupported(
          "Reformer sorts the whole sequence, and its queries are its keys, so here it fits the self attention of an "
          "encoder only: use a mechanism such as softmax, relu or leap");
    if (r.streams()) throw unsupported("Reformer cannot stream, it sorts the whole sequence: run whole sequences");
    if (r.shows_prefixes())
      throw unsupported("Reformer has no prefix form, it sorts the whole sequence: run it without ATTN_PREFIX");
    if (r.queries != r.keys)
      throw unsupported("a plan for up to ", r.queries, " queries and ", r.keys,
                        " keys is for two sequences, and Reformer's queries are its keys: ask for as many of "
                        "each");
    const int64_t wanted = r.queries;
    if (shape.length > 0 && wanted > shape.length)
      throw unsupported("every row is padded to ", shape.length, " tokens and up to ", wanted,
                        " were asked for: raise the option \"length\", or shorten the sequence");
    if (shape.length == 0 && shape.buckets == 0 && wanted > most)
      throw unsupported("there are rotations for rows of ", most, " tokens and up to ", wanted,
                        " were asked for: raise the option \"max_length\", or shorten the sequence");
  }

  // Pairs of query and key of one head: whatever the buckets, a round has the same chunks.
  int64_t pairs(int64_t n) const {
    if (shape.plain(n)) return n * n;
    int64_t pairs = 0, previous = shape.across(n);
    for (int64_t t = 0; t < shape.chunks(n); ++t) {
      const int64_t own = std::min(shape.chunk, n - t * shape.chunk);
      pairs += own * (own + previous);
      previous = own;
    }
    return shape.rounds * pairs;
  }

  void run(const Plan& plan, const attn_run& run) const {
    if (run.queries != run.keys)
      throw attnkit::invalid("a run has ", run.queries, " queries and ", run.keys,
                             " keys, and Reformer's queries are its keys: give it one sequence");
    for (int64_t b = 0; b < run.batch; ++b)
      if (const attnkit::Sight sight(run, b, false); sight.queries != sight.fresh)
        throw attnkit::invalid("row ", b, " has ", sight.queries, " queries and ", sight.fresh,
                               " keys, and Reformer's queries are its keys: give q_len and k_len the same lengths");
    if (attnkit::is_f64(run, io.o)) {
      const attnkit::Qkv<double> x(run, io);
      heads(plan, run, x, [&](const auto& head) {
        head.write({run, rotations}, x.o);
        if (run.saved != nullptr) head.save({run, shape, head.b, head.h});
      });
      return;
    }
    simd::for_stages<Head>(run, shape.heads, flops(run), plan.bytes,
                           Job{shape, run, plan.tokens, {run, io}, {run, rotations}});
  }

  double flops(const attn_run& run) const {  // of a head
    const double pairs = static_cast<double>(run.queries) * 2.0 * static_cast<double>(shape.rounds * shape.chunk);
    return pairs * 2.0 * static_cast<double>(shape.d + shape.e);
  }

  void backward(const Plan& plan, const attn_grad& grad) const {
    const attn_run& run = *grad.run;
    attnkit::with_real(attnkit::is_f64(run, io.o), [&](auto real) {
      using Real = decltype(real);
      const attnkit::QkvGrad<Real> g(grad, io);
      heads(plan, run, attnkit::Qkv<Real>(run, io),
            [&](const auto& head) { head(Saved<Real>(run, shape, head.b, head.h), g); });
    });
  }

  // Calls body(head) for all that have tokens.
  template <class Real, class Body>
  void heads(const Plan& plan, const attn_run& run, const attnkit::Qkv<Real>& x, const Body& body) const {
    attnkit::for_each_head(
        run, shape.heads, {3 * flops(run), plan.backward_bytes}, [&](int64_t b, int64_t h, void* memory) {
          const int64_t n = attnkit::Sight(run, b, false).queries;
          Layout layout(memory);
          const reformer::GradientScratch<Real> scratch(layout, shape, plan.tokens, sizeof(Real) == sizeof(double));
          if (n > 0) body(reformer::GradientHead<Real>{shape, b, h, n, x, scratch});
        });
  }

  attn_block block;
  Shape shape;
  int64_t most;  // tokens of a row, where rotations or padding set a limit
  attnkit::QkvPorts io;
  attnkit::Port rotations;
};

}  // namespace

ATTNKIT_PLUGIN(Reformer)
