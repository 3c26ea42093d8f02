// attnkit run: inputs in, outputs out.
#include <algorithm>
#include <cmath>

#include "hosts/cli/command.hpp"
#include "hosts/cli/decode/results.hpp"
#include "hosts/cli/decode/score.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/open.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

const Options run_options = with_input_options(
    "a reference for each --text or --audio: perplexity and exact match on standard error",
    {
        {"output,o", "FILE",
         "outputs, one per line, written when all are there; default standard output; vectors where its name ends in "
         ".npy as an array of NumPy"},
        {"beams", "N", "beam search with N beams, 1 is greedy; default what the manifest says"},
        {"limit", "N",
         "most tokens of an output; default what the manifest says, or 1.5 times the input and 20; of a language "
         "model what max_length leaves"},
        {"temperature", "X",
         "draw tokens at random, with scores divided by X; 0: the best token, always; default what the manifest says, "
         "or 0"},
        {"top-k", "N", "with --temperature: only of the N best; default what the manifest says, or all"},
        {"top-p", "X",
         "with --temperature: only of the best that together have this probability; default what the manifest "
         "says, or 1"},
        {"repetition-penalty", "X",
         "scores of tokens that were there are divided by X, those below 0 times X; default what the manifest says, or "
         "1"},
        {"seed", "N", "of --temperature; default 1"},
        {"stop", "TEXT", "an output ends before TEXT; may be repeated", true},
        {"unknown", "error|skip|unk",
         "a word that the vocabulary cannot spell: an error (default); its input is left out, an empty line among the "
         "outputs, a row of NaN in an array; it becomes <unk>"},
        {"batch", "N", "inputs decoded together (default 16); the outputs do not depend on it"},
    });

namespace {

// said: by the manifest.
std::optional<Sampling> sampling_of(const Arguments& arguments, const Sampling& said) {
  Sampling s = said;
  s.temperature = arguments.number("temperature", said.temperature, 0, 1000);
  s.top_k = arguments.integer("top-k", said.top_k, 1, 1 << 24);
  s.top_p = arguments.number("top-p", said.top_p, 0, 1);
  s.repetition_penalty = arguments.number("repetition-penalty", said.repetition_penalty, 0.01, 100);
  s.seed = static_cast<uint64_t>(arguments.integer("seed", 1, 0, INT64_MAX));
  for (const char* name : {"top-k", "top-p", "seed"})
    if (arguments.has(name) && s.temperature == 0)
      fail(Exit::usage, "--{} says how tokens are drawn: it needs --temperature", name);
  if (s.temperature == 0 && !s.looks_back()) return {};
  return s;
}

void check_options(const Arguments& arguments) {
  // Wrong values are refused before a model is loaded.
  arguments.integer("beams", 1, 1, 1024);
  arguments.integer("limit", 1, 1, INT32_MAX);
  arguments.integer("batch", 1, 1, 1024);
  Sampling any;
  any.temperature = 1;  // that the manifest may say
  sampling_of(arguments, any);
  for (const std::string& stop : arguments.texts("stop"))
    if (stop.empty()) fail(Exit::usage, "--stop needs a text that is not empty");
  arguments.choice("unknown", 0, {"error", "skip", "unk"});
  check_output(arguments);
}

struct RunResults : Results {
  std::vector<Label> labels;   // by input, of a model without a decoder
  std::vector<Score> scores;   // by input, with references
  std::vector<float> vectors;  // of an embedding, one behind the other, NaN for inputs that were skipped
  size_t width = 0;            // of each
  std::optional<double> speech_seconds;
  int32_t sample_rate = 0;
  bool decoder = true;
  uint32_t beams = 1;
  LargestSession largest;
  std::vector<Input> skipped;  // with --unknown skip

