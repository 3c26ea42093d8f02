#include "core/search/batched_decoder.hpp"

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/scores.hpp"

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

void BatchedDecoder::search(const Model& model, size_t count, size_t rows, std::optional<uint32_t> limit) {
  for (size_t before = 0; fill(count, rows); before = active_.size()) {
    check_interrupt();
    // The first call sets the limit.
    for (size_t i = before; !limit && i < active_.size(); ++i)
      go_on(model, std::span(active_).subspan(i, 1), static_cast<uint32_t>(active_[i].limit), 1);
    if (std::ranges::all_of(active_, [](const Active& a) { return a.made.empty(); }))
      go_on(model, active_, limit.value_or(0), 0);
    std::erase_if(active_, [](const Active& a) { return !a.made.empty(); });
  }
}

// Takes what those have made that have ended.
void BatchedDecoder::go_on(const Model& model, std::span<Active> active, uint32_t limit, uint32_t steps) {
  handles_.clear();
  for (const Active& a : active) handles_.push_back(a.session.get());
  std::vector<Ids> made;
  try {
    made = Session::generate_all(model, handles_, limit, steps);
  } catch (const Error& e) {
    // It says which of them is at fault, if one is.
    const size_t at = active.size() == 1 || e.where() < 0 ? 0 : static_cast<size_t>(e.where());
    std::string message = e.what();
    if (const std::string prefix = fmt::format("session {}: ", at); message.starts_with(prefix))
      message.erase(0, prefix.size());
    fail_at(active[at].index, Error(e.code(), message));
  }
  for (size_t i = 0; i < active.size(); ++i) {
    active[i].made = std::move(made[i]);
    if (!active[i].made.empty()) done(active[i]);
  }
}

bool BatchedDecoder::fill(size_t count, size_t rows) {
  const size_t before = active_.size();
  for (; active_.size() < rows && next_ < count; ++next_) {
    try {
      if (std::optional<Active> input = open(next_)) active_.push_back(std::move(*input));
    } catch (const Error& e) {
      fail_at(next_, e);
    }
  }
  read(std::span(active_).subspan(before));
  return !active_.empty();
}

void BatchedDecoder::read(std::span<Active> begun) {
  handles_.clear();
  std::vector<Ids> sources;
  for (const Active& a : begun) {
    if (a.source.empty()) continue;
    handles_.push_back(a.session.get());
    sources.push_back(a.source);
  }
  if (handles_.empty()) return;
  try {
    Session::read_all(handles_, Batch(sources));
  } catch (const Error&) {
    // It changed no session, so reading one by one finds the input that is refused.
    for (Active& a : begun) try {
        if (!a.source.empty()) a.session.read(a.source);
      } catch (const Error& e) {
        fail_at(a.index, e);
      }
  }
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

// A refused write changed no session, so writing them one by one finds the input that is refused; one that failed may
// have left them unusable, which says nothing.
void BatchedDecoder::fail_write(const Error& of_batch) {
  for (const Active& a : active_) {
    attnkit_session* const self = a.session.get();
    const Ids token = {a.next};
    try {
      Session::write({&self, 1}, Batch({&token, 1}));
    } catch (const Error& e) {
      if (e.code() == of_batch.code()) fail_at(a.index, e);
    }
  }
  fail_at(active_.front().index, of_batch);
}

void BatchedDecoder::choose(size_t row) {
  Active& a = active_[row];
  const auto width = static_cast<size_t>(info_.outputs);
  const auto scores = std::span<const float>(scores_).subspan(row * width, width);
  const auto tokens = static_cast<int64_t>(a.made.size());
  const std::optional<int32_t> best = a.sampler ? a.sampler->draw(scores) : best_token(scores);
  if (!best) fail_at(a.index, Error(ATTN_INTERNAL, nan_message(tokens)));
  if (!may_come(scores[static_cast<size_t>(*best)]))
    fail_at(a.index, Error(ATTN_INVALID, nothing_left_message(tokens)));
  ++a.position;
  a.next = *best;
  a.made.push_back(*best);
}

}  // namespace attnkit::core::search
