// On the CPU.
#include "core/model/compute.hpp"

#include <algorithm>

#include "core/model/dense/walk.hpp"

namespace attnkit::core {

RowArrays HostCompute::rows(const Side& side) const {
  const auto or_null = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
  return {or_null(side.lengths), or_null(side.positions), or_null(side.slots), or_null(side.totals)};
}

void HostCompute::norm(const LayerNorm& layer, const float* x, void* y, DeviceType, int64_t rows) {
  layer.apply(threads_, x, static_cast<float*>(y), rows);
}

void HostCompute::dense(const Dense& layer, const float* x, float* y, int64_t rows) {
  layer.apply(threads_, x, layer.inputs(), y, layer.outputs(), rows);
}

void HostCompute::dense_add(const Dense& layer, const void* x, DeviceType, float* y, int64_t rows) {
  layer.add(threads_, static_cast<const float*>(x), layer.inputs(), y, layer.outputs(), rows);
}

void HostCompute::feed_forward(const Dense* gate, const Dense& in, const Dense& out, const void* x, DeviceType,
                               float* y, int64_t rows, Activation f, Buffer& room) {
  const int64_t d = in.inputs(), width = in.outputs(), together = std::min(rows, rows_together(width * (gate ? 2 : 1)));
  float *const hidden = room.get<float>(together * width * (gate ? 2 : 1)), *const plain = hidden + together * width;
  for (int64_t first = 0; first < rows; first += together) {
    const float* const from = static_cast<const float*>(x) + first * d;
    const int64_t n = std::min(together, rows - first);
    (gate ? *gate : in).apply(threads_, from, d, hidden, width, n, f);
    if (gate) {
      in.apply(threads_, from, d, plain, width, n);
      threads_.each(n, 16384 / width + 1, [&](int64_t begin, int64_t end, uint32_t) {
        for (int64_t i = begin * width; i < end * width; ++i) hidden[i] *= plain[i];
      });
    }
    out.add(threads_, hidden, width, y + first * d, d, n);
  }
}

// As many as leave their inner values in the caches of the workers, by whole blocks of dense layers.
int64_t HostCompute::rows_together(int64_t width) const {
  constexpr int64_t block = dense::block_rows, floats = 1 << 18;  // of a worker
  return std::max<int64_t>(1, floats / (width * block)) * block * workers();
}

void HostCompute::project(std::span<const Projection> all, const void* x, DeviceType, int64_t rows, const Side& side) {
  for (const Projection& one : all) project(one, static_cast<const float*>(x), rows, side);
}

void HostCompute::project(const Projection& one, const float* x, int64_t rows, const Side& side) {
  const HeadSteps& steps = one.steps;
  const auto& [norm, rotary, made, heads, width, max_length] = steps;
  float* const y = static_cast<float*>(one.y);
  one.layer->apply(threads_, x, one.layer->inputs(), y, heads * width, rows);
  if (!norm && !rotary && made == heads) return;
  threads_.each(rows, 4096 / (heads * width) + 1, [&](int64_t begin, int64_t end, uint32_t) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = y + r * steps.heads * steps.width;
      if (steps.norm) steps.norm->apply(row, row, steps.made);
      const auto of = static_cast<size_t>(r / side.length);
      const int64_t first = side.positions.empty() ? 0 : side.positions[of];
      if (steps.rotary)
        steps.rotary->turn(row, steps.made, steps.width, std::min(first + r % side.length, steps.max_length - 1),
                           first + side.lengths[of]);
      for (int64_t h = steps.heads; h-- > 0 && steps.made < steps.heads;)
        if (const int64_t from = h * steps.made / steps.heads; from != h)
          std::copy_n(row + from * steps.width, steps.width, row + h * steps.width);
    }
  });
}

void HostCompute::embed(const Embedding& layer, const Ids& ids, const Side& side, float* x) {
  layer.apply(ids, side.positions, x);
}

void HostCompute::add(float* x, const void* y, DeviceType, int64_t n) { core::add(x, static_cast<const float*>(y), n); }

void HostCompute::normalise_heads(void* o, DeviceType, int64_t rows, int64_t heads, int64_t width) {
  core::normalise_heads(static_cast<float*>(o), rows, heads, width);
}

void HostCompute::scale(float* x, float by, const std::vector<float>& bias, int64_t rows, int64_t width) {
  if (by != 1)
    for (int64_t i = 0; i < rows * width; ++i) x[i] *= by;
  for (int64_t r = 0; r < rows && !bias.empty(); ++r) core::add(x + r * width, bias.data(), width);
}

const float* HostCompute::given(const AuxValue& value, Buffer&) { return value.data.data(); }

void HostCompute::take(const float* from, int64_t n, std::vector<float>& to) { to.assign(from, from + n); }

}  // namespace attnkit::core
