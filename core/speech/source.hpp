// Sources as they come in: ids of text, or speech as samples or as frames.
#pragma once

#include <cstdint>
#include <memory>

namespace attnkit::core {

// A batch of id sequences: (batch, length) row by row; lens NULL: all rows are full.
struct Ids {
  const int32_t* data = nullptr;
  int64_t stride = 0, batch = 0, length = 0;
  const int32_t* lens = nullptr;
  int64_t length_of(int64_t row) const { return lens ? lens[row] : length; }
};

enum class SourceKind : uint32_t { none, ids, samples, frames };

// "samples", ...: what lengths count.
const char* unit_name(SourceKind kind);

// A batch of sources: (batch, length) ids or samples, or (batch, length, width) frames; lens NULL: all rows are full.
struct SourceBatch {
  SourceKind kind = SourceKind::none;
  const int32_t* ids = nullptr;
  const float* speech = nullptr;  // of samples and frames
  int64_t stride = 0;             // numbers from row to row
  int64_t batch = 0, length = 0, width = 1;
  const int32_t* lens = nullptr;
  std::shared_ptr<const std::vector<int32_t>> own_lens = {};  // what `lens` points into, where no caller keeps them

  SourceBatch() = default;
  SourceBatch(const Ids& of)
      : kind(SourceKind::ids), ids(of.data), stride(of.stride), batch(of.batch), length(of.length), lens(of.lens) {}
  static SourceBatch samples(const float* data, int64_t length, int64_t batch = 1, const int32_t* lens = nullptr);
  static SourceBatch frames(const float* data, int64_t length, int64_t width, int64_t batch = 1,
                            const int32_t* lens = nullptr);

  bool is_speech() const { return kind == SourceKind::samples || kind == SourceKind::frames; }
  Ids as_ids() const { return {ids, stride, batch, length, lens}; }
  int64_t length_of(int64_t row) const { return lens ? lens[row] : length; }
  SourceBatch row(int64_t row) const;
  // Of the only row, from begin to before end.
  SourceBatch part(int64_t begin, int64_t end) const;
};

// Tokens or rows [first, first + length) of one source.
struct SourcePart {
  const int32_t* ids = nullptr;  // of text
  const float* rows = nullptr;   // (length, D): the front end's on the way into the encoder, the encoder's after it
  int64_t length = 0, first = 0;
};

// Throws Error (ATTN_INVALID) naming the row and the place of a number that is none, or of a sample beyond 16.
void check_speech(const SourceBatch& source);

}  // namespace attnkit::core
