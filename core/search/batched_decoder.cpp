#include "core/search/batched_decoder.hpp"

#include "core/base/greedy.hpp"

namespace attnkit::core::search {

void BatchedDecoder::run(size_t count, size_t rows) {
  while (fill(count, rows)) {
    check_interrupt();
    write();
    for (size_t row = 0; row < active_.size(); ++row) choose(row);
    std::erase_if(active_, [&](Active& a) {
      const bool over =
          a.made.back() == info_.end_id || a.made.size() >= a.limit || a.position >= longest_ || is_stopped(a);
      if (over) done(a);
      return over;
    });
  }
}

bool BatchedDecoder::fill(size_t count, size_t rows) {
  for (; active_.size() < rows && next_ < count; ++next_) {
    try {
      if (std::optional<Active> input = open(next_)) active_.push_back(std::move(*input));
    } catch (const Error& e) {
      fail_at(next_, e);
    }
  }
  return !active_.empty();
}

void BatchedDecoder::write() {
  handles_.clear();
  tokens_.ids.clear();
  for (const Active& a : active_) {
    handles_.push_back(a.session.get());
    tokens_.ids.push_back(a.next);
  }
  tokens_.length = 1;
  tokens_.lengths.assign(active_.size(), 1);
  scores_.resize(active_.size() * static_cast<size_t>(info_.outputs));
  try {
    Session::write(handles_, tokens_, scores_.data(), info_.outputs);
  } catch (const Error& e) {
    fail_write(e);
  }
}

// A refused write changed no session, so writing them one by one finds the input that is refused.
void BatchedDecoder::fail_write(const Error& of_batch) {
  for (const Active& a : active_) {
    attnkit_session* const self = a.session.get();
    const Ids token = {a.next};
    try {
      Session::write({&self, 1}, Batch({&token, 1}));
    } catch (const Error& e) {
      fail_at(a.index, e);
    }
  }
  fail_at(active_.front().index, of_batch);
}

std::optional<int32_t> BatchedDecoder::next(const Active&, std::span<const float> scores) { return best_token(scores); }

void BatchedDecoder::choose(size_t row) {
  Active& a = active_[row];
  const auto width = static_cast<size_t>(info_.outputs);
  const std::optional<int32_t> best = next(a, std::span(scores_).subspan(row * width, width));
  if (!best) fail_at(a.index, Error(ATTN_INTERNAL, nan_message(static_cast<int64_t>(a.made.size()))));
  ++a.position;
  a.next = *best;
  a.made.push_back(*best);
}

}  // namespace attnkit::core::search
