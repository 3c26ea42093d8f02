#include "hosts/cli/decode/decode.hpp"

#include <algorithm>

#include "core/base/decoding/greedy.hpp"
#include "core/base/decoding/stops.hpp"
#include "core/search/batched_decoder.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"

namespace attnkit::cli {
namespace {

class Decoder : public search::BatchedDecoder {
 public:
  Decoder(const Model& model, const Facts& facts, std::span<const Input> inputs, const DecodeOptions& options,
          const Give& give)
      : BatchedDecoder(facts), model_(model), facts_(facts), inputs_(inputs), options_(options), give_(give) {}

  LargestSession decode() {
    if (options_.beams > 1)
      // Of speech the limit is by the rows of a recording, not by those of the window that the encoder takes.
      search(model_, inputs_.size(), options_.batch, facts_.speech ? std::nullopt : std::optional(options_.limit));
    else
      run(inputs_.size(), options_.batch);
    return largest_;
  }

 private:
  std::optional<Active> open(size_t index) override {
    const Input& input = inputs_[index];
    check_interrupt();
    if (is_empty(input)) return give_(index, {}), std::nullopt;
    // The last token of a prompt is written with the first of other inputs, and by a search with the rest.
    const size_t prompt = facts_.encoder() ? 0 : input.ids.size() - (options_.beams == 1);
    Session session(model_, options_.beams);
    const bool text = facts_.encoder() && !facts_.speech;
    prepare(session, input, prompt, !text);
    const int32_t first = facts_.encoder() ? facts_.info.begin_id : input.ids.back();
    Active active{index, std::move(session), first, prompt, limit_of(input), text ? input.ids : Ids()};
    if (options_.sampling)
      active.sampler.emplace(*options_.sampling, index).saw(facts_.encoder() ? Ids{facts_.info.begin_id} : input.ids);
    return active;
  }

  bool is_empty(const Input& input) const { return facts_.encoder() && !facts_.speech && input.ids.size() == 1; }

  size_t limit_of(const Input& input) const {
    const int64_t said = options_.limit > 0 ? options_.limit : facts_.lengths.limit;
    if (said > 0) return static_cast<size_t>(std::min(said, facts_.longest_target()));
    const int64_t before = facts_.encoder() ? 1 : static_cast<int64_t>(input.ids.size());
    if (facts_.lengths.max_length > 0)
      return static_cast<size_t>(std::max<int64_t>(1, facts_.lengths.max_length - before));
    if (!facts_.encoder()) return static_cast<size_t>(facts_.longest_target());
    const auto source = static_cast<int64_t>(source_length(facts_, input));
    return static_cast<size_t>(default_limit(source, facts_.longest_target()));
  }

  // Sets the target's length where the model asks for it, reads the source unless that is left for later, or writes the
  // first `prompt` ids of a decoder's prompt to all rows.
  void prepare(Session& session, const Input& input, size_t prompt, bool read) {
    // Before the source: the keys made from it may depend on the length.
    if (input.reference && facts_.asks_for_length)
      session.set_length(
          static_cast<double>(input.target.size() + (facts_.encoder() ? facts_.forced.size() + 1 : input.ids.size())));
    if (facts_.encoder() && read) read_source(session, facts_, input);
    if (facts_.encoder() || prompt == 0) return;
    attnkit_session* const self = session.get();
    const Ids ids(input.ids.begin(), input.ids.begin() + static_cast<std::ptrdiff_t>(prompt));
    Session::write({&self, 1}, Batch(std::vector<Ids>(options_.beams, ids)));
  }

  bool is_stopped(const Active& input) const override {
    if (options_.stops.empty()) return false;
    return stop_in(model_.detokenize(Side::target, input.made), options_.stops) != std::string::npos;
  }

  void done(Active& input) override { finish(input.index, input.session, input.made); }
  [[noreturn]] void fail_at(size_t index, const Error& e) const override { fail_decoding(inputs_[index], e); }
  void check_interrupt() const override { cli::check_interrupt(); }

  void finish(size_t index, Session& session, const Ids& made) {
    const size_t input = source_length(facts_, inputs_[index]);
    // Tokens of the target: <s> or a prompt, and all that were made but the last.
    const size_t written = made.size() + (facts_.encoder() ? 0 : input - 1);
    const size_t tokens = written + (facts_.encoder() ? input : 0);
    Json state;
    if (tokens > largest_.tokens || facts_.needs_length) state = Json::parse(session.describe());
    if (tokens > largest_.tokens) largest_ = {state["state_bytes"], tokens};
    LengthUse length = length_use(facts_, state);
    // Of the output's row; the session counts those of all.
    if (length.length) length.beyond = written - std::min(written, static_cast<size_t>(std::min(*length.length, 1e15)));
    const bool ended = !made.empty() && made.back() == facts_.info.end_id;
    const auto ids = std::span<const int32_t>(made).first(made.size() - ended);
    const size_t forced = std::min(facts_.forced.size(), ids.size());
    std::string text = model_.detokenize(Side::target, ids);
    const size_t stop = stop_in(text, options_.stops);
    if (stop != std::string::npos) text.resize(stop);
    const Ids own(ids.begin() + static_cast<std::ptrdiff_t>(forced), ids.end());
    give_(index, {text, made.size(), ended || stop != std::string::npos, length, false, own});
  }

