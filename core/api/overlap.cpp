#include "core/api/overlap.hpp"

#include <algorithm>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

// Bytes from begin to end; of a whole tensor or of one of its innermost rows.
struct Range {
  uint64_t begin, end;
  const UsedTensor* of;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

std::string label(const UsedTensor& t) { return fmt::format("{}\"{}\"", t.kind, t.name); }

[[noreturn]] void fail_itself(const UsedTensor& t) {
  throw Error(ATTN_INVALID, label(t) + " overlaps itself: every element needs a place of its own", t.port);
}

[[noreturn]] void fail_far(const UsedTensor& t) {
  throw Error(ATTN_INVALID, label(t) + " reaches beyond all memory: its strides are wrong", t.port);
}

// From the first to the last element; empty for a tensor without elements.
Range range_of(const UsedTensor& used) {
  const attn_tensor& t = *used.tensor;
  const uint64_t begin = reinterpret_cast<uintptr_t>(t.data);
  uint64_t bytes = t.dtype_bits / 8u, end = 0, elements = 1;
  if (begin == 0 || t.dtype_bits % 8) return {0, 0, &used};
  for (uint32_t d = 0; d < t.ndim; ++d) {
    const auto others = static_cast<uint64_t>(t.shape[d]) - 1, stride = static_cast<uint64_t>(t.stride[d]);
    if (t.shape[d] == 0) return {0, 0, &used};
    uint64_t way = 0;
    if (__builtin_mul_overflow(others, stride, &way) || __builtin_add_overflow(elements, way, &elements))
      fail_far(used);
  }
  if (__builtin_mul_overflow(elements, bytes, &bytes) || __builtin_add_overflow(begin, bytes, &end)) fail_far(used);
  return {begin, end, &used};
}

// Is each dimension longer than all that lies within one step of it?  True for every usual layout.
bool is_nested(const attn_tensor& t) {
  int64_t stride[4], shape[4];
  uint32_t n = 0;
  for (uint32_t d = 0; d < t.ndim; ++d) {
    if (t.shape[d] == 1) continue;
    uint32_t at = n++;
    for (; at > 0 && stride[at - 1] > t.stride[d]; --at) stride[at] = stride[at - 1], shape[at] = shape[at - 1];
    stride[at] = t.stride[d];
    shape[at] = t.shape[d];
  }
  int64_t within = 1;
  for (uint32_t d = 0; d < n; ++d) {
    if (stride[d] < within) return false;
    within += stride[d] * (shape[d] - 1);
  }
  return true;
}

// More elements than places?
bool is_crowded(const Range& range) {
  const attn_tensor& t = *range.of->tensor;
  const uint64_t places = (range.end - range.begin) / (t.dtype_bits / 8);
  uint64_t elements = 1;
  for (uint32_t d = 0; d < t.ndim; ++d)
    if (__builtin_mul_overflow(elements, static_cast<uint64_t>(t.shape[d]), &elements)) return true;
  return elements > places;
}

// Adds the innermost rows of a tensor; those that an input repeats once.
void add_rows(const UsedTensor& used, std::vector<Range>& rows) {
  const attn_tensor& t = *used.tensor;
  const auto bytes = static_cast<uint64_t>(t.dtype_bits / 8);
  const uint64_t width = static_cast<uint64_t>(t.shape[t.ndim - 1]) * bytes;
  const size_t first = rows.size();
  rows.push_back({reinterpret_cast<uintptr_t>(t.data), reinterpret_cast<uintptr_t>(t.data) + width, &used});
  for (uint32_t d = 0; d + 1 < t.ndim; ++d) {
    const uint64_t step = static_cast<uint64_t>(t.stride[d]) * bytes;
    const size_t known = rows.size();
    for (int64_t i = 1; step > 0 && i < t.shape[d]; ++i)
      for (size_t r = first; r < known; ++r) {
        const uint64_t way = static_cast<uint64_t>(i) * step;
        rows.push_back({rows[r].begin + way, rows[r].end + way, &used});
      }
  }
}

[[noreturn]] void fail_two(const UsedTensor& a, const UsedTensor& b) {
  if (&a == &b) fail_itself(a);
  const UsedTensor &output = b.written ? b : a, &other = b.written ? a : b;
  throw Error(ATTN_INVALID,
              fmt::format("{} and {} overlap: what a call writes needs memory of its own", label(other), label(output)),
              output.port);
}

// Throws when a written row shares a byte with another row.
void check_rows(std::vector<Range>& rows) {
  std::sort(rows.begin(), rows.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Range read{}, written{};  // those before this row that reach furthest
  for (const Range& row : rows) {
    if (row.begin < written.end) fail_two(*written.of, *row.of);
    if (row.of->written && row.begin < read.end) fail_two(*read.of, *row.of);
    Range& furthest = row.of->written ? written : read;
    if (row.end > furthest.end) furthest = row;
  }
}

}  // namespace

void check_overlaps(std::span<const UsedTensor> tensors) {
  constexpr size_t usual = 16;
  Range few[usual];
  std::vector<Range> many(tensors.size() > usual ? tensors.size() : 0);
  Range* const ranges = many.empty() ? few : many.data();
  for (size_t i = 0; i < tensors.size(); ++i) ranges[i] = range_of(tensors[i]);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].written || ranges[i].begin == ranges[i].end) continue;
    const bool nested = is_nested(*tensors[i].tensor);
    if (!nested && is_crowded(ranges[i])) fail_itself(tensors[i]);
    std::vector<Range> rows;
    for (size_t j = 0; j < tensors.size(); ++j)
      if (j != i && ranges[i].meets(ranges[j])) add_rows(tensors[j], rows);
    if (nested && rows.empty()) continue;
    add_rows(tensors[i], rows);
    check_rows(rows);
  }
}

}  // namespace attnkit::core
