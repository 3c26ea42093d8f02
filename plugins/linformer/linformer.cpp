// linformer: softmax attention over k learned mixtures of the keys and values.
// The slow form to compare with the paper: reference.hpp.
//
// Wang et al.: Linformer: Self-Attention with Linear Complexity, 2020, arXiv:2006.04768, Eq. 7.
//
//   o_i = sum_t p_it Vbar_t,   p_it = softmax over t = 1 ... k of D^-1/2 Q_i . Kbar_t
//   Kbar_t = sum_j E_tj K_j,   Vbar_t = sum_j F_tj V_j,   E, F [k, n_max] learned; key j takes column j
//
// Both sums are additive in the keys, so they are the state of cross attention.  Cost per head: 2 k (D+E)(N+M) + 5 k N
// flops; state k (D+E) floats, whatever the length.
#include <attnkit/kernels/attend.hpp>
#include <attnkit/kernels/guard.hpp>
#include <attnkit/kernels/random.hpp>
#include <attnkit/kernels/work.hpp>

namespace {

using attnkit::Sight;
using attnkit::View;
namespace simd = attnkit::simd;

constexpr int64_t kKeys = 32;  // projected at a time

struct Shape {
  int64_t heads, d, e, rank, n_max;
  int64_t lanes() const { return simd::whole_lanes(rank); }
  // Kbar transposed, [D][lanes], then Vbar [rank][E].
  int64_t head() const { return d * lanes() + rank * e; }
};

struct Ports {
  uint32_t q, k, v, o, e, f;  // e and f are one port when one matrix serves both
};

struct Plan {
  uint64_t worker_bytes;  // columns of a block of keys, and one head if stateless
};

struct Job {
  const Shape& shape;
  const Plan& plan;
  const attn_run& run;
  float scale;
  bool one_matrix;
  View<const float> q, k, v, e, f;
  View<float> o;
};

struct Body : simd::HeadWork<Body, Job> {
  using HeadWork::HeadWork;

  template <class Isa>
  ATTNKIT_INLINE void one(int64_t b, int64_t h) const {
    const attn_run& run = job.run;
    const Shape& s = job.shape;
    float* const columns = floats();
    float* head = head_of(b, h, columns + kKeys * s.lanes());
    const simd::Memory memory{head, s.lanes(), head + s.d * s.lanes(), s.e, s.rank, s.d, s.e};
    const Sight sight(run, b, false);
    int64_t appended = 0, block = 1;
    for (int64_t i = 0; i < run.queries; i += block) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      block = 1;
      if (seen <= 0) {
        std::memset(job.o.row(b, h, i), 0, static_cast<size_t>(s.e) * sizeof(float));
        continue;
      }
      append_to<Isa>(seen - sight.past, appended, sight.past, b, h, columns, head);
      while (block < simd::kQueries && i + block < sight.queries && sight.seen(i + block) == seen) ++block;
      simd::attend<Isa>(job.q.row(b, h, i), job.q.next, block, memory, job.scale, job.o.row(b, h, i), job.o.next);
    }
    if (run.state) append_to<Isa>(sight.fresh, appended, sight.past, b, h, columns, head);
  }

  ATTNKIT_INLINE float* head_of(int64_t b, int64_t h, float* scratch) const {
    const attn_run& run = job.run;
    if (run.state) {
      auto* row =
          static_cast<char*>(run.state) + static_cast<uint64_t>(run.slots ? run.slots[b] : b) * run.state_stride;
      return reinterpret_cast<float*>(row) + h * job.shape.head();
    }
    std::memset(scratch, 0, static_cast<size_t>(job.shape.head()) * sizeof(float));
    return scratch;
  }

  template <class Isa>
  ATTNKIT_INLINE void append_to(int64_t limit, int64_t& appended, int64_t past, int64_t b, int64_t h, float* columns,
                                float* head) const {
    const Shape& s = job.shape;
    const int64_t lanes = s.lanes();
    while (appended < limit) {
      const int64_t n = std::min(kKeys, limit - appended);
      take(job.e, h, past + appended, n, columns);
      simd::add_product<Isa, float>({job.k.row(b, h, appended), 1, job.k.next}, {columns, n, lanes, lanes},
                                    {head, s.d, lanes, lanes});
      if (!job.one_matrix) take(job.f, h, past + appended, n, columns);
      simd::add_product<Isa, float>({columns, 1, lanes}, {job.v.row(b, h, appended), n, s.e, job.v.next},
                                    {head + s.d * lanes, s.rank, s.e, s.e});
      appended += n;
    }
  }