  size_t vector_at(size_t input) const { return inputs[input].line * width; }
  double seconds_of(int64_t samples) const { return static_cast<double>(samples) / sample_rate; }
  double tokens_per_second() const { return static_cast<double>(tokens()) / std::max(seconds, 1e-9); }
  Score total() const {
    Score sum;
    for (const Score& s : scores) sum.nll += s.nll, sum.tokens += s.tokens;
    return sum;
  }
};

void run_encoder(const Model& model, const Facts& facts, size_t batch, RunResults& results, const Give& give) {
  results.labels.resize(results.inputs.size());
  label_inputs(model, facts, results.inputs, batch, [&](size_t i, const Label& label) {
    const std::string text = facts.classifier()
                                 ? fmt::format("{}\t{:.6f}", label.best, label.scores[static_cast<size_t>(label.best)])
                                 : model.detokenize(Side::source, label.ids);
    results.labels[i] = label;
    give(i, {text, source_length(facts, results.inputs[i])});
  });
}

// The shortest text of a number that reads back as it.
std::string number_text(float x) { return fmt::format("{}", x); }

void run_embedding(const Model& model, const Facts& facts, size_t batch, RunResults& results, const Give& give) {
  results.width = static_cast<size_t>(facts.info.outputs);
  results.vectors.assign((results.inputs.size() + results.skipped.size()) * results.width, std::nanf(""));
  embed_inputs(model, facts, results.inputs, batch, [&](size_t i, std::span<const float> vector) {
    std::ranges::copy(vector, results.vectors.begin() + static_cast<std::ptrdiff_t>(results.vector_at(i)));
    std::string text;
    for (const float x : vector) text += (text.empty() ? "" : " ") + number_text(x);
    give(i, {text, source_length(facts, results.inputs[i])});
  });
}

// NumPy's format, version 1.0, of an array (inputs, width) of little-endian f32.
std::string npy_of(const RunResults& r) {
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
                                   r.vectors.size() / r.width, r.width);
  constexpr size_t front = 10;  // magic, version, length of the header
  header.resize((front + header.size() + 64) / 64 * 64 - front - 1, ' ');
  header += '\n';
  std::string out = "\x93NUMPY\x01";
  out += '\0';
  out += static_cast<char>(header.size() & 255);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  out.append(reinterpret_cast<const char*>(r.vectors.data()), r.vectors.size() * sizeof(float));
  return out;
}

// "attnkit.run/1".
Json json_of(const RunResults& r) {
  Json json = {{"schema", "attnkit.run/1"}, {"model", r.description["name"]}, {"kind", r.description["kind"]}};
  add_blocks(r, json);
  add_results(r, json, [&](size_t i, Json& entry) {
    if (!r.labels.empty() && !r.labels[i].scores.empty())
      entry.update({{"class", r.labels[i].best}, {"scores", r.labels[i].scores}});
    if (r.width > 0) {
      entry.erase("output");
      Json& vector = entry["vector"] = Json::array();
      for (size_t c = 0; c < r.width; ++c) vector.push_back(std::stod(number_text(r.vectors[r.vector_at(i) + c])));
    }
    if (r.decoder) entry["ids"] = r.all[i].ids;
    for (const Window& w : r.all[i].windows)
      entry["windows"].push_back({{"begin", r.seconds_of(w.begin)},
                                  {"end", r.seconds_of(w.end)},
                                  {"output", w.text},
                                  {"ids", w.ids},
                                  {"finished", w.finished}});
    add_length(r.all[i], entry);
    if (!r.have_references()) return;
    entry.update({{"reference", *r.inputs[i].reference},
                  {"exact", r.all[i].exact},
                  {"nll", r.scores[i].nll},
                  {"perplexity", r.scores[i].perplexity()},
                  {"reference_tokens", r.scores[i].tokens}});
  });
  for (const Input& input : r.skipped)
    json["skipped"].push_back(
        {{"index", input.line}, {"input", input.text}, {"origin", input.origin}, {"reason", *input.skipped}});
  Json summary = {{"inputs", r.inputs.size()},
                  {"tokens", r.tokens()},
                  {"seconds", r.seconds},
                  {"tokens_per_second", r.tokens_per_second()}};
  if (r.speech_seconds)
    summary.update({{"speech_seconds", *r.speech_seconds}, {"real_time_factor", r.seconds / *r.speech_seconds}});
  if (r.decoder)
    summary.update({{"beams", r.beams},
                    {"state_bytes_per_session", r.largest.state_bytes},
                    {"beyond_target_length", r.beyond_target_length()}});
  if (r.have_references())
    summary.update({{"perplexity", r.total().perplexity()},
                    {"reference_tokens", r.total().tokens},
                    {"exact_match", static_cast<double>(r.exact()) / static_cast<double>(r.all.size())}});
  json["summary"] = summary;
  return json;
}

