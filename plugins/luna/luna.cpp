// luna: attention through a short sequence P that travels from block to block; linear in the length.
// The slow form to compare with the paper: reference.hpp.
//
// Ma, Kong, Wang, Zhou, May, Ma and Zettlemoyer: Luna: Linear Unified Nested Attention, NeurIPS 2021, arXiv:2106.01540.
//
//   pack:    Y = softmax(s P W_pq (C W_pk)^T) C W_pv,   P' = LN(Y + P)
//   unpack:  o_i = softmax(s q_i (Y W_k)^T) Y W_v
//   causal:  A_tr = w(s (P W_pq)_r . pk_t),   K_tr = sum_(j <= t) A_jr k_j,   V_tr = sum_(j <= t) A_jr v_j,
//            o_t = 1/t sum_r softmax_r(s/t q_t . K_tr) V_tr
//
// by heads; C is the block's context, P has l rows, s = D^-1/2, and w is positive.  Tied: W_pk = W_pv and W_k = W_v.
// Cost per head: 4 l D (N + M) flops, and those of projecting P and Y; the state has l rows of a few numbers.
#include <attnkit/kernels/random.hpp>

#include "causal.hpp"
#include "pack.hpp"

namespace {

using attnkit::View;
using luna::Dense;
using luna::kTile;
using luna::Map;
using luna::Shape;

constexpr uint32_t kNone = ~0u;
// What p_start is drawn from in every block, so that a model has one whatever the port's index: no other tensor's index
// is as low.
constexpr uint64_t kStartStream = 2;

struct Ports {
  uint32_t q = kNone, k = kNone, v = kNone, pk = kNone, pv = kNone, p_in = kNone, p_out = kNone, start = kNone;
  uint32_t pq_weight = kNone, pq_bias = kNone, k_weight = kNone, k_bias = kNone, v_weight = kNone, v_bias = kNone;
  uint32_t norm_weight = kNone, norm_bias = kNone, o = kNone;
};

struct Plan {
  uint64_t worker_bytes;           // of scratch; then, by batch row, what has no state, and pq and the packed sequence
  uint64_t row_bytes, rows_bytes;  // of one of each
};

struct Luna {
  static constexpr attnkit::About about{
      .name = "luna",
      .summary = "packs the context into a short sequence that travels between blocks, then attends to that",
      .citation = "Ma et al., Luna: Linear Unified Nested Attention, NeurIPS 2021, arXiv:2106.01540",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    using attnkit::Option;
    return {
        Option::integer("projection", 16, 1, 4096, "l, the rows of the packed sequence P"),
        Option::integer("pheads", 0, 0, 4096, "heads of the pack attention; 0: those of the block"),
        Option::boolean("tied", true, "one projection for keys and values, of the pack and of the unpack attention"),
        Option::boolean("contextual", true,
                        "P comes from the block before; false: each block starts from the learned P"),
        Option::boolean("dynamic", true, "rows of P past a sequence's own length are left out"),
        Option::text("activation", "log2", {"log2", "softplus", "elu1"},
                     "w of the causal form: log2(1 + 2^x), log(1 + e^x) or elu(x) + 1; part of the model")};
  }

  Luna(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports) : block(b) {
    const auto map = values.text("activation");
    const int64_t given = values.integer("pheads"), heads = b.heads;
    shape = {heads, given != 0 ? given : heads, b.d_model / heads, b.head_width, values.integer("projection"),
             b.causal != 0, values.boolean("tied"),
             // P that other blocks of the same encoder made has seen all of it: no business of a causal one.
             values.boolean("contextual") && !(b.causal && b.role == ATTN_ENCODER_SELF), values.boolean("dynamic"),
             map == "log2"       ? Map::kLog2
             : map == "softplus" ? Map::kSoftplus
                                 : Map::kElu1};
    if (b.d_model % shape.pack_heads != 0)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("pheads is ", given, " and d_model ", b.d_model,
                                          ", which it does not divide: set pheads to a divisor of d_model, or to 0"),
                             values.index("pheads"));
    if (shape.causal && given != 0 && given != heads)
      throw attnkit::Refusal(ATTN_UNSUPPORTED,
                             attnkit::say("pheads is ", given, " in a causal block of ", heads,
                                          " heads, where packing and unpacking share their heads: set pheads to 0"),
                             values.index("pheads"));
    list(ports);
  }

