// Copies of sessions and of their rows: states are bytes, so copying bytes is all there is to it.
#include <algorithm>
#include <cstring>

#include "core/session/session.hpp"

namespace attnkit {

void Session::copy_row(int32_t from, int32_t to, int64_t position) const {
  const Arena& arena = model_->states(ATTN_DECODER_SELF);
  const std::vector<uint64_t> bytes = model_->state_bytes(ATTN_DECODER_SELF, position);
  for (size_t b = 0; b < bytes.size(); ++b) std::memcpy(arena.row(b, to), arena.row(b, from), bytes[b]);
}

std::unique_ptr<Session> Session::clone() const {
  check_usable();
  auto copy = std::make_unique<Session>(model_, rows());
  for (int r = 0; r < rows(); ++r) copy_row(slots_[r], copy->slots_[r], positions_[r]);
  const auto copy_source = [&](const Arena& arena, int32_t from, int32_t to, const std::vector<uint64_t>& bytes) {
    for (size_t b = 0; b < bytes.size(); ++b) std::memcpy(arena.row(b, to), arena.row(b, from), bytes[b]);
  };
  copy->reach_ = reach_;
  if (cross_slot_ >= 0)
    copy_source(model_->states(ATTN_DECODER_CROSS), cross_slot_, copy->cross_slot_,
                model_->state_bytes(ATTN_DECODER_CROSS, source_.length));
  if (encoder_slot_ >= 0)
    copy_source(model_->states(ATTN_ENCODER_SELF), encoder_slot_, copy->encoder_slot_,
                model_->state_bytes(ATTN_ENCODER_SELF, source_.length));
  copy->positions_ = positions_;
  copy->ended_ = ended_;
  copy->source_ = source_;
  copy->told_ = told_;
  copy->target_total_ = target_total_;
  copy->beyond_ = beyond_;
  copy->last_ = last_;
  return copy;
}

void Session::reorder(const std::vector<uint32_t>& parents) {
  check_usable();
  const size_t n = slots_.size();
  for (size_t i = 0; i < n; ++i)
    if (parents[i] >= n)
      fail(ATTN_INVALID, "row {} cannot continue row {}: this session has {} rows", i, parents[i], n);
  // The first child of a row keeps its slot; further children get copies in the slots of rows without children.
  std::vector<int32_t> slots(n, -1), positions(n);
  std::vector<bool> kept(n, false), ended(n);
  for (size_t i = 0; i < n; ++i)
    if (!kept[parents[i]]) {
      kept[parents[i]] = true;
      slots[i] = slots_[parents[i]];
    }
  size_t unused = 0;
  std::vector<float> last(last_.size());
  const size_t width = static_cast<size_t>(model_->outputs());
  for (size_t i = 0; i < n; ++i) {
    positions[i] = positions_[parents[i]];
    ended[i] = ended_[parents[i]];
    std::copy_n(last_.begin() + parents[i] * width, width, last.begin() + i * width);
    if (slots[i] >= 0) continue;
    while (kept[unused]) ++unused;
    slots[i] = slots_[unused];
    const std::vector<uint64_t> have = model_->state_bytes(ATTN_DECODER_SELF, positions_[unused]),
                                need = model_->state_bytes(ATTN_DECODER_SELF, positions[i]);
    for (size_t b = 0; b < have.size(); ++b)  // bytes past the copy must be as an empty state's
      if (have[b] > need[b])
        std::memset(model_->states(ATTN_DECODER_SELF).row(b, slots[i]) + need[b], 0, have[b] - need[b]);
    copy_row(slots_[parents[i]], slots[i], positions[i]);
    ++unused;
  }
  slots_ = std::move(slots);
  positions_ = std::move(positions);
  ended_ = std::move(ended);
  last_ = std::move(last);
}

}  // namespace attnkit
