// The part of cosformer that is the same on every device.
#pragma once
#include <attnkit/kernels/guard.hpp>

namespace cosformer {

struct Model {
  static constexpr attnkit::About about{
      .name = "cosformer",
      .summary = "linear attention with cosine locality: constant state, needs the whole lengths",
      .citation = "Qin et al., cosFormer, ICLR 2022, arXiv:2202.08791",
      .state_revision = "1"};
  static attnkit::Options options() {
    using attnkit::Option;
    return {attnkit::Guard::option("clamp"), attnkit::Guard::eps_option(1e-6),
            Option::text("cross", "ratio", {"ratio", "max"},
                         "cross attention compares i/N with j/M (ratio, MLA Eq. 8) or both over max(N, M) (max)"),
            Option::text("beyond", "clamp", {"clamp", "saturate", "error"},
                         "past a predicted length: go on (clamp, the authors'), hold the position there (saturate), or "
                         "refuse the row (error)")};
  }

  template <class Setup>
  explicit Model(const Setup& s)
      : d(s.shape.d),
        causal(s.block.causal != 0),
        self(s.block.role != ATTN_DECODER_CROSS),
        encoder(s.block.role == ATTN_ENCODER_SELF),
        joint(!self && s.values.text("cross") == "max"),
        saturate(s.values.text("beyond") == "saturate"),
        stop_beyond(s.values.text("beyond") == "error") {
    s.shape.features = 2 * d;
  }

  void check(const attnkit::Request& request, attnkit::Info& info) const {
    const bool whole = !causal && !request.streams() && !request.shows_prefixes();
    // Keys over their own length alone can be appended before anybody knows the target's.
    const bool source_only = !self && !joint && request.queries == 0 && request.keys > 0;
    const bool lacks_q = !whole && !source_only && !request.knows_q_total();
    const bool lacks_k = !whole && !self && !request.knows_k_total();
    if (lacks_q && !encoder)
      throw attnkit::unsupported(
          "cosformer's angles need the whole target length, which nobody knows: say it in [length] of the manifest "
          "(what is predicted from the source is known once that has ended), or use a mechanism without positions such "
          "as relu or leap");
    if (lacks_q || lacks_k)
      throw attnkit::unsupported(
          "cosformer's angles need the whole source length, and a source that still grows has none: read all of it "
          "first, or use a mechanism without positions such as relu or leap");
    if (stop_beyond && request.knows_q_total()) info.flags |= ATTN_WITHIN_TOTAL;
  }

  int64_t d;
  bool causal, self, encoder, joint, saturate, stop_beyond;
};

}  // namespace cosformer
