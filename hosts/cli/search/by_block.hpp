// Quality when one block alone differs from the baseline, or all layers of one role.
#pragma once

#include <string>
#include <vector>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

struct BlockCell {
  enum class Kind { empty, baseline, measured, refused, failed };

  Kind kind = Kind::empty;
  const Trial* trial = nullptr;  // when measured
  Estimate difference{};         // from the baseline's quality
};

struct BlockRow {
  std::string block;             // "decoder.self", or of layers "decoder.self.2" and "decoder.self, all layers"
  std::string role;              // which of them it is of
  std::vector<BlockCell> cells;  // for each of view.choices
};

// Of blocks without a measured cell as well; empty where no cell is measured.
std::vector<BlockRow> rows_by_block(const SearchView& view);

}  // namespace attnkit::cli
