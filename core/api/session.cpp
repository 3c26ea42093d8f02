// attnkit.h: sessions and simultaneous decoding.
#include <algorithm>
#include <boost/container/small_vector.hpp>

#include "core/api/describe.hpp"
#include "core/api/handles.hpp"
#include "core/base/decoding/stops.hpp"
#include "core/base/text.hpp"
#include "core/session/simultaneous.hpp"

using namespace attnkit::core;

namespace {

Session& of(const attnkit_session* session) {
  require({{session, "session"}});
  return *session->session;
}

// Runs body with a session that no other call uses meanwhile.
template <class Body>
int32_t with(const attnkit_session* session, attn_error* err, Body&& body) {
  return guard(err, [&] {
    Session* const self = &of(session);
    const Session::Use use({&self, 1});
    body(*self);
  });
}

// The sessions of one call, which no other call uses meanwhile.
class Many {
 public:
  Many(attnkit_session* const* sessions, uint32_t n) {
    require({{sessions, "sessions"}});
    if (n == 0) fail(ATTN_INVALID, "no sessions: give at least one");
    for (uint32_t i = 0; i < n; ++i) all_.push_back(&of(sessions[i]));
    use_.emplace(span());
  }
  std::span<Session* const> span() const { return {all_.data(), all_.size()}; }

 private:
  // On the stack up to a usual batch: decoding allocates nothing per token.
  boost::container::small_vector<Session*, 64> all_;
  std::optional<Session::Use> use_;
};

Units units_of(const Model& model, const attn_tensor* tensor, const attnkit_stream_options& options) {
  if (!model.manifest().encoder.ends)
    fail(ATTN_UNSUPPORTED, "this model's sources end with no token ([model.encoder] end = false): read them whole");
  const SourceBatch source = to_source(model, tensor, nullptr);
  if (source.batch != 1 || source.length < 1)
    fail(ATTN_INVALID, "the source must be one row of at least one {}", model.frontend() ? "sample or frame" : "id");
  if (options.ends && options.units == 0)
    fail(ATTN_INVALID, "options.units is 0: say how many units options.ends has, or leave both out");
  if (!options.ends && options.units > 0)
    fail(ATTN_INVALID, "options.units {} without options.ends: say where they end, or leave both out", options.units);
  if (options.units > static_cast<uint64_t>(source.length))
    fail(ATTN_INVALID, "{} units for {} {}: each has at least one", options.units, source.length,
         unit_name(source.kind));
  return {source, options.ends ? std::span(options.ends, options.units) : std::span<const int64_t>()};
}

Sampler sampler_of(const attnkit_sample_options& options, const Manifest& manifest) {
  constexpr auto most = static_cast<uint64_t>(INT64_MAX);
  Sampling sampling;
  sampling.repetition_penalty = manifest.sampling.repetition_penalty;
  sampling.no_repeat = manifest.sampling.no_repeat;
  if (options.repetition_penalty != 0) sampling.repetition_penalty = options.repetition_penalty;
  sampling.temperature = options.temperature;
  sampling.top_k = static_cast<int64_t>(std::min(options.top_k, most));
  if (options.top_p != 0) sampling.top_p = options.top_p;
  sampling.seed = options.seed;
  return Sampler(sampling, options.stream);
}

std::vector<std::string> stops_of(const attnkit_sample_options& options) {
  std::vector<std::string> stops;
  if (!ATTN_HAS(attnkit_sample_options, &options, n_stops) || options.n_stops == 0) return stops;
  require({{options.stops, "options.stops"}});
  for (uint64_t i = 0; i < options.n_stops; ++i) {
    const char* const stop = options.stops[i];
    if (!stop || !*stop) fail(ATTN_INVALID, "options.stops[{}] is empty: give a text, or leave it out", i);
    stops.emplace_back(stop);
    if (valid_utf8(stops.back()) < stops.back().size())
      fail(ATTN_INVALID, "options.stops[{}] is no UTF-8: {}", i, quote(stops.back()));
  }
  return stops;
}

}  // namespace

int32_t attnkit_session_create(const attnkit_model* model, uint32_t rows, attnkit_session** session, attn_error* err) {
  return guard(err, [&] {
    require({{model, "model"}, {session, "session"}});
    if (rows > 1024) fail(ATTN_INVALID, "{} rows: a session has 1 to 1024", rows);
    const int n = rows ? static_cast<int>(rows) : model->model->manifest().beams;
    *session = new attnkit_session{std::make_unique<Session>(model->model, n)};
  });
}

void attnkit_session_destroy(attnkit_session* session) { delete session; }

int32_t attnkit_session_clone(const attnkit_session* session, attnkit_session** copy, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{copy, "copy"}});
    *copy = new attnkit_session{s.clone()};
  });
}

int32_t attnkit_session_reorder(attnkit_session* session, const uint32_t* parents, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{parents, "parents"}});
    s.reorder(std::vector<uint32_t>(parents, parents + s.rows()));
  });
}

int32_t attnkit_session_read(attnkit_session* session, const attn_tensor* source, uint32_t last, attn_error* err) {
  return with(session, err, [&](Session& s) {
    if (last > 1) fail(ATTN_INVALID, "last is {}: 0, the source goes on, or 1, it is complete", last);
    s.read(to_source(s.model(), source, nullptr), last == 1);
  });
}

