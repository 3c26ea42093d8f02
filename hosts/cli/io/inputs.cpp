#include "hosts/cli/io/inputs.hpp"

#include <algorithm>
#include <filesystem>

#include "core/search/trial/data_set.hpp"
#include "hosts/cli/io/files.hpp"
#include "hosts/cli/io/interrupt.hpp"
#include "hosts/cli/io/output.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

namespace fs = std::filesystem;

std::vector<Input> given_texts(const Arguments& arguments) {
  if (arguments.has("audio") || arguments.has("audio-list"))
    fail(Exit::usage, "this model takes text, not speech: give --text TEXT or --file FILE in place of --{}",
         arguments.has("audio") ? "audio" : "audio-list");
  if (arguments.has("text") == arguments.has("file"))
    fail(Exit::usage, "give either --text TEXT, which may be repeated, or --file FILE (- is standard input)");
  if (arguments.text("file") == "-" && arguments.text("target-file") == "-")
    fail(Exit::usage, "--file and --target-file cannot both be standard input");
  std::vector<Input> inputs;
  const bool from_file = arguments.has("file");
  for (std::string& line : from_file ? read_lines(arguments.text("file")) : arguments.texts("text")) {
    const size_t n = inputs.size() + 1;
    inputs.push_back(
        {std::move(line), from_file ? place_of(arguments.text("file"), n) : fmt::format("--text {}", n), {}, {}, {}});
  }
  return inputs;
}

Input recording(const std::string& name, const std::string& path, const std::string& origin) {
  Input input{name, origin, {}, {}, {}};
  input.audio = Recording{path, 0, {}};
  return input;
}

// Lines "path", or "path TAB reference" all of them.
std::vector<Input> listed_recordings(const std::string& file) {
  const fs::path folder = file == "-" ? fs::path(".") : fs::absolute(file).parent_path();
  std::vector<Input> inputs;
  for (const std::string& line : read_lines(file)) {
    const std::string place = place_of(file, inputs.size() + 1);
    const size_t tab = line.find('\t');
    const std::string name = line.substr(0, tab);
    if (name.empty()) fail(Exit::data, "{}: a path is needed, and after a tab, if there is one, its reference", place);
    // Never a dash alone, which would be standard input.
    inputs.push_back(recording(name, (folder / name).string(), place + ": " + name));
    if (tab != std::string::npos) inputs.back().reference = line.substr(tab + 1);
    if (inputs.back().reference.has_value() != inputs.front().reference.has_value())
      fail(Exit::data, "{}: {} reference, unlike the first line: give one to every recording or to none", place,
           inputs.back().reference ? "has a" : "has no");
  }
  return inputs;
}

bool is_standard_input(const Input& input) { return input.audio->path == "-"; }

// Not opened yet.
std::vector<Input> given_recordings(const Arguments& arguments) {
  if (arguments.has("text") || arguments.has("file"))
    fail(Exit::usage, "this model takes speech, not text: give --audio FILE or --audio-list FILE in place of --{}",
         arguments.has("text") ? "text" : "file");
  if (arguments.has("audio") == arguments.has("audio-list"))
    fail(Exit::usage, "this model takes speech: give either --audio FILE, which may be repeated, or --audio-list FILE");
  if (arguments.has("audio-list")) {
    if (arguments.has("target") || arguments.has("target-file"))
      fail(Exit::usage,
           "references of --audio-list stand in the list, after a tab: leave --target and --target-file out");
    return listed_recordings(arguments.text("audio-list"));
  }
  std::vector<Input> inputs;
  for (const std::string& path : arguments.texts("audio"))
    inputs.push_back(recording(path, path, path == "-" ? "standard input" : path));
  const auto standard = std::count_if(inputs.begin(), inputs.end(), is_standard_input);
  if (standard > 1) fail(Exit::usage, "--audio - : standard input can be read but once");
  if (standard > 0 && arguments.text("target-file") == "-")
    fail(Exit::usage, "--audio and --target-file cannot both be standard input");
  return inputs;
}