std::string text_of(const RunResults& r) {
  std::string out = mechanisms_text(r);
  out += fmt::format("{}, {} in {}, {:.0f} tokens/s", counted_text(r.inputs.size(), "input"),
                     counted_text(r.tokens(), "token"), seconds_text(r.seconds), r.tokens_per_second());
  if (r.decoder && r.largest.tokens > 0)
    out += fmt::format(", state {} per session (the largest)", bytes_text(r.largest.state_bytes));
  std::optional<SpeechTime> time;
  if (r.speech_seconds) time = SpeechTime{*r.speech_seconds, r.seconds};
  out += "\n" + remarks_text(r, time);
  if (!r.skipped.empty())
    out +=
        fmt::format("{} of {} {} skipped\n", r.skipped.size(),
                    counted_text(r.inputs.size() + r.skipped.size(), "input"), r.skipped.size() == 1 ? "was" : "were");
  if (r.have_references())
    out += fmt::format("perplexity {:.4f} over {}, {}\n", r.total().perplexity(),
                       counted_text(r.total().tokens, "token"), exact_text(r));
  return out;
}

}  // namespace

Exit run_command(const Arguments& arguments) {
  check_options(arguments);
  const Runtime runtime = open_runtime(arguments);
  const Model model = open_model(runtime, arguments);
  Facts facts = facts_of(model);
  if (facts.speech) facts.speech->any_length = facts.decoder();
  DecodeOptions options;
  options.beams = static_cast<uint32_t>(arguments.integer("beams", facts.info.beams, 1, 1024));
  options.limit = static_cast<uint32_t>(arguments.integer("limit", 0, 1, INT32_MAX));
  options.batch = static_cast<uint32_t>(arguments.integer("batch", 16, 1, 1024));
  options.stops = arguments.texts("stop");
  // Beams search for the best text, whatever the manifest draws otherwise.
  if (arguments.has("beams") && options.beams > 1) facts.sampling.temperature = 0;
  options.sampling = sampling_of(arguments, facts.sampling);
  const bool writes = options.sampling || !options.stops.empty() || arguments.has("beams") || arguments.has("limit");
  if (writes && !facts.decoder())
    fail(Exit::usage, "--beams, --limit, --temperature, --repetition-penalty and --stop are for models that write");
  if (options.beams > 1 && (arguments.number("temperature", 0, 0, 1000) > 0 || arguments.has("repetition-penalty")))
    fail(Exit::usage, "--temperature and --repetition-penalty draw one text; give --beams 1");
  if (options.beams > 1 && !facts.encoder() && facts.sampling.looks_back())
    fail(Exit::usage,
         "--beams {}: repetition_penalty and no_repeat of [decode] look back at the text, which a search of a decoder "
         "alone does not; give --beams 1",
         options.beams);
  const bool npy = arguments.text("output").ends_with(".npy");
  if (npy && !facts.embeds())
    fail(Exit::usage, "--output {}: this model gives out no vectors for an array", quote(arguments.text("output")));
  RunResults results;
  results.decoder = facts.decoder();
  results.beams = options.beams;
  results.sample_rate = facts.info.sample_rate;
  for (Input& input : inputs_of(model, facts, arguments, LiveAudio::read))
    (input.skipped ? results.skipped : results.inputs).push_back(std::move(input));
  Outputs outputs(arguments, results.inputs.size() + results.skipped.size());
  for (const Input& input : results.skipped) outputs.add(input.line, "", 0);
  run_inputs(model, results, outputs, [&](const Give& give) {
    if (facts.decoder())
      results.largest = decode(model, facts, results.inputs, options, give);
    else if (facts.embeds())
      run_embedding(model, facts, options.batch, results, give);
    else
      run_encoder(model, facts, options.batch, results, give);
  });
  if (results.have_references()) results.scores = score_references(model, facts, results.inputs, options.batch);
  if (facts.speech && !results.inputs.empty()) {
    results.speech_seconds = 0;
    for (const Input& input : results.inputs)
      *results.speech_seconds += facts.speech->shape.ms(input.audio->samples) / 1000;
  }
  if (npy) outputs.replace(npy_of(results));
  return outputs.finish(json_of(results), text_of(results));
}

}  // namespace attnkit::cli
