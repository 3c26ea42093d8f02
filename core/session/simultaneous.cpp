#include "core/session/simultaneous.hpp"

#include <algorithm>

#include "core/base/clock.hpp"
#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/sampler.hpp"
#include "core/session/session.hpp"

namespace attnkit::core {
namespace {

uint32_t decide(const attnkit_stream_options& options, const attnkit_stream_view& view) {
  const uint32_t action = options.decide(options.decide_context, &view);
  if (action != ATTNKIT_READ && action != ATTNKIT_WRITE && action != ATTNKIT_STOP)
    fail(ATTN_INVALID,
         "the policy answered {} after {} units read and {} tokens written: ATTNKIT_READ, ATTNKIT_WRITE or "
         "ATTNKIT_STOP is needed",
         action, view.read, view.written);
  if (action == ATTNKIT_WRITE && view.read == 0)
    fail(ATTN_INVALID, "the policy wants to write before anything of the source was read: it must read first");
  return action;
}

// A unit for each row of the encoder; the last one has what is left as well.
std::vector<int64_t> ends_of_rows(const Frontend& frontend, const SourceBatch& source) {
  if (frontend.whole()) return {source.length};
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

std::vector<int32_t> simulate(const Incremental& session, const Units& source, const Ending& ending,
                              const attnkit_stream_options& options) {
  const Clock::time_point start = Clock::now();
  int64_t read = 0, given = 0;  // units; of the source, that the session has
  std::vector<int32_t> made;
  const auto written = [&] { return static_cast<int64_t>(made.size()); };
  const auto ended = [&] { return read == source.count(); };
  const auto report = [&](uint32_t action, int32_t id) {
    if (!options.observe) return;
    const attnkit_stream_event event{sizeof event, action, read, written(), id, ended(), seconds_since(start)};
    options.observe(options.observe_context, &event);
  };
  while (written() < ending.limit && (made.empty() || made.back() != ending.end_id)) {
    const uint32_t action = decide(options, {sizeof(attnkit_stream_view), ended(), read, written()});
    if (action == ATTNKIT_STOP) break;
    if (action == ATTNKIT_READ && !ended()) {
      ++read;
      report(ATTNKIT_READ, -1);
      continue;
    }
    const int64_t end = source.end(read - 1);
    if (end > given) session.read(source.source.part(given, end), ended());
    given = end;
    made.push_back(session.write(made.empty() ? ending.begin_id : made.back()));
    report(ATTNKIT_WRITE, made.back());
  }
  return made;
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
  const int64_t max_length = model.manifest().max_target();
  const int64_t limit = options.limit > 0 ? std::min<int64_t>(options.limit, max_length)
                                          : default_limit(model.source_rows(units.source), max_length);
  const Tokenizer& vocabulary = *model.vocabulary(true);
  Session* const self = &session;
  Sampler greedy(model.manifest().sampling.greedy());
  const Incremental incremental{[&](const SourceBatch& more, bool last) { session.read(more, last); },
                                [&](int32_t token) {
                                  if (session.position(0) == 0) greedy.saw({&token, 1});
                                  Session::write({&self, 1}, {&token, 1, 1, 1, nullptr}, nullptr);
                                  return *greedy.draw(session.next_scores(0));  // which have no NaN
                                }};
  return simulate(incremental, units, {vocabulary.begin_id(), vocabulary.end_id(), limit}, options);
}

}  // namespace attnkit::core
