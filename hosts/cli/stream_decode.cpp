#include "stream_decode.hpp"

#include "interrupt.hpp"

namespace attnkit::cli {
namespace {

stream::Detokenize detokenizer(const Model& model, Side side) {
  return [&model, side](std::span<const int32_t> ids) { return model.detokenize(side, ids); };
}

}  // namespace

// What happens to one input.
struct Streamer::Watch {
  size_t index;
  const Model& model;
  const Ids& source_ids;
  EventLines& events;
  stream::TextSource source;
  std::vector<stream::Write> writes;
  size_t reads = 0;
  double seconds = 0;

  void see(const attnkit_stream_event& event) {
    const bool writes_one = event.action == ATTNKIT_WRITE;
    if (writes_one) writes.push_back({event.read, event.seconds});
    reads += !writes_one;
    seconds = event.seconds;
    if (!events.wanted()) return;
    Json line = {{"input", index}, {"action", writes_one ? "WRITE" : "READ"}};
    if (writes_one) line["id"] = event.id;
    line["text"] = writes_one ? model.detokenize(Side::target, {&event.id, 1}) : unit_text(event.read - 1);
    line.update({{"read", event.read},
                 {"written", event.written},
                 {"source_words", source.words_begun(event.read)},
                 {"seconds", event.seconds}});
    events.add(line);
  }

  std::string unit_text(int64_t unit) const {
    const auto at = static_cast<size_t>(unit);
    const auto from = static_cast<size_t>(at > 0 ? source.ends[at - 1] : 0), to = static_cast<size_t>(source.ends[at]);
    return model.detokenize(Side::source, std::span(source_ids).subspan(from, to - from));
  }
};

Streamer::Streamer(const Model& model, const Facts& facts, const StreamSetup& setup, EventLines& events)
    : model_(model), facts_(facts), setup_(setup), events_(events) {}

void Streamer::decode(Watch& watch, const Input& input, Streamed& result) {
  Session session(model_, 1);
  if (facts_.asks_for_length && input.reference) session.set_length(static_cast<double>(input.target.size() + 1));
  const auto decide = [&](const attnkit_stream_view& view) {
    check_interrupt();
    return static_cast<uint32_t>(setup_.policy->decide(view));
  };
  const auto see = [&](const attnkit_stream_event& event) { watch.see(event); };
  Ids made = session.simulate(input.ids, watch.source.ends, decide, see, setup_.limit);
  result.made = made.size();
  result.finished = !made.empty() && made.back() == facts_.info.end_id;
  result.output = model_.detokenize(Side::target, made);
  std::optional<double> reference;
  if (input.reference) reference = static_cast<double>(stream::reference_words(*input.reference));
  result.log = stream::text_log(watch.source, watch.writes, stream::words_of(made, detokenizer(model_, Side::target)),
                                setup_.word_seconds, reference);
  const Json state = Json::parse(session.describe());
  result.state_bytes = state["state_bytes"];
  result.encoded_again = state.value("tokens_encoded_again", uint64_t{0});
  result.predicted_again = state.value("tokens_predicted_again", uint64_t{0});
  result.keys_replayed = state.value("keys_replayed", uint64_t{0});
  result.length = length_use(facts_, state);
}

Streamed Streamer::run(size_t index, const Input& input) {
  check_interrupt();
  Watch watch{index,
              model_,
              input.ids,
              events_,
              stream::text_source(input.ids.size(), stream::words_of(input.ids, detokenizer(model_, Side::source)),
                                  setup_.unit),
              {}};
  Streamed result;
  result.log.source_length = static_cast<double>(watch.source.words.size());
  if (!watch.source.words.empty()) {
    try {
      decode(watch, input, result);
    } catch (const Error& e) {
      fail_decoding(input, e);
    }
  }
  result.reads = watch.reads;
  result.seconds = watch.seconds;
  events_.add({{"input", index},
               {"action", "END"},
               {"output", result.output},
               {"finished", result.finished},
               {"seconds", result.seconds}});
  return result;
}

}  // namespace attnkit::cli
