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
#include <attnkit/kernels/random.hpp>

#include "walk.hpp"

namespace {

using attnkit::View;
namespace reformer = attnkit::reformer;

struct Reformer {
  static constexpr attnkit::About about{
      .name = "reformer",
      .summary = "softmax attention within chunks of tokens sorted by hash: queries are the keys, encoders only",
      .citation = "Kitaev, Kaiser and Levskaya, Reformer, ICLR 2020, arXiv:2001.04451",
      .state_revision = "1"};
  using Plan = reformer::Plan;

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
        shape{b.heads,
              values.integer("chunk"),
              b.d_model / static_cast<int64_t>(b.heads),
              b.head_width,
              values.integer("rounds"),
              values.integer("buckets"),
              values.integer("length"),
              0,
              values.real("eps")},
        most(values.integer("max_length")) {
    check(values);
    if (shape.length > 0) most = shape.length;
    const int64_t chunks = shape.whole(most, shape.chunk) / shape.chunk;
    shape.columns = (shape.buckets > 0 ? shape.buckets : shape.buckets_for(chunks)) / 2;
    io.q = ports.query("q", shape.d, "queries, which are also the keys", ATTN_NO_BIAS);
    io.v = ports.key("v", shape.e, "values");
    io.o = ports.output("o", shape.e, "weighted mean of the values");
    io.rotations = ports.table("rotations", {shape.heads, shape.d, shape.rounds, shape.columns},
                               "random directions; with fewer buckets the first ones count");
  }

  void check(const attnkit::Values& values) const {
    if (shape.length % shape.chunk != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("length = ", shape.length, " is not a whole number of chunks of ",
                                          shape.chunk, " tokens: make it a multiple of chunk"),
                             values.index("length"));
    if (shape.buckets % 2 != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("buckets = ", shape.buckets,
                                          " is odd, and half of the buckets are the opposites of the others: make it "
                                          "even, or 0 to let the length decide"),
                             values.index("buckets"));
  }

  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(random.normal());
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    check_place(r);
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const Plan plan{r.queries, reformer::Space::bytes(shape, r.queries)};
    const int64_t n = r.queries, items = r.batch * shape.heads, d = shape.d, e = shape.e;
    const int64_t rotations = shape.plain(n) ? 0 : d * shape.rounds * (shape.buckets_of(n) / 2);
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.flops = static_cast<uint64_t>(items * (2 * n * rotations + pairs(n) * (2 * (d + e) + 5)));
    info.bytes_read = size(items * (r.queries * d + r.keys * e) + shape.heads * rotations);
    info.bytes_written = size(items * r.queries * e);
    return plan;
  }

  void check_place(const attn_request& r) const {
    attnkit::check::only_f32(r);
    if (block.causal || block.role != ATTN_ENCODER_SELF)
      throw attnkit::unsupported(
          "Reformer sorts the whole sequence, and its queries are its keys, so here it fits the self attention of an "
          "encoder only: use a mechanism such as softmax, relu or leap");
    if (r.flags & ATTN_STREAM)
      throw attnkit::unsupported("Reformer cannot stream, it sorts the whole sequence: run whole sequences");
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "Reformer has no prefix form, it sorts the whole sequence: run it without "
          "ATTN_PREFIX");
    if (r.queries != r.keys)
      throw attnkit::unsupported("a plan for up to ", r.queries, " queries and ", r.keys,
                                 " keys is for two sequences, and Reformer's queries are its keys: ask for as many of "
                                 "each");
    const int64_t wanted = r.queries;
    if (shape.length > 0 && wanted > shape.length)
      throw attnkit::unsupported("every row is padded to ", shape.length, " tokens and up to ", wanted,
                                 " were asked for: raise the option \"length\", or shorten the sequence");
    if (shape.length == 0 && shape.buckets == 0 && wanted > most)
      throw attnkit::unsupported("there are rotations for rows of ", most, " tokens and up to ", wanted,
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
    const reformer::Job job{shape,
                            plan,
                            run,
                            View<const float>(run.ports[io.q]),
                            View<const float>(run.ports[io.v]),
                            View<const float>(run.ports[io.rotations]),
                            View<float>(run.ports[io.o])};
    const double pairs = static_cast<double>(run.queries) * 2.0 * static_cast<double>(shape.rounds * shape.chunk);
    attnkit::simd::share_heads<reformer::Body>(job, pairs * 2.0 * static_cast<double>(shape.d + shape.e));
  }

  attn_block block;
  reformer::Shape shape;
  int64_t most;  // tokens of a row, where rotations or padding set a limit
  reformer::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Reformer)
