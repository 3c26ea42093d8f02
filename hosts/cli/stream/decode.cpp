#include "hosts/cli/stream/decode.hpp"

#include "hosts/cli/io/interrupt.hpp"

namespace attnkit::cli {

// What happens to one input.
struct Streamer::Watch {
  size_t index;
  const Model& model;
  const StreamSource& source;
  EventLines& events;
  Outputs& outputs;
  bool live;  // shows the output as it grows
  std::vector<stream::Write> writes = {};
  Ids made = {};
  size_t reads = 0;
  double seconds = 0;

  void see(const attnkit_stream_event& event) {
    const bool writes_one = event.action == ATTNKIT_WRITE;
    if (writes_one) {
      writes.push_back({event.read, event.seconds});
      made.push_back(event.id);
    }
    reads += !writes_one;
    seconds = event.seconds;
    if (live && writes_one) outputs.show(model.detokenize(Side::target, made));
    if (!events.wanted()) return;
    Json line = {{"input", index}, {"action", writes_one ? "WRITE" : "READ"}};
    if (writes_one) line.update({{"id", event.id}, {"text", model.detokenize(Side::target, {&event.id, 1})}});
    Json more = Json::object();
    source.describe(event, more);
    if (more.contains("text")) line["text"] = more["text"];
    line.update({{"read", event.read}, {"written", event.written}});
    more.erase("text");
    line.update(more);
    line["seconds"] = event.seconds;
    events.add(line);
  }
};

Streamer::Streamer(const Model& model, const Facts& facts, const StreamSetup& setup, EventLines& events,
                   Outputs& outputs)
    : model_(model), facts_(facts), setup_(setup), events_(events), outputs_(outputs) {}

void Streamer::decode(Watch& watch, StreamSource& source, const Input& input, Streamed& result) {
  Session session(model_, 1);
  if (facts_.asks_for_length && input.reference) session.set_length(static_cast<double>(input.target.size() + 1));
  const auto decide = [&](const attnkit_stream_view& view) {
    if (!watch.live) check_interrupt();
    const auto action = static_cast<uint32_t>(setup_.policy->decide(view));
    return view.ended || source.ready(view.read) ? action : uint32_t{ATTNKIT_READ};
  };
  const auto see = [&](const attnkit_stream_event& event) { watch.see(event); };
  const Ids made = source.decode(session, decide, see, setup_.limit);
  result.made = made.size();
  result.finished = !made.empty() && made.back() == facts_.info.end_id;
  result.output = model_.detokenize(Side::target, made);
  const auto detokenize = [&](std::span<const int32_t> ids) { return model_.detokenize(Side::target, ids); };
  std::optional<double> reference;
  if (input.reference) reference = static_cast<double>(stream::reference_words(*input.reference));
  result.log = source.log(watch.writes, stream::words_of(made, detokenize), reference);
  const Json state = Json::parse(session.describe());
  result.state_bytes = state["state_bytes"];
  result.encoded_again = state.value("tokens_encoded_again", uint64_t{0});
  result.predicted_again = state.value("tokens_predicted_again", uint64_t{0});
  result.keys_replayed = state.value("keys_replayed", uint64_t{0});
  result.length = length_use(facts_, state);
}

Streamed Streamer::run(size_t index, const Input& input) {
  check_interrupt();
  const std::unique_ptr<StreamSource> source = stream_source(model_, facts_, setup_, input);
  const bool live = input.audio && input.audio->path == "-";
  Watch watch{index, model_, *source, events_, outputs_, live};
  Streamed result;
  result.log = source->log({}, {}, {});
  if (!source->empty()) {
    try {
      decode(watch, *source, input, result);
    } catch (const Error& e) {
      fail_decoding(input, e);
    }
  }
  result.reads = watch.reads;
  result.seconds = source->computing_seconds().value_or(watch.seconds);
  events_.add({{"input", index},
               {"action", "END"},
               {"output", result.output},
               {"finished", result.finished},
               {"seconds", watch.seconds}});
  return result;
}

}  // namespace attnkit::cli
