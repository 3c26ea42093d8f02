#include "core/simultaneous.hpp"

#include <algorithm>
#include <chrono>

#include "core/session.hpp"

namespace attnkit {
namespace {

using Clock = std::chrono::steady_clock;

class Loop {
 public:
  Loop(Incremental& session, const Units& source, const Ending& ending, const attnkit_stream_options& options)
      : session_(session), source_(source), ending_(ending), options_(options) {}

  std::vector<int32_t> run() {
    bool on = true;
    while (on && static_cast<int64_t>(made_.size()) < ending_.limit) {
      const uint32_t action = decide();
      if (action == ATTNKIT_STOP) break;
      if (action == ATTNKIT_READ && !ended())
        read();
      else
        on = write();
    }
    return std::move(made_);
  }

 private:
  bool ended() const { return read_ == source_.count(); }
  uint32_t decide() const;
  void read();
  bool write();
  void report(uint32_t action, int32_t id) const;

  Incremental& session_;
  const Units& source_;
  const Ending& ending_;
  const attnkit_stream_options& options_;
  const Clock::time_point start_ = Clock::now();
  int64_t read_ = 0;   // units
  size_t handed_ = 0;  // ids that the session has
  std::vector<int32_t> made_;
};

uint32_t Loop::decide() const {
  const attnkit_stream_view view{sizeof view, ended(), read_, static_cast<int64_t>(made_.size())};
  const uint32_t action = options_.decide(options_.decide_context, &view);
  if (action != ATTNKIT_READ && action != ATTNKIT_WRITE && action != ATTNKIT_STOP)
    fail(ATTN_INVALID,
         "the policy answered {} after {} units read and {} tokens written: ATTNKIT_READ, ATTNKIT_WRITE or "
         "ATTNKIT_STOP is needed",
         action, read_, made_.size());
  if (action == ATTNKIT_WRITE && read_ == 0)
    fail(ATTN_INVALID, "the policy wants to write before anything of the source was read: it must read first");
  return action;
}

void Loop::read() {
  ++read_;
  report(ATTNKIT_READ, -1);
}

bool Loop::write() {
  const size_t end = source_.end(read_ - 1);
  if (end > handed_) session_.read(source_.ids.subspan(handed_, end - handed_), ended());
  handed_ = end;
  made_.push_back(session_.write(made_.empty() ? ending_.begin_id : made_.back()));
  report(ATTNKIT_WRITE, made_.back());
  return made_.back() != ending_.end_id;
}

void Loop::report(uint32_t action, int32_t id) const {
  if (!options_.observe) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const attnkit_stream_event event{sizeof event, action,  read_,  static_cast<int64_t>(made_.size()),
                                   id,           ended(), seconds};
  options_.observe(options_.observe_context, &event);
}

class IncrementalSession : public Incremental {
 public:
  explicit IncrementalSession(Session& session) : session_(session) {}

  void read(std::span<const int32_t> ids, bool last) override {
    const auto n = static_cast<int64_t>(ids.size());
    session_.read({ids.data(), n, 1, n, nullptr}, last);
  }

  int32_t write(int32_t token) override {
    Session* const self = &session_;
    Session::write({&self, 1}, {&token, 1, 1, 1, nullptr}, nullptr);
    return session_.best(0);
  }

 private:
  Session& session_;
};

}  // namespace

void check_units(const Units& units) {
  if (units.ids.empty()) fail(ATTN_INVALID, "the source must have at least one id");
  int64_t before = 0;
  for (size_t u = 0; u < units.ends.size(); ++u) {
    if (units.ends[u] <= before) fail(ATTN_INVALID, "unit {} ends at {}, not after {}", u, units.ends[u], before);
    before = units.ends[u];
  }
  if (!units.ends.empty() && before != static_cast<int64_t>(units.ids.size()))
    fail(ATTN_INVALID, "the last unit ends at {}, the source has {} ids", before, units.ids.size());
}

std::vector<int32_t> simulate(Incremental& session, const Units& source, const Ending& ending,
                              const attnkit_stream_options& options) {
  return Loop(session, source, ending, options).run();
}

std::vector<int32_t> simulate(Session& session, const Units& source, const attnkit_stream_options& options) {
  const Model& model = session.model();
  if (!model.has_encoder())
    fail(ATTN_UNSUPPORTED, "this model has no encoder: there is no source that could arrive bit by bit");
  if (session.rows() != 1)
    fail(ATTN_INVALID, "{} rows: simultaneous decoding is greedy, in a session of one row", session.rows());
  if (session.position(0) > 0 || session.source_length() > 0)
    fail(ATTN_INVALID, "the session was used already: simultaneous decoding begins with an empty one");
  check_units(source);
  // All of it, before anything happens: afterwards a part would be read and written already.
  const auto n = static_cast<int64_t>(source.ids.size());
  model.check_ids({source.ids.data(), n, 1, n, nullptr}, false);
  const int64_t most = model.manifest().max_length;
  const int64_t limit = options.limit > 0 ? options.limit : n * 3 / 2 + 20;
  const Vocabulary& vocabulary = *model.vocabulary(true);
  IncrementalSession incremental(session);
  return simulate(incremental, source, {vocabulary.begin_id(), vocabulary.end_id(), std::min(limit, most)}, options);
}

}  // namespace attnkit
