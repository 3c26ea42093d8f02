// The part of efficient that is the same on every device: options and what it refuses.
#pragma once
#include <attnkit/plugin.hpp>

namespace efficient {

struct Model {
  static constexpr attnkit::About about{
      .name = "efficient",
      .summary = "softmax over features times softmax over positions: linear cost, whole sequences and cross attention",
      .citation = "Shen et al., Efficient Attention, WACV 2021, arXiv:1812.01243",
      .state_revision = "1"};
  static attnkit::Options options() { return {}; }

  void check_causal() const {
    if (block.causal)
      throw attnkit::unsupported(
          "efficient attention normalises each key feature over the whole sequence, later positions included, and its "
          "paper has no causal form: make the block bidirectional, or use a mechanism such as linear, relu or softmax");
  }

  attn_block block;
};

}  // namespace efficient
