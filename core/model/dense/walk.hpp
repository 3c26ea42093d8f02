// Cuts the outputs of a dense layer: into pieces for threads, and a piece into tiles of rows and panels.
#pragma once

#include <algorithm>

#include "core/model/activation.hpp"
#include "core/model/dense/weights.hpp"

namespace attnkit::core::dense {

// Rows that pass over the same weights while these stay in the cache.
constexpr int64_t block_rows = 64;

constexpr int64_t memory_line = 64;  // bytes

// Pieces of `rows` rows times `panels` panels each, but for the last ones.
struct Pieces {
  int64_t rows, panels;
  int64_t row_pieces, panel_pieces;  // how many there are
  int64_t count() const { return row_pieces * panel_pieces; }
};

// cost: of one row and one output, in multiply-adds of floats.  Wide layers are cut by outputs, so that the threads of
// a few rows share the reading of the weights; many rows by rows.
inline Pieces pieces_of(int64_t rows, int64_t panels, double cost, uint32_t workers) {
  // Below some 100k multiply-adds a second thread costs more than it saves.  A few rows wait for the weights: they cost
  // as much as four.
  const double all = cost * static_cast<double>(std::max<int64_t>(rows, 4) * panels * panel_outputs);
  const int64_t most = workers < 2 ? 1 : 4 * int64_t{workers};
  const int64_t wanted = std::clamp<int64_t>(static_cast<int64_t>(all / 100000), 1, most);
  const int64_t blocks = std::max<int64_t>(1, (rows + block_rows - 1) / block_rows);
  Pieces cut{};
  cut.rows = (blocks + std::min(blocks, wanted) - 1) / std::min(blocks, wanted) * block_rows;
  cut.row_pieces = std::max<int64_t>(1, (rows + cut.rows - 1) / cut.rows);
  const int64_t columns = (wanted + cut.row_pieces - 1) / cut.row_pieces;
  cut.panels = std::max<int64_t>(2, ((panels + columns - 1) / columns + 1) / 2 * 2);
  cut.panel_pieces = std::max<int64_t>(1, (panels + cut.panels - 1) / cut.panels);
  return cut;
}

// Memory that a tile asks for while it computes: as many lines in each step as it has panels, of each of which it reads
// one.
struct Ahead {
  const char* at;
  int64_t step;  // bytes; less than the lines where tiles share the asking
};

// Tiles of few rows only wait for their own weights; more compute long enough for the memory to be asked ahead.
template <class Isa, int R>
constexpr bool asks_ahead = 2 * R > Isa::rows;

// Weights that will be read, of which each tile asks for a share.
class Asking {
 public:
  // bytes: of a panel; tiles: of rows, that go over the same panels.
  Asking(const char* from, int64_t bytes, int64_t tiles)
      : at_(from), bytes_(bytes / tiles), step_((memory_line + tiles - 1) / tiles) {}
  template <int P>
  ATTNKIT_INLINE Ahead take() {
    const Ahead share{at_, P * step_};
    at_ += P * bytes_;
    return share;
  }