// Reads each once, so that a bad one is refused before anything is decoded, and notes its length.
void check_recordings(const SpeechFormat& format, LiveAudio live, std::vector<Input>& inputs) {
  for (Input& input : inputs) {
    check_interrupt();
    if (is_standard_input(input) && live == LiveAudio::left) continue;
    SpeechFormat own = format;
    if (input.reference) own.any_length = false;  // which part of it belongs to a window is not known
    std::vector<float> samples = read_audio(input.audio->path, input.origin, own);
    if (std::all_of(samples.begin(), samples.end(), [](float x) { return x == 0; }))
      note(fmt::format("attnkit: warning: {}: is silent, all samples are 0\n", input.origin));
    input.audio->samples = static_cast<int64_t>(samples.size());
    const bool windows = format.window > 0 && input.audio->samples > format.window;
    if (windows || is_standard_input(input))
      input.audio->held = std::make_shared<const std::vector<float>>(std::move(samples));
  }
}

void add_references(const Arguments& arguments, std::vector<Input>& inputs) {
  if (!arguments.has("target") && !arguments.has("target-file")) return;
  if (arguments.has("target") && arguments.has("target-file"))
    fail(Exit::usage, "--target and --target-file exclude each other");
  const std::vector<std::string> references =
      arguments.has("target-file") ? read_lines(arguments.text("target-file")) : arguments.texts("target");
  if (references.size() != inputs.size())
    fail(arguments.has("target-file") || arguments.has("file") ? Exit::data : Exit::usage,
         "{} references for {} inputs: give one for each", references.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i].reference = references[i];
}

void check_length(const Input& input, size_t tokens, size_t max, const char* what) {
  if (tokens > max)
    fail(Exit::data, "{}: the {} has {} tokens, <s> or </s> included; the model's max_length is {}: split it",
         input.origin, what, tokens, max);
}

// The id of <unk>, which the library knows by no name: the vocabulary's line.
int32_t unknown_id(const Model& model, Side side) {
  const Json file = Json::parse(model.describe())[side == Side::source ? "source_vocabulary" : "target_vocabulary"];
  const std::vector<std::string> tokens = read_lines(file);
  const auto at = std::find(tokens.begin(), tokens.end(), "<unk>");
  if (at == tokens.end())
    fail(Exit::data, "--unknown unk: {} has no <unk>; use --unknown skip", file.get<std::string>());
  return static_cast<int32_t>(at - tokens.begin());
}

// Why the vocabulary cannot spell a text, if that is all that is wrong with it.
std::optional<std::string> misspelt(const Model& model, Side side, const std::string& text) {
  if (valid_utf8(text) < text.size()) return {};
  try {
    model.tokenize(side, text);
    return {};
  } catch (const Error& e) {
    if (e.code() != ATTN_INVALID) throw;
    return e.what();
  }
}

// Tokens of a text, in which each word that cannot be spelled is one <unk>.
Ids tokens_with_unknown(const Model& model, Side side, const std::string& text, const std::string& origin) {
  if (!misspelt(model, side, text)) return tokens_of(model, side, text, origin);
  const int32_t unknown = unknown_id(model, side);
  Ids ids;
  for (std::string_view rest = text; !rest.empty();) {
    if (const size_t n = white_space(rest)) {
      rest.remove_prefix(n);
      continue;
    }
    size_t n = 0;
    while (n < rest.size() && white_space(rest.substr(n)) == 0) ++n;
    const std::string word(rest.substr(0, n));
    rest.remove_prefix(n);
    const Ids known = misspelt(model, side, word) ? Ids{unknown} : tokens_of(model, side, word, origin);
    ids.insert(ids.end(), known.begin(), known.end());
  }
  return ids;
}

// The treatment of words that the vocabulary cannot spell.
enum class Unknown { error, skip, unk };

Ids spelled(const Model& model, Side side, const std::string& text, const std::string& origin, Unknown unknown) {
  return unknown == Unknown::unk ? tokens_with_unknown(model, side, text, origin)
                                 : tokens_of(model, side, text, origin);
}

Side input_side(const Facts& facts) { return facts.encoder() ? Side::source : Side::target; }

std::optional<std::string> reason_to_skip(const Model& model, const Facts& facts, const Input& input) {
  if (!facts.speech)
    if (const auto reason = misspelt(model, input_side(facts), input.text)) return reason;
  if (!input.reference || !facts.decoder()) return {};
  if (const auto reason = misspelt(model, Side::target, *input.reference)) return "reference: " + *reason;
  return {};
}

}  // namespace

void frame(const Facts& facts, Ids& ids) {
  const int32_t id = facts.encoder() ? facts.info.end_id : facts.info.begin_id;
  if (id >= 0) ids.insert(facts.encoder() ? ids.end() : ids.begin(), id);
}