  const Model& model_;
  const Facts& facts_;
  std::span<const Input> inputs_;
  const DecodeOptions& options_;
  const Give& give_;
  LargestSession largest_;
};

// The windows of recordings, and which recording each belongs to.
struct Windows {
  std::vector<Input> inputs;
  std::vector<size_t> of;

  Windows(const Facts& facts, std::span<const Input> recordings) {
    const int64_t rate = facts.info.sample_rate;
    for (size_t i = 0; i < recordings.size(); ++i) {
      const Recording& all = *recordings[i].audio;
      const bool whole = all.samples <= facts.speech->window;
      int64_t begin = 0;
      for (const int64_t end : whole ? std::vector{all.samples} : window_ends(*all.held, facts.speech->window, rate)) {
        inputs.push_back(recordings[i]);
        of.push_back(i);
        inputs.back().audio->begin = begin;
        inputs.back().audio->samples = end - begin;
        if (!whole)
          inputs.back().origin +=
              fmt::format(", {:.2f} to {:.2f} s", static_cast<double>(begin) / static_cast<double>(rate),
                          static_cast<double>(end) / static_cast<double>(rate));
        begin = end;
      }
    }
  }
};

LargestSession decode_windows(const Model& model, const Facts& facts, std::span<const Input> recordings,
                              const DecodeOptions& options, const Give& give) {
  const Windows windows(facts, recordings);
  std::vector<std::optional<Result>> made(windows.inputs.size());
  const Give take = [&](size_t index, Result result) {
    made[index] = std::move(result);
    const auto [first, last] = std::equal_range(windows.of.begin(), windows.of.end(), windows.of[index]);
    const auto begin = made.begin() + (first - windows.of.begin()), end = begin + (last - first);
    if (!std::all_of(begin, end, [](const std::optional<Result>& r) { return r.has_value(); })) return;
    Result all;
    Ids tokens;         // forced ones included
    size_t before = 0;  // bytes of their text, until a window adds to it
    if (last - first == 1) all.length = (*begin)->length;
    for (auto part = begin; part != end; ++part) {
      const Recording& audio = *windows.inputs[static_cast<size_t>(part - made.begin())].audio;
      Result& r = **part;
      Ids own(facts.forced.begin(),
              facts.forced.begin() + static_cast<std::ptrdiff_t>(std::min(facts.forced.size(), r.made)));
      own.insert(own.end(), r.ids.begin(), r.ids.end());
      tokens.insert(tokens.end(), own.begin(), own.end());
      // A text alone may lack the space before its first word.
      const std::string joined = model.detokenize(Side::target, tokens);
      const bool apart = !all.text.empty() && before < joined.size() && joined[before] == ' ';
      if (apart && !all.text.ends_with(' ') && !r.text.starts_with(' ')) all.text += ' ';
      all.text += r.text;
      before = joined.size();
      all.made += r.made;
      all.finished = all.finished && r.finished;
      if (last - first > 1) all.length.beyond += r.length.beyond;
      all.ids.insert(all.ids.end(), r.ids.begin(), r.ids.end());
      all.windows.push_back({audio.begin, audio.begin + audio.samples, r.text, r.ids, r.finished});
    }
    give(windows.of[index], std::move(all));
  };
  return Decoder(model, facts, windows.inputs, options, take).decode();
}

}  // namespace

LengthUse length_use(const Facts& facts, const Json& state) {
  if (!facts.needs_length || state["target_length"].is_null()) return {};
  return {state["target_length"].get<double>(), state["beyond_target_length"].get<uint64_t>()};
}

void fail_decoding(const Input& input, const Error& e) {
  const bool inputs_fault = e.code() == ATTN_INVALID || e.code() == ATTN_UNSUPPORTED;
  // Internal errors while decoding come from a mechanism or the weights.
  const Exit exit = inputs_fault ? Exit::data : e.code() == ATTN_INTERNAL ? Exit::numerical : Exit::internal;
  fail(exit, "{}: {}", input.origin, e.what());
}

LargestSession decode(const Model& model, const Facts& facts, std::span<const Input> inputs,
                      const DecodeOptions& options, const Give& give) {
  if (facts.speech && facts.speech->window > 0) return decode_windows(model, facts, inputs, options, give);
  return Decoder(model, facts, inputs, options, give).decode();
}

}  // namespace attnkit::cli