 private:
  const char* at_;
  int64_t bytes_, step_;  // of a tile and one of its panels
};

// A kernel has
//   tile<Isa, R, P>(row, panel, ahead): R rows times P panels, whose results do not depend on R and P;
//   weights_of(panel): where they stand, panel after panel;
//   strip<Isa>(row, n, panel, end): n rows times the panels up to end, for an Isa with any_rows, in place of tiles;
//   most_rows<Isa>, if its tiles may have more rows than the Isa says.
// Isa: the largest tile that fits the registers, `rows` times `columns` panels.
template <class Kernel, class Isa>
constexpr int most_rows = Isa::rows;
template <class Kernel, class Isa>
requires requires { Kernel::template most_rows<Isa>; }
constexpr int most_rows<Kernel, Isa> = Kernel::template most_rows<Isa>;

// The panels from `panel` to `end`, P at a time and what is left fewer at a time.
template <class Isa, int R, int P, class Kernel>
ATTNKIT_INLINE void panels(const Kernel& kernel, int64_t row, int64_t panel, int64_t end, Asking& asking) {
  for (; panel + P <= end; panel += P) kernel.template tile<Isa, R, P>(row, panel, asking.take<P>());
  if constexpr (P > 1) panels<Isa, R, P / 2>(kernel, row, panel, end, asking);
}

// n rows, at most R.  Fewer rows take more panels at once, as they have fewer chains to fill the machine.
template <class Isa, int R, class Kernel>
ATTNKIT_INLINE void few_rows(const Kernel& kernel, int64_t row, int64_t n, int64_t panel, int64_t end, Asking& asking) {
  if constexpr (R > 1) {
    if (n < R) return few_rows<Isa, R - 1>(kernel, row, n, panel, end, asking);
  }
  constexpr int spare = std::max(1, Isa::rows / R) * Isa::columns, most = Isa::columns > 1 ? 2 * Isa::columns : 4;
  panels<Isa, R, std::min(spare, most)>(kernel, row, panel, end, asking);
}

// The first n of 16 outputs to y, or added to what is there.
template <class V>
ATTNKIT_INLINE void put(V& sums, int64_t n, bool add, float* y) {
  if (add) {
    V before;
    simd::load(y, n, before);
    sums += before;
  }
  simd::store(sums, n, y);
}

struct Activate {
  Activation activation;
  float* y;
  int64_t stride, rows, width;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    switch (activation) {
      case Activation::relu:
        return by<Isa, Activation::relu>();
      case Activation::gelu:
        return by<Isa, Activation::gelu>();
      case Activation::gelu_tanh:
        return by<Isa, Activation::gelu_tanh>();
      case Activation::quick_gelu:
        return by<Isa, Activation::quick_gelu>();
      case Activation::silu:
        return by<Isa, Activation::silu>();
    }
  }
  template <class Isa, Activation activation>
  ATTNKIT_INLINE void by() const {
    const Activate copy = *this;  // the floats that are written could be any of the members
    for (int64_t r = 0; r < copy.rows; ++r)
      for (int64_t i = 0; i < copy.width; i += simd::kLanes) {
        float* const at = copy.y + r * copy.stride + i;
        simd::Vec<Isa> v;
        simd::load(at, copy.width - i, v);
        activate<activation>(v);
        simd::store(v, copy.width - i, at);
      }
  }
};

// One piece: `rows` rows from `row` on, the panels from `begin` to `end`.
template <class Kernel>
struct Piece {
  const Kernel& kernel;
  int64_t row, rows, begin, end;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    constexpr int tallest = most_rows<Kernel, Isa>;
    for (int64_t block = 0; block < rows; block += block_rows) {
      const int64_t height = std::min(block_rows, rows - block), count = (height + tallest - 1) / tallest;
      // Several tiles of rows share a few panels, which come from memory once; a single one takes all.
      const int64_t step = count > 1 ? 2 * Isa::columns : end - begin;
      for (int64_t panel = begin; panel < end; panel += step) {
        const int64_t stop = std::min(panel + step, end);
        // A single tile of rows asks for what it reads next, several for what all of them do.
        const char* const next = kernel.weights_of(count > 1 ? stop : panel + Isa::columns);
        Asking asking(next, kernel.weights_of(1) - kernel.weights_of(0), count);
        for (int64_t t = 0; t < count; ++t) {
          // Tiles of nearly the same height: 9 rows are 5 and 4, not 8 and 1.
          const int64_t first = row + block + height * t / count, after = row + block + height * (t + 1) / count;
          if constexpr (requires { Isa::any_rows; })
            kernel.template strip<Isa>(first, after - first, panel, stop);
          else
            few_rows<Isa, tallest>(kernel, first, after - first, panel, stop, asking);
        }
        if (!kernel.finish.activation) continue;
        const int64_t from = panel * panel_outputs, width = std::min(stop * panel_outputs, kernel.outputs) - from;
        float* y = kernel.rows.y + (row + block) * kernel.rows.y_stride + from;
        simd::dispatch(Activate{*kernel.finish.activation, y, kernel.rows.y_stride, height, width});
      }
    }
  }
};

// Runs a kernel over all its rows and panels; dispatch(piece) calls piece.operator()<Isa>().
template <class Kernel, class Dispatch>
void walk(Threads& threads, const Kernel& kernel, double cost, Dispatch&& dispatch) {
  const int64_t count = (kernel.outputs + panel_outputs - 1) / panel_outputs, n = kernel.rows.count;
  if (n == 0) return;
  const Pieces cut = pieces_of(n, count, cost, threads.workers());
  threads.each(cut.count(), 1, [&](int64_t begin, int64_t end, uint32_t) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / cut.panel_pieces * cut.rows, panel = i % cut.panel_pieces * cut.panels;
      dispatch(Piece<Kernel>{kernel, row, std::min(cut.rows, n - row), panel, std::min(panel + cut.panels, count)});
    }
  });
}

}  // namespace attnkit::core::dense
