// Sequences as attnkit.h takes them: tensors over a host's numbers, ids and speech of several rows side by side.
#ifndef ATTNKIT_SEQUENCES_HPP
#define ATTNKIT_SEQUENCES_HPP
#include <algorithm>
#include <attnkit/handle.hpp>
#include <concepts>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

namespace attnkit::inline cpp1 {

// A contiguous CPU tensor over data of T (float, double, int32_t, int64_t), which it does not own.
template <class T>
attn_tensor tensor(T* data, std::initializer_list<int64_t> shape) {
  const uint8_t code = std::is_floating_point_v<T> ? 2 : 0, bits = 8 * sizeof(T);
  const auto ndim = static_cast<uint32_t>(shape.size());
  attn_tensor t{const_cast<std::remove_const_t<T>*>(data), {}, {}, code, bits, 1, ndim, 1, 0};
  std::copy(shape.begin(), shape.end(), t.shape);
  int64_t stride = 1;
  for (uint32_t d = t.ndim; d-- > 0; stride *= t.shape[d]) t.stride[d] = stride;
  return t;
}

// Sequences of ids side by side, (rows, length), the shorter ones padded.
struct Batch {
  Ids ids, lengths;
  int64_t length = 0;
  explicit Batch(std::span<const Ids> rows = {}) {
    for (const Ids& row : rows) length = std::max(length, static_cast<int64_t>(row.size()));
    for (const Ids& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
      ids.resize(ids.size() + static_cast<size_t>(length) - row.size());
      lengths.push_back(static_cast<int32_t>(row.size()));
    }
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
  attn_tensor view() const { return tensor(ids.data(), {rows(), length}); }
};

// What can be read as samples of speech, within [-1, 1] at the model's sample_rate.
template <class T>
concept Samples = std::convertible_to<const T&, std::span<const float>>;

// Speech side by side, the shorter rows padded: samples (rows, length), or with bins frames (rows, length, bins).
struct SpeechBatch {
  std::vector<float> data;
  Ids lengths;
  int64_t length = 0, bins = 0;
  explicit SpeechBatch(std::span<const std::vector<float>> rows, int64_t frame = 0) : bins(frame) {
    const size_t width = static_cast<size_t>(std::max<int64_t>(1, bins));
    for (const auto& row : rows) length = std::max(length, static_cast<int64_t>(row.size() / width));
    for (const auto& row : rows) {
      data.insert(data.end(), row.begin(), row.end());
      lengths.push_back(static_cast<int32_t>(row.size() / width));
      data.resize(lengths.size() * static_cast<size_t>(length) * width);
    }
  }
  int64_t rows() const { return static_cast<int64_t>(lengths.size()); }
  attn_tensor view() const {
    return bins ? tensor(data.data(), {rows(), length, bins}) : tensor(data.data(), {rows(), length});
  }
};

}  // namespace attnkit::inline cpp1
#endif
