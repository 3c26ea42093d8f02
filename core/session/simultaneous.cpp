#include "core/session/simultaneous.hpp"

#include <algorithm>
#include <chrono>

#include "core/base/greedy.hpp"
#include "core/session/session.hpp"

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
  int64_t read_ = 0;    // units
  int64_t handed_ = 0;  // of the source, that the session has
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
  const int64_t end = source_.end(read_ - 1);
  if (end > handed_) session_.read(source_.source.part(handed_, end), ended());
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

  void read(const SourceBatch& more, bool last) override { session_.read(more, last); }

  int32_t write(int32_t token) override {
    Session* const self = &session_;
    Session::write({&self, 1}, {&token, 1, 1, 1, nullptr}, nullptr);
    return session_.best(0);
  }

 private:
  Session& session_;
};

// A unit for each row of the encoder; the last one has what is left as well.
std::vector<int64_t> ends_of_rows(const Frontend& frontend, const SourceBatch& source) {
  std::vector<int64_t> ends(static_cast<size_t>(frontend.rows(source.kind, source.length)));
  for (size_t row = 0; row < ends.size(); ++row)
    ends[row] = frontend.end_of_row(source.kind, static_cast<int64_t>(row));
  ends.back() = source.length;
  return ends;
}

}  // namespace

void check_units(const Units& units) {
  if (units.source.length < 1) fail(ATTN_INVALID, "the source must have at least one of its units");
  int64_t before = 0;
  for (size_t u = 0; u < units.ends.size(); ++u) {
    if (units.ends[u] <= before) fail(ATTN_INVALID, "unit {} ends at {}, not after {}", u, units.ends[u], before);
    before = units.ends[u];
  }
  if (!units.ends.empty() && before != units.source.length)
    fail(ATTN_INVALID, "the last unit ends at {}, the source has {} {}", before, units.source.length,
         unit_name(units.source.kind));
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
  if (session.position(0) > 0 || session.source().reads > 0)
    fail(ATTN_INVALID, "the session was used already: simultaneous decoding begins with an empty one");
  check_units(source);
  // All of it, before anything happens: afterwards a part would be read and written already.
  model.check_source(source.source);
  Units units = source;
  std::vector<int64_t> ends;
  if (const Frontend* frontend = model.frontend()) {
    frontend->require_row(units.source.kind, units.source.length);
    if (units.ends.empty()) units.ends = ends = ends_of_rows(*frontend, units.source);
  }
  const int64_t most = model.manifest().max_length;
  const int64_t limit = options.limit > 0 ? options.limit : default_limit(model.source_rows(units.source), most);
  const Vocabulary& vocabulary = *model.vocabulary(true);
  IncrementalSession incremental(session);
  return simulate(incremental, units, {vocabulary.begin_id(), vocabulary.end_id(), std::min(limit, most)}, options);
}

}  // namespace attnkit