  void list(attnkit::Ports& ports) {
    const int64_t width = shape.width(), l = shape.l;
    const bool gives = shape.contextual && !shape.causal;
    io.q = ports.query("q", shape.d, "queries of the unpack attention");
    if (shape.causal) {
      io.k = ports.key("k", shape.d, "keys, and values when tied");
      if (!shape.tied) io.v = ports.key("v", shape.e, "values");
    }
    io.pk = ports.key("pk", shape.d, "keys of the pack attention, and its values when tied");
    if (!shape.causal && !shape.tied) io.pv = ports.key("pv", shape.d, "values of the pack attention");
    io.start = ports.learned("p_start", {l, width}, "P before the first block", ATTN_PER_MODEL);
    io.pq_weight = ports.learned("pq_weight", {width, width}, "queries of the pack attention, of P");
    io.pq_bias = ports.learned("pq_bias", {width}, "their bias");
    if (!shape.causal) {
      io.k_weight = ports.learned("k_weight", {width, width}, "keys of the packed sequence, and values when tied");
      io.k_bias = ports.learned("k_bias", {width}, "their bias");
    }
    if (!shape.causal && !shape.tied) {
      io.v_weight = ports.learned("v_weight", {shape.heads * shape.e, width}, "values of the packed sequence");
      io.v_bias = ports.learned("v_bias", {shape.heads * shape.e}, "their bias");
    }
    if (gives) {
      io.norm_weight = ports.learned("norm_weight", {width}, "scale of the norm of P");
      io.norm_bias = ports.learned("norm_bias", {width}, "shift of the norm of P");
    }
    if (shape.contextual) io.p_in = ports.aux_in("p", l, width, "P as the block before left it");
    if (gives) io.p_out = ports.aux_out("p", l, width, "P for the blocks that follow");
    io.o = ports.output("o", shape.values(), "what the queries find in the packed sequence");
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    check(r);
    const auto size = [](int64_t n) { return attnkit::aligned(static_cast<uint64_t>(n) * sizeof(float)); };
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const uint64_t memory = size(shape.causal ? luna::CausalMemory::floats(shape) : luna::Memory::floats(shape));
    const int64_t dp = shape.width() / shape.pack_heads;
    Plan plan{};
    plan.worker_bytes = size(shape.causal ? shape.lanes() : kTile * (shape.lanes() + dp) + dp);
    plan.row_bytes = stream ? 0 : memory;
    plan.rows_bytes = shape.causal || r.keys == 0 ? 0 : 2 * size(shape.l * shape.width());
    info.scratch_bytes =
        plan.worker_bytes * r.workers + (plan.row_bytes + plan.rows_bytes) * static_cast<uint64_t>(r.batch);
    info.state_bytes = stream ? memory : 0;
    info.flops = static_cast<uint64_t>(r.batch) * flops(r);
    count_bytes(r, info);
    return plan;
  }

  void check(const attn_request& r) const {
    attnkit::check_sight(block, r);
    if (r.flags & ATTN_PREFIX)
      throw attnkit::unsupported(
          "luna packs the whole context into P before any query reads it, and would have to pack anew for every length "
          "of the visible prefix: run it without ATTN_PREFIX, or use a mechanism such as linear or softmax");
    if (!shape.causal && shape.contextual && (r.flags & ATTN_STREAM) && !(r.flags & ATTN_KNOWS_K_TOTAL))
      throw attnkit::unsupported(
          "the P that this block takes from the block before is made of the whole source, so a source that grows would "
          "change it: read the whole source first, or set contextual = false");
  }

  // Does a run at these bounds begin sequences, so that P is projected?
  bool begins(const attn_request& r) const {
    return r.keys > 0 && (!shape.causal || r.past == 0 || !(r.flags & ATTN_STREAM));
  }

  // Of one batch row.
  uint64_t flops(const attn_request& r) const {
    const int64_t width = shape.width(), values = shape.heads * shape.values(), l = shape.l;
    const int64_t exponentials =
        5 * l * (shape.causal ? shape.heads * r.queries : shape.heads * r.queries + shape.pack_heads * r.keys);
    const int64_t append = 2 * l * r.keys * (2 * width + (shape.causal && !shape.tied ? values : 0));
    const int64_t read = 2 * l * r.queries * (width + values);
    int64_t columns = begins(r) ? width : 0;
    if (!shape.causal && r.keys > 0) columns += width + (shape.tied ? 0 : values);
    return static_cast<uint64_t>(append + read + exponentials + 2 * l * width * columns);
  }

  void count_bytes(const attn_request& r, attn_info& info) const {
    const int64_t width = shape.width(), values = shape.heads * shape.values(), l = shape.l;
    const bool stream = (r.flags & ATTN_STREAM) != 0, gives = shape.contextual && !shape.causal;
    const int64_t state =
        stream ? r.batch * (shape.causal ? luna::CausalMemory::floats(shape) : luna::Memory::floats(shape)) : 0;
    int64_t keys = width + (shape.tied ? 0 : shape.causal ? values : width), learned = 0;
    if (shape.causal) keys += width;
    if (begins(r)) learned += width * (width + 1);
    if (!shape.causal && r.keys > 0)
      learned += (width + 1) * (width + (shape.tied ? 0 : values)) + (gives ? 2 * width : 0);
    const int64_t p = begins(r) ? l * width * (shape.contextual ? r.batch : 1) : 0;
    const int64_t read = r.batch > 0 ? r.batch * (r.queries * width + r.keys * keys) + learned + p + state : 0;
    const int64_t written = r.batch * (r.queries * values + (gives ? l * width : 0)) + (r.keys > 0 ? state : 0);
    info.bytes_read = static_cast<uint64_t>(read) * sizeof(float);
    info.bytes_written = static_cast<uint64_t>(written) * sizeof(float);
  }