namespace {

void tokenize_text(const Model& model, const Facts& facts, Unknown unknown, Input& input) {
  input.ids = spelled(model, input_side(facts), input.text, input.origin, unknown);
  frame(facts, input.ids);
  if (input.ids.empty())
    fail(Exit::data, "{}: is empty, and a text of this model begins with no token of its own", input.origin);
  check_length(input, input.ids.size(),
               facts.encoder() ? facts.max_length() : static_cast<size_t>(facts.longest_target()), "input");
}

void tokenize_reference(const Model& model, const Facts& facts, Unknown unknown, Input& input) {
  if (!input.reference) return;
  if (!facts.decoder()) fail(Exit::usage, "references score models with a decoder; this one has none");
  input.target = spelled(model, Side::target, *input.reference, input.origin + ", reference", unknown);
  const size_t before = facts.encoder() ? facts.before_target().size() : input.ids.size();
  check_length(input, input.target.size() + before, static_cast<size_t>(facts.longest_target()), "reference");
}

}  // namespace

Facts facts_of(const Model& model) {
  Facts all{search::facts_of(model)};
  if (all.info.sample_rate > 0) all.speech = speech_format(all);
  if (!all.decoder()) return all;
  all.asks_for_length = search::asks_for_length(model);
  const Json description = Json::parse(model.describe());
  const Json& length = description["length"];
  all.needs_length = !length.is_null() && !length["needed_by"].empty();
  return all;
}

std::string place_of(const std::string& file, size_t line) {
  return fmt::format("{}:{}", file == "-" ? "standard input" : file, line);
}

Options with_input_options(const char* target, const Options& others) {
  Options all = {
      {"text", "TEXT", "an input; may be repeated", true},
      {"file", "FILE", "inputs, one per line; - is standard input"},
      {"audio", "FILE",
       "a recording, for models that take speech: WAV, FLAC or OGG; may be repeated; - is standard input, "
       "signed 16-bit little-endian samples",
       true},
      {"audio-list", "FILE", "recordings, a path per line, relative to the list; after a tab its reference"},
      {"target", "TEXT", target, true},
      {"target-file", "FILE", "references, one per line"},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

std::vector<Input> inputs_of(const Model& model, const Facts& facts, const Arguments& arguments, LiveAudio live) {
  std::vector<Input> inputs = facts.speech ? given_recordings(arguments) : given_texts(arguments);
  add_references(arguments, inputs);
  if (facts.speech) check_recordings(*facts.speech, live, inputs);
  const auto unknown = static_cast<Unknown>(arguments.choice("unknown", 0, {"error", "skip", "unk"}));
  for (size_t i = 0; i < inputs.size(); ++i) {
    Input& input = inputs[i];
    input.line = i;
    if (unknown == Unknown::skip) input.skipped = reason_to_skip(model, facts, input);
    if (input.skipped) {
      note(fmt::format("attnkit: warning: {}: {}: skipped\n", input.origin, *input.skipped));
      continue;
    }
    if (!facts.speech) tokenize_text(model, facts, unknown, input);
    tokenize_reference(model, facts, unknown, input);
  }
  return inputs;
}

Ids tokens_of(const Model& model, Side side, const std::string& text, const std::string& origin) {
  try {
    return model.tokenize(side, text);
  } catch (const Error& e) {
    const bool misspelt = e.code() == ATTN_INVALID && valid_utf8(text) == text.size();
    throw Failure(
        e.code() == ATTN_INVALID ? Exit::data : Exit::internal, fmt::format("{}: {}", origin, e.what()),
        misspelt ? "attnkit run --unknown skip leaves such texts out, --unknown unk reads the word as <unk>" : "");
  }
}

std::vector<float> recorded(const Facts& facts, const Input& input) {
  if (input.audio->held) {
    const auto begin = input.audio->held->begin() + input.audio->begin;
    return {begin, begin + input.audio->samples};
  }
  return read_audio(input.audio->path, input.origin, *facts.speech);
}

void read_source(Session& session, const Facts& facts, const Input& input) {
  facts.speech ? session.read(recorded(facts, input)) : session.read(input.ids);
}

size_t source_length(const Facts& facts, const Input& input) {
  return facts.speech ? static_cast<size_t>(facts.speech->shape.rows(input.audio->samples)) : input.ids.size();
}

}  // namespace attnkit::cli