int32_t attnkit_sessions_read(attnkit_session* const* sessions, uint32_t n, const attn_tensor* source,
                              const int32_t* source_len, const uint32_t* last, attn_error* err) {
  return guard(err, [&] {
    const Many all(sessions, n);
    std::vector<uint32_t> ends(n, 1);
    for (uint32_t i = 0; last && i < n; ++i)
      if ((ends[i] = last[i]) > 1)
        fail(ATTN_INVALID, "last of session {} is {}: 0, the source goes on, or 1, it is complete", i, last[i]);
    const auto sources = [&] {
      try {
        return to_source(all.span().front()->model(), source, source_len, n > 1);
      } catch (const Error& e) {
        if (e.where() < 0 || e.where() >= static_cast<int64_t>(n)) throw;
        Session::fail_of(e.where(), e);
      }
    };
    Session::read(all.span(), sources(), ends);
  });
}

int32_t attnkit_session_set_length(attnkit_session* session, double target_length, attn_error* err) {
  return with(session, err, [&](Session& s) { s.set_length(target_length); });
}

int32_t attnkit_session_write(attnkit_session* const* sessions, uint32_t n, const attn_tensor* tokens,
                              const int32_t* len, const attn_tensor* logits, attn_error* err) {
  return guard(err, [&] {
    const Many all(sessions, n);
    const Ids ids = to_ids(tokens, len, "tokens");
    float* out =
        logits ? to_floats(logits, {ids.batch, ids.length, all.span().front()->model().outputs()}, "logits") : nullptr;
    Session::write(all.span(), ids, out);
  });
}

int32_t attnkit_session_generate(attnkit_session* session, uint32_t limit, int32_t* ids, uint64_t* n, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{ids, "ids"}, {n, "n"}});
    const std::vector<int32_t> made = s.generate(limit);
    std::copy(made.begin(), made.end(), ids);
    *n = made.size();
  });
}

int32_t attnkit_sessions_generate(attnkit_session* const* sessions, uint32_t n, uint32_t limit, uint32_t steps,
                                  int32_t* ids, uint64_t width, uint64_t* lengths, attn_error* err) {
  return guard(err, [&] {
    const Many all(sessions, n);
    require({{ids, "ids"}, {lengths, "lengths"}});
    const int64_t most = all.span().front()->model().manifest().max_target();
    const auto needed = static_cast<uint64_t>(limit > 0 ? std::min<int64_t>(limit, most) : most);
    if (width < needed)
      fail(ATTN_INVALID, "width {}: ids has room for {} tokens of each session at least", width, needed);
    const auto made =
        Session::generate(all.span(), limit, steps, static_cast<int64_t>(std::min<uint64_t>(width, INT64_MAX)));
    for (uint32_t i = 0; i < n; ++i) {
      lengths[i] = made[i] ? made[i]->size() : 0;
      if (made[i]) std::copy(made[i]->begin(), made[i]->end(), ids + i * width);
    }
  });
}

int32_t attnkit_session_sample(attnkit_session* session, const int32_t* prompt, uint64_t n_prompt,
                               const attnkit_sample_options* options, int32_t* ids, uint64_t* n, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{options, "options"}, {ids, "ids"}, {n, "n"}});
    require_size(*options, "options", offsetof(attnkit_sample_options, stops));
    if (n_prompt > 0) require({{prompt, "prompt"}});
    if (options->n_seen > 0) require({{options->seen, "options.seen"}});
    Sampler sampler = sampler_of(*options, s.model().manifest());
    const std::span seen(options->seen, options->n_seen);
    for (size_t i = 0; i < seen.size(); ++i)
      if (seen[i] < 0 || seen[i] >= s.model().outputs())
        fail(ATTN_INVALID, "options.seen[{}] is {}: ids are 0 to {}", i, seen[i], s.model().outputs() - 1);
    sampler.saw(seen);
    const std::vector<std::string> stops = stops_of(*options);
    std::vector<int32_t> drawn;  // where there are stops
    const auto stop = [&](int32_t id) {
      const bool ended = options->token && options->token(options->token_context, id) != 0;
      if (ended || stops.empty()) return ended;
      drawn.push_back(id);
      const std::string text = s.model().vocabulary(true)->detokenize(drawn.data(), drawn.size());
      return stop_in(text, stops) != std::string::npos;
    };
    const std::vector<int32_t> made = s.sample({prompt, n_prompt}, std::move(sampler), options->limit, stop);
    std::copy(made.begin(), made.end(), ids);
    *n = made.size();
  });
}

int32_t attnkit_session_simulate(attnkit_session* session, const attn_tensor* source,
                                 const attnkit_stream_options* options, int32_t* ids, uint64_t* n, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{options, "options"}, {ids, "ids"}, {n, "n"}});
    require_size(*options, "options");
    require({{reinterpret_cast<const void*>(options->decide), "options.decide"}});
    const std::vector<int32_t> made = simulate(s, units_of(s.model(), source, *options), *options);
    std::copy(made.begin(), made.end(), ids);
    *n = made.size();
  });
}

int32_t attnkit_session_describe(const attnkit_session* session, attnkit_text** json, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{json, "json"}});
    *json = new attnkit_text{describe_session(s)};
  });
}

int32_t attnkit_session_save(const attnkit_session* session, attnkit_blob** blob, attn_error* err) {
  return with(session, err, [&](Session& s) {
    require({{blob, "blob"}});
    *blob = new attnkit_blob{s.save()};
  });
}

int32_t attnkit_session_load(const attnkit_model* model, const void* bytes, uint64_t n, attnkit_session** session,
                             attn_error* err) {
  return guard(err, [&] {
    require({{model, "model"}, {session, "session"}});
    if (n > 0) require({{bytes, "bytes"}});
    *session = new attnkit_session{
        Session::load(model->model, {static_cast<const std::byte*>(bytes), static_cast<size_t>(n)})};
  });
}

const void* attnkit_blob_data(const attnkit_blob* blob, uint64_t* bytes) {
  if (bytes) *bytes = blob ? blob->data.size() : 0;
  return blob ? blob->data.data() : nullptr;
}

void attnkit_blob_destroy(attnkit_blob* blob) { delete blob; }
