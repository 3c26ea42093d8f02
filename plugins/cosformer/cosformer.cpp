// cosformer: linear attention re-weighted by the cosine of the distance in relative position.
//
// Qin et al.: cosFormer: Rethinking Softmax in Attention, ICLR 2022, arXiv:2202.08791; cross attention from
// Agostinelli and Chen: Modular Linearized Attention, ECML 2023, Eq. 8.
//
//   w_ij = (A_i . B_j) cos(pi/2 (i/N - j/M)),  A = ReLU(Q), B = ReLU(K), i and j from 1
//   o_i  = sum_j w_ij v_j / g(sum_j w_ij)
//        = ([A cos; A sin]_i^T sum_j [B cos; B sin]_j v_j^T) / g(...)
//
// N, M: true lengths of the whole sequences, in self attention the same.  Cost per head: 4 D (E+1)(N+M) flops; state
// 2 D (E+1) floats, whatever the length.
#include <attnkit/kernels/features.hpp>
#include <attnkit/kernels/linear.hpp>

namespace {

using attnkit::Guard;
using attnkit::unsupported;

// The lengths of one run's rows, and the proportion of a position in them.
struct Map {
  int64_t d;
  bool self, joint, saturate;
  const attn_run* run;

  ATTNKIT_INLINE double n(int64_t b) const {
    if (run->q_total) return run->q_total[b];
    return static_cast<double>(run->q_len ? run->q_len[b] : run->queries);
  }
  ATTNKIT_INLINE double m(int64_t b) const {
    if (self) return n(b);
    if (run->k_total) return run->k_total[b];
    return static_cast<double>(run->k_len ? run->k_len[b] : run->keys);
  }
  ATTNKIT_INLINE double proportion(int64_t position, double own, double other) const {
    double i = static_cast<double>(position + 1);
    if (saturate && i > own) i = own;
    return i / (joint && other > own ? other : own);
  }
  ATTNKIT_INLINE void query(const float* x, int64_t b, int64_t, int64_t position, float* row) const {
    attnkit::relu(x, 1, d, row);
    attnkit::rotate(row, d, joint ? proportion(position, n(b), m(b)) : proportion(position, n(b), 0));
  }
  ATTNKIT_INLINE void key(const float* x, int64_t b, int64_t, int64_t position, float* row) const {
    attnkit::relu(x, 1, d, row);
    attnkit::rotate(row, d, joint ? proportion(position, m(b), n(b)) : proportion(position, m(b), 0));
  }
};

struct Cosformer {
  static constexpr attnkit::About about{
      .name = "cosformer",
      .summary = "linear attention with cosine locality: constant state, needs the whole lengths",
      .citation = "Qin et al., cosFormer, ICLR 2022, arXiv:2202.08791",
      .state_revision = "1"};
  using Plan = attnkit::linear::Plan;

  static attnkit::Options options() {
    using attnkit::Option;
    return {Guard::option("clamp"), Guard::eps_option(1e-6),
            Option::text("cross", "ratio", {"ratio", "max"},
                         "cross attention compares i/N with j/M (ratio, MLA Eq. 8) or both over max(N, M) (max)"),
            Option::text("beyond", "clamp", {"clamp", "saturate", "error"},
                         "past a predicted length: go on (clamp, the authors'), hold the position there (saturate), or "
                         "refuse the row (error)")};
  }

  Cosformer(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b),
        shape{b.heads, b.d_model / static_cast<int64_t>(b.heads), 0, b.head_width},
        guard(Guard::from(values)) {
    shape.features = 2 * shape.width;
    const bool self = b.role != ATTN_DECODER_CROSS;
    map = {shape.width, self, !self && values.text("cross") == "max", values.text("beyond") == "saturate", nullptr};
    stop_beyond = values.text("beyond") == "error";
    io = {ports.query("q", shape.width, "queries"), ports.key("k", shape.width, "keys"),
          ports.key("v", shape.values, "values"), ports.output("o", shape.values, "weighted mean of the values")};
  }

  Plan plan(const attn_request& request, attn_info& info) const {
    attnkit::check_sight(block, request);
    const bool whole = !block.causal && !(request.flags & (ATTN_STREAM | ATTN_PREFIX));
    // Keys over their own length alone can be appended before anybody knows the target's.
    const bool source_only = !map.self && !map.joint && request.queries == 0 && request.keys > 0;
    if (!whole && !source_only && !(request.flags & ATTN_KNOWS_Q_TOTAL))
      throw unsupported(
          "cosformer's angles need the whole target length, which nobody gave: set [length] in the manifest, or use a "
          "mechanism without positions such as relu or leap");
    if (!whole && !map.self && !(request.flags & ATTN_KNOWS_K_TOTAL))
      throw unsupported(
          "cosformer's angles need the whole source length, and a source that still grows has none: read all of it "
          "first, or use a mechanism without positions such as relu or leap");
    if (stop_beyond && (request.flags & ATTN_KNOWS_Q_TOTAL)) info.flags |= ATTN_WITHIN_TOTAL;
    return attnkit::linear::plan(shape, request, 0, info);
  }

  void run(const Plan& plan, const attn_run& run) const {
    Map mine = map;
    mine.run = &run;
    attnkit::linear::run(shape, guard, plan, io, block.causal, mine, run);
  }

  attn_block block;
  attnkit::linear::Shape shape;
  Guard guard;
  Map map;
  bool stop_beyond;
  attnkit::linear::Ports io;
};

}  // namespace

ATTNKIT_PLUGIN(Cosformer)
