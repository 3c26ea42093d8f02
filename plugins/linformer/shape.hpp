// The sizes of a linformer block.
#pragma once
#include <attnkit/plugin.hpp>

namespace linformer {

struct Shape : attnkit::Widths {
  int64_t rank, n_max;
  int64_t lanes() const { return (rank + 15) / 16 * 16; }  // whole vectors, as the state has them on every device
  // Kbar transposed, [D][lanes], then Vbar [rank][E].
  int64_t head_floats() const { return d * lanes() + rank * e; }
  uint64_t flops(int64_t queries, int64_t keys) const {  // of a head
    return static_cast<uint64_t>(rank * (2 * (d + e) * (queries + keys) + 5 * queries));
  }
};

}  // namespace linformer
