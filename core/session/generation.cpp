#include "core/session/generation.hpp"

#include <algorithm>
#include <exception>

#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

// One token for each row.
Ids ids_of(const std::vector<int32_t>& next) { return {next.data(), 1, std::ssize(next), 1, nullptr}; }

// The results of one step of a device that serve all of them.
StepResult needs(std::span<Session* const> sessions, std::span<Generation* const> generations) {
  StepResult all{StepResult::best};
  for (size_t i = 0; i < sessions.size(); ++i) {
    const StepResult one = generations[i]->needs(*sessions[i]);
    if (one.kind == StepResult::scores) return {};
    if (one.kind == StepResult::top) all = {StepResult::top, std::max(all.count, one.count)};
  }
  return all;
}

// Sessions going on together.
class Together {
 public:
  Together(std::span<Session* const> sessions, std::span<const std::unique_ptr<Generation>> generations)
      : model_(sessions.front()->model()), sessions_(sessions), generations_(generations) {}

  void run(int64_t steps) {
    for (int64_t step = 0; steps == 0 || step < steps; ++step) {
      choose();
      write();
      if (std::ranges::any_of(generations_, [](const auto& g) { return g->over; })) break;
    }
    if (device_) device_->finish();
  }

 private:
  // Each by itself: an error of one leaves the others as far as they are.
  void choose() {
    each([&](size_t i) {
      Generation& g = *generations_[i];
      if (g.next.empty() && !g.over)
        g.choose(*sessions_[i], found_at_.empty() ? nullptr : &device_->results(),
                 found_at_.empty() ? 0 : found_at_[i]);
      if (!g.next.empty()) Session::check_write({&sessions_[i], 1}, ids_of(g.next));
    });
  }

  // Calls f for each session, on several threads.
  template <class F>
  void each(const F& f) {
    std::vector<std::exception_ptr> errors(sessions_.size());
    const auto one = [&](size_t i) {
      try {
        f(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    };
    // The thread of a device is the caller's.
    if (sessions_.size() == 1 || model_.on_device())
      for (size_t i = 0; i < sessions_.size(); ++i) one(i);
    else
      model_.runtime().threads.each(std::ssize(sessions_), 1, [&](int64_t begin, int64_t end, uint32_t) {
        for (int64_t i = begin; i < end; ++i) one(static_cast<size_t>(i));
      });
    for (size_t i = 0; i < errors.size(); ++i)
      if (errors[i]) refuse(i, errors[i]);
  }

  [[noreturn]] void refuse(size_t i, const std::exception_ptr& error) const {
    if (sessions_.size() == 1) std::rethrow_exception(error);
    try {
      std::rethrow_exception(error);
    } catch (const Error& e) {
      Session::fail_of(static_cast<int64_t>(i), e);
    }
  }

  void write() {
    writing_.clear();
    written_.clear();
    tokens_.clear();
    found_at_.assign(sessions_.size(), -1);
    for (size_t i = 0; i < sessions_.size(); ++i) {
      Generation& g = *generations_[i];
      if (g.next.empty()) continue;
      found_at_[i] = static_cast<int64_t>(tokens_.size());
      writing_.push_back(sessions_[i]);
      written_.push_back(&g);
      tokens_.insert(tokens_.end(), g.next.begin(), g.next.end());
    }
    if (writing_.empty()) return;
    moved_.assign(sessions_.size(), false);
    const StepResult result = model_.on_device() ? needs(writing_, written_) : StepResult{};
    try {
      each([&](size_t i) {
        if (generations_[i]->parents.empty()) return;
        sessions_[i]->reorder_states(generations_[i]->parents);
        moved_[i] = true;
      });
      write(result);
    } catch (const Error& e) {
      settle();
      throw Error(e.code(), e.what());  // whose `where` may be a plugin's
    } catch (...) {
      settle();
      throw;
    }
    for (Generation* g : written_) {
      g->next.clear();
      g->parents.clear();
    }
  }

  // After a write that failed: rows that were brought into another order keep their scores, and `next` is still to
  // come.
  void settle() {
    device_.reset();  // brings the scores of the last step to the sessions, before these are reordered
    for (size_t i = 0; i < sessions_.size(); ++i)
      if (moved_[i]) sessions_[i]->reorder_scores(std::exchange(generations_[i]->parents, {}));
  }

  void write(const StepResult& result) {
    if (result.kind != StepResult::scores) {
      if (!device_) device_.emplace(model_);
      device_->write(writing_, ids_of(tokens_), result);
    } else {
      device_.reset();  // what it found is of no use any more
      found_at_.clear();
      Session::write(writing_, ids_of(tokens_), nullptr);
    }
  }

  const Model& model_;
  const std::span<Session* const> sessions_;
  const std::span<const std::unique_ptr<Generation>> generations_;
  std::optional<Session::Steps> device_;
  std::vector<int64_t> found_at_;  // by session: its first row in what the device found; empty: scores are on the host
  std::vector<Session*> writing_;
  std::vector<Generation*> written_;
  std::vector<int32_t> tokens_;
  std::vector<char> moved_;  // by session: whether its rows were reordered for the write
};

}  // namespace

Generation::Generation(const Session& session, int64_t limit) : limit(limit) {
  if (session.position(0) == 0)
    next.assign(static_cast<size_t>(session.rows()), session.model().vocabulary(true)->begin_id());
}

void generate(std::span<Session* const> sessions, std::span<const std::unique_ptr<Generation>> generations,
              int64_t steps) {
  Together(sessions, generations).run(steps);
}

}  // namespace attnkit::core