  void run(const Plan& plan, const attn_run& run) const {
    char* rest = static_cast<char*>(run.exec->scratch) + plan.worker_bytes * run.exec->workers;
    char* memory = run.state ? static_cast<char*>(run.state) : rest;
    const uint64_t stride = run.state ? run.state_stride : plan.row_bytes;
    const auto pq = reinterpret_cast<float*>(rest + plan.row_bytes * static_cast<uint64_t>(run.batch));
    if (shape.causal)
      luna::run_causal(causal_job(plan, run, memory, stride));
    else
      luna::run_pack(pack_job(plan, run, memory, stride, pq));
  }

  luna::CausalJob causal_job(const Plan& plan, const attn_run& run, char* memory, uint64_t stride) const {
    const auto view = [&run](uint32_t port) { return View<const float>(run.ports[port]); };
    return {shape,
            run,
            static_cast<float*>(run.exec->scratch),
            static_cast<int64_t>(plan.worker_bytes / sizeof(float)),
            memory,
            stride,
            given(run),
            p(run),
            view(io.q),
            view(io.k),
            view(shape.tied ? io.k : io.v),
            view(io.pk),
            View<float>(run.ports[io.o]),
            dense(run, io.pq_weight, io.pq_bias),
            static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)))};
  }

  luna::PackJob pack_job(const Plan& plan, const attn_run& run, char* memory, uint64_t stride, float* pq) const {
    const auto view = [&run](uint32_t port) { return View<const float>(run.ports[port]); };
    const auto row = [&run](uint32_t port) { return static_cast<const float*>(run.ports[port].data); };
    const bool gives = shape.contextual;
    const int64_t dp = shape.width() / shape.pack_heads;
    return {shape,
            run,
            static_cast<float*>(run.exec->scratch),
            pq,
            pq + run.batch * shape.l * shape.width(),
            static_cast<int64_t>(plan.worker_bytes / sizeof(float)),
            memory,
            stride,
            p(run),
            view(io.q),
            view(io.pk),
            view(shape.tied ? io.pk : io.pv),
            gives ? View<float>(run.ports[io.p_out]) : View<float>(),
            View<float>(run.ports[io.o]),
            dense(run, io.pq_weight, io.pq_bias),
            dense(run, io.k_weight, io.k_bias),
            shape.tied ? Dense{} : dense(run, io.v_weight, io.v_bias),
            gives ? row(io.norm_weight) : nullptr,
            gives ? row(io.norm_bias) : nullptr,
            static_cast<float>(1 / std::sqrt(static_cast<double>(dp))),
            static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)))};
  }

  bool given(const attn_run& run) const { return shape.contextual && run.ports[io.p_in].data != nullptr; }

  View<const float> p(const attn_run& run) const {
    return View<const float>(run.ports[given(run) ? io.p_in : io.start]);  // the learned one is the same for all rows
  }

  static Dense dense(const attn_run& run, uint32_t weight, uint32_t bias) {
    return {View<const float>(run.ports[weight]), static_cast<const float*>(run.ports[bias].data)};
  }

  // P standard normal; weights Xavier-uniform with gain 1/sqrt 2, biases uniform in 1/sqrt fan-in; norms the identity.
  ATTNKIT_EXACT void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    ATTNKIT_NO_CONTRACTION
    attnkit::Random random(seed, port == io.start ? kStartStream : port);
    const auto width = static_cast<double>(shape.width());
    const double out = port == io.v_weight ? static_cast<double>(shape.heads * shape.e) : width;
    const double weight = std::sqrt(3 / (width + out)), bias = 1 / std::sqrt(width);
    for (int64_t i = 0; i < count; ++i) {
      double x = port == io.norm_weight ? 1 : 0;
      if (port == io.start) x = random.normal();
      if (port == io.pq_weight || port == io.k_weight || port == io.v_weight) x = (2 * random.uniform() - 1) * weight;
      if (port == io.pq_bias || port == io.k_bias || port == io.v_bias) x = (2 * random.uniform() - 1) * bias;
      data[i] = static_cast<float>(x);
    }
  }

  attn_block block;
  Shape shape;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Luna)
