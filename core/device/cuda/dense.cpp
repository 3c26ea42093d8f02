// Dense layers: inputs rounded, a product of cuBLASLt, and what follows it.
#include <algorithm>

#include "core/device/cuda/device.hpp"

namespace attnkit::core::device {

void pack(DeviceHandle& device, uintptr_t stream, DeviceType type, const float* from, int64_t count, void* to) {
  if (!has_16_bits(type)) {
    from_host(device, stream, to, from, static_cast<uint64_t>(count) * sizeof(float));
    return wait(device, stream);
  }
  auto* staged = static_cast<float*>(device.workspace_of(stream));
  const auto most = static_cast<int64_t>(device.workspace_bytes / sizeof(float));
  for (int64_t i = 0; i < count; i += most) {
    const int64_t n = std::min(most, count - i);
    from_host(device, stream, staged, from + i, static_cast<uint64_t>(n) * sizeof(float));
    round_to_16_bits(device, stream, type, staged, n, static_cast<uint16_t*>(to) + i);
  }
  wait(device, stream);
}

void dense(DeviceHandle& device, uintptr_t stream, const DeviceDense* layer, const void* x, DeviceType of_x, void* y,
           DeviceType of_y, int64_t rows, DeviceActivation f, bool add, void* scratch) {
  if (add && f != DeviceActivation::none)
    throw invalid("a dense layer cannot add f(W x + b): let it add without an activation, or add its result");
  const bool rounds = has_16_bits(of_y);
  for (const DeviceType type : {of_x, of_y})
    if (type != DeviceType::f32 && type != layer->type)
      throw invalid("a dense layer takes and gives f32 or the type of its weights");
  if (rounds && (add || f != DeviceActivation::none))
    throw invalid("a dense layer gives 16 bits of W x + b alone: let it give f32");
  if (rows == 0) return;
  const void* in = x;
  if (has_16_bits(layer->type) && of_x == DeviceType::f32) {
    if (scratch == nullptr) throw invalid("a dense layer in 16 bits needs scratch: ask dense_scratch how much");
    round_to_16_bits(device, stream, layer->type, static_cast<const float*>(x), rows * layer->inputs, scratch);
    in = scratch;
  }
  void* const workspace = device.workspace_of(stream);
  // cuBLASLt wants to read a bias by 16 bytes, and in y's type; its activations are no exact GELU, and lose NaN.
  const void* const joined = rounds ? layer->rounded_bias : layer->bias;
  const bool joins = f == DeviceActivation::none && joined != nullptr && alignment(joined) >= 16;
  const auto product =
      device.products.get({layer->type, of_y, layer->inputs, layer->outputs, rows, alignment(layer->weight),
                           alignment(in), alignment(y), joins ? joined : nullptr});
  device.products.run(*product, layer->weight, in, add ? 1.0f : 0.0f, y, workspace, stream);
  const float* const bias = product->adds_bias ? nullptr : layer->bias;
  if (bias != nullptr || f != DeviceActivation::none) activate(stream, y, of_y, bias, f, rows, layer->outputs);
}

}  // namespace attnkit::core::device
