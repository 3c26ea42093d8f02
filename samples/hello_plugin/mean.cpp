// mean: every query gets the mean of the values it sees, the newer ones weighted more if asked.
//
//   o_i = sum_j decay^(n_i - j) v_j / sum_j decay^(n_i - j),   j = 1 ... n_i, the keys that query i sees
//
// It reads no queries, so it is no useful attention, but it is the smallest one that streams.  Cost per head: 2 (E+1)
// flops per key, E per query; state E+1 floats, whatever the length: the weighted sum of the values, then of 1.
#include <attnkit/kernels/guard.hpp>

namespace {

struct Mean {
  static constexpr attnkit::About about{.name = "mean",
                                        .summary = "the mean of the values: the smallest mechanism that streams",
                                        .citation = "none, a sample of attnkit",
                                        .state_revision = "1"};
  struct Plan {};

  static attnkit::Options options() {
    return {attnkit::Option::real("decay", 1, 0, 1, "weight of a value relative to the next newer one")};
  }

  Mean(const attn_block& b, const attnkit::Values& values, attnkit::Ports& ports)
      : block(b), heads(b.heads), e(b.head_width), decay(static_cast<float>(values.real("decay"))) {
    v = ports.key("v", e, "values");
    o = ports.output("o", e, "mean of the values");
  }

  Plan plan(const attn_request& r, attn_info& info) const {
    attnkit::check_sight(block, r);
    const bool stream = (r.flags & ATTN_STREAM) != 0;
    const auto floats = [](int64_t n) { return static_cast<uint64_t>(n) * sizeof(float); };
    const int64_t items = r.batch * heads, sums = stream ? items * (e + 1) : 0;
    info.scratch_bytes = stream ? 0 : attnkit::aligned(floats(e + 1));
    info.state_bytes = stream ? attnkit::aligned(floats(heads * (e + 1))) : 0;
    info.flops = static_cast<uint64_t>(items * (r.keys * 2 * (e + 1) + r.queries * e));
    info.bytes_read = floats(items * r.keys * e + sums);
    info.bytes_written = floats(items * r.queries * e + (r.keys ? sums : 0));
    return {};
  }

  void run(const Plan&, const attn_run& run) const {
    for (int64_t b = 0; b < run.batch; ++b)
      for (int64_t h = 0; h < heads; ++h) {
        auto* sums = static_cast<float*>(run.exec->scratch);
        if (run.state)
          sums = reinterpret_cast<float*>(static_cast<char*>(run.state) +
                                          (run.slots ? run.slots[b] : b) * run.state_stride) +
                 h * (e + 1);
        else
          std::fill_n(sums, e + 1, 0.0f);
        walk(run, b, h, sums);
      }
  }

  // One head of one batch row: appends each key when the first query comes that sees it.
  void walk(const attn_run& run, int64_t b, int64_t h, float* sums) const {
    const attnkit::Sight sight(run, b, block.causal != 0);
    const attnkit::View<const float> values(run.ports[v]);
    const attnkit::View<float> out(run.ports[o]);
    int64_t appended = 0;
    const auto append_to = [&](int64_t end) {
      for (; appended < end; ++appended) {
        for (int64_t c = 0; c < e; ++c) sums[c] = decay * sums[c] + values.row(b, h, appended)[c];
        sums[e] = decay * sums[e] + 1;
      }
    };
    for (int64_t i = 0; i < run.queries; ++i) {
      const int64_t seen = i < sight.queries ? sight.seen(i) : 0;
      append_to(seen - sight.past);
      for (int64_t c = 0; c < e; ++c) out.row(b, h, i)[c] = seen > 0 ? sums[c] / sums[e] : 0;
    }
    if (run.state) append_to(sight.fresh);
  }

  attn_block block;
  int64_t heads, e;
  float decay;
  uint32_t v, o;
};

}  // namespace

ATTNKIT_PLUGIN(Mean)