  // Columns [from, from + n) of a projection as rows; the lanes past the rank are zero.
  ATTNKIT_INLINE void take(const View<const float>& matrix, int64_t h, int64_t from, int64_t n, float* columns) const {
    simd::pack_keys(
        job.shape.rank, n, [&](int64_t r) { return matrix.row(0, h, r) + from; }, columns, job.shape.lanes());
  }
};

struct Linformer {
  static constexpr attnkit::About about{
      .name = "linformer",
      .summary = "softmax over learned mixtures of the keys: linear cost, whole sequences and cross attention",
      .citation = "Wang et al., Linformer: Self-Attention with Linear Complexity, 2020, arXiv:2006.04768",
      .state_revision = "1"};
  using Plan = ::Plan;

  static attnkit::Options options() {
    return {
        attnkit::Option::integer("rank", 128, 1, 1 << 14, "k, the number of projected keys and values"),
        attnkit::Option::integer("n_max", 4096, 1, 1 << 20, "most keys of a sequence: columns of the projections"),
        attnkit::Option::text("sharing", "heads", {"heads", "per_head_kv", "all"},
                              "heads: E for keys and F for values, shared by the heads; per_head_kv: one matrix per "
                              "head for both; all: one matrix")};
  }

  Linformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), b.head_width, values.integer("rank"),
              values.integer("n_max")},
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(shape.d)))) {
    const auto sharing = values.text("sharing");
    io = {ports.query("q", shape.d, "queries"),
          ports.key("k", shape.d, "keys"),
          ports.key("v", shape.e, "values"),
          ports.output("o", shape.e, "weighted mean of the projected values"),
          0,
          0};
    if (sharing == "per_head_kv") {
      io.e = io.f =
          ports.learned("e", {shape.heads, shape.rank, shape.n_max}, "projection of keys and values, by head");
      matrices = shape.heads;
    } else if (sharing == "all") {
      io.e = io.f = ports.learned("e", {shape.rank, shape.n_max}, "projection of keys and values");
      matrices = 1;
    } else {
      io.e = ports.learned("e", {shape.rank, shape.n_max}, "projection of keys");
      io.f = ports.learned("f", {shape.rank, shape.n_max}, "projection of values");
      matrices = 2;
    }
  }

  // torch.nn.Linear's default, a layer with n_max inputs: uniform in +-1/sqrt(n_max).
  void fill(uint32_t port, uint64_t seed, float* data, int64_t count) const {
    attnkit::Random random(seed, port);
    const double bound = 1 / std::sqrt(static_cast<double>(shape.n_max));
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    if (block.causal)
      throw attnkit::unsupported(
          "each projected key mixes the keys of all positions, later ones included, so there is no causal form: make "
          "the "
          "block bidirectional, or use a mechanism such as softmax or linear");
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const int64_t most = stream ? r.past + r.keys : r.keys;
    if (most > shape.n_max)
      throw attnkit::unsupported("n_max = ", shape.n_max, " columns, one for each key, cannot project ", most,
                                 " keys: shorten the sequence, or train with a larger n_max");
    const auto size = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t items = r.batch * shape.heads, state = stream ? items * shape.head() : 0;
    const int64_t held = stream ? 0 : shape.head();
    const Plan plan{attnkit::aligned(size(kKeys * shape.lanes() + held))};
    info.scratch_bytes = plan.worker_bytes * r.workers;
    info.state_bytes = stream ? attnkit::aligned(size(shape.heads * shape.head())) : 0;
    info.flops = static_cast<uint64_t>(items) * item_flops(r.queries, r.keys);
    info.bytes_read = size(items * (r.queries * shape.d + r.keys * (shape.d + shape.e)) + state +
                           (items > 0 ? matrices * shape.rank * r.keys : 0));
    info.bytes_written = size(items * r.queries * shape.e + (r.keys > 0 ? state : 0));
    return plan;
  }

  uint64_t item_flops(int64_t queries, int64_t keys) const {
    return static_cast<uint64_t>(shape.rank * (2 * (shape.d + shape.e) * (queries + keys) + 5 * queries));
  }

  void run(const Plan& plan, const attn_run& run) const {
    const auto view = [&run](uint32_t port) { return View<const float>(run.ports[port]); };
    const Job job{shape,
                  plan,
                  run,
                  scale,
                  io.e == io.f,
                  view(io.q),
                  view(io.k),
                  view(io.v),
                  view(io.e),
                  view(io.f),
                  View<float>(run.ports[io.o])};
    simd::share_heads<Body>(job, static_cast<double>(item_flops(run.queries, run.keys)));
  }

  attn_block block;
  Shape shape;
  float scale;
  int64_t matrices = 0;
  Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Linformer)
