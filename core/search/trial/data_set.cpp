#include "core/search/trial/data_set.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "core/base/text.hpp"
#include "core/search/failure.hpp"
#include "core/search/json_text.hpp"

namespace attnkit::core::search {
namespace {

constexpr std::string_view byte_order_mark = "\ufeff";

// Makes examples of lines; `place` is where the line stands.
struct Reader {
  const Model& model;
  const TaskFacts& facts;
  const ReadAudio& read_audio;
  const std::filesystem::path folder;  // of the recordings

  Ids tokens_of(Side side, const std::string& text, const std::string& place, const char* what) const {
    Ids ids;
    try {
      ids = model.tokenize(side, text);
    } catch (const Error& e) {
      if (e.code() != ATTN_INVALID) throw;
      throw Failure(Fault::data, fmt::format("{}: {}: {}", place, what, e.what()));
    }
    if (ids.empty()) fail(Fault::data, "{}: {} is empty: give every line its text, or delete the line", place, what);
    const bool source = side == Side::source;
    const int64_t longest = source ? facts.info.max_length : facts.longest_target(),
                  more = source ? 1 : 1 + static_cast<int64_t>(facts.forced.size());
    if (static_cast<int64_t>(ids.size()) + more > longest)
      fail(Fault::data, "{}: {} has {} tokens and needs {} more for {}; max_length{} is {}: shorten it", place, what,
           ids.size(), more, more > 1 ? "<s> or </s> and what [decode] forces" : "<s> or </s>",
           longest == facts.info.max_length ? "" : " of the decoder", longest);
    return ids;
  }

  int32_t class_of(const std::string& text, const std::string& place) const {
    const auto value = parse_number<int32_t>(text);
    if (value && *value >= 0 && *value < facts.info.outputs) return *value;
    std::string shown = text.substr(0, 32);
    // The text need not be UTF-8, which the reply must be.
    std::ranges::replace_if(
        shown, [](char c) { return c < ' ' || c > '~'; }, '?');
    fail(Fault::data, "{}: the class is \"{}\"; possible are the integers 0 to {}", place, shown,
         facts.info.outputs - 1);
  }

  std::vector<float> frames_of(const std::string& name, const std::string& place) const {
    if (name.empty()) fail(Fault::data, "{}: the path of a recording is needed before the tab", place);
    try {
      return model.features(read_audio((folder / name).string(), place + ": " + name, facts));
    } catch (const Error& e) {
      if (e.code() != ATTN_INVALID) throw;
      fail(Fault::data, "{}: {}: {}", place, name, e.what());
    }
  }

  Example read(const std::string& line, const std::string& place) const {
    const bool is_class = facts.task == Task::classification, is_pair = is_class || facts.task == Task::translation;
    const auto tabs = std::ranges::count(line, '\t');
    if (is_pair && tabs != 1)
      fail(Fault::data, "{}: has {} tab; a line is {}, a tab and {}", place, tabs == 0 ? "no" : "more than one",
           facts.takes_speech() ? "the path of a recording" : "an input", is_class ? "its class" : "its reference");
    const size_t tab = is_pair ? line.find('\t') : line.size();
    Example example;
    const Side side = facts.encoder() ? Side::source : Side::target;
    Ids input;
    if (facts.takes_speech()) {
      example.frames = frames_of(line.substr(0, tab), place);
      const auto numbers = static_cast<size_t>(facts.info.features * facts.info.subsampling);
      example.rows = example.frames.size() / numbers;
      example.words = static_cast<int64_t>(example.rows);
    } else {
      input = tokens_of(side, line.substr(0, tab), place, is_pair ? "the input" : "the text");
      example.words = static_cast<int64_t>(input.size());
    }
    if (is_class)
      example.wanted = {class_of(line.substr(tab + 1), place)};
    else
      example.wanted = is_pair ? tokens_of(Side::target, line.substr(tab + 1), place, "the reference") : input;
    if (facts.decoder()) {
      example.target = facts.before_target();
      example.target.insert(example.target.end(), example.wanted.begin(), example.wanted.end());
      // Of a text that nothing begins the first token cannot be predicted.
      if (facts.info.begin_id < 0) example.wanted.erase(example.wanted.begin());
    }
    if (!is_class) example.wanted.push_back(facts.info.end_id);
    if (facts.encoder() && !facts.takes_speech()) {
      example.source = std::move(input);
      example.source.push_back(facts.info.end_id);
      example.rows = example.source.size();
    }
    return example;
  }
};

std::filesystem::path folder_of(const std::string& path) { return std::filesystem::absolute(path).parent_path(); }

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> lines;
  for (std::string line; file && std::getline(file, line); lines.push_back(line)) {
    if (lines.empty() && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
    if (line.ends_with('\r')) line.pop_back();
  }
  if (!file.eof()) fail(Fault::data, "{}: cannot be read: give a text file that is there", path);
  if (lines.empty()) fail(Fault::data, "{}: is empty: give one example per line", path);
  return lines;
}

}  // namespace

std::vector<std::string> recordings_of(const std::string& path) {
  std::vector<std::string> paths;
  for (const std::string& line : lines_of(path))
    paths.push_back((folder_of(path) / line.substr(0, line.find('\t'))).string());
  return paths;
}

Ids TaskFacts::before_target() const {
  Ids ids = forced;
  if (info.begin_id >= 0) ids.insert(ids.begin(), info.begin_id);
  return ids;
}

TaskFacts facts_of(const Model& model) {
  TaskFacts facts{model.info(), Task::translation};
  const auto description = nlohmann::json::parse(model.describe());
  facts.max_target = description["max_target"];
  facts.forced = description["forced"].get<Ids>();
  if (!description["gpu"].is_null()) facts.gpu = description["gpu"]["name"];
  if (facts.takes_speech()) {
    const auto& features = description["speech"]["features"];
    facts.frames = features["frames"].is_null() ? 0 : features["frames"].get<int64_t>();
  }
  if (facts.info.kind != ATTNKIT_ENCODER) {
    const auto& decode = description["decode"];
    facts.sampling = {decode["repetition_penalty"], decode["no_repeat"], decode["temperature"], decode["top_k"],
                      decode["top_p"]};
    facts.lengths = {decode["limit"], decode["max_length"]};
    facts.has_rules = facts.sampling.looks_back() || decode["min_length"].get<int>() > 0 ||
                      decode["force_end"].get<bool>() ||
                      std::ranges::any_of(std::initializer_list<const char*>{"suppress", "suppress_first", "more_ends"},
                                          [&](const char* list) { return !decode[list].empty(); });
  }
  if (facts.info.kind == ATTNKIT_DECODER) facts.task = Task::continuation;
  if (facts.info.kind != ATTNKIT_ENCODER) return facts;
  const std::string head = description["head"]["type"];
  facts.task = head == "classifier" ? Task::classification : head == "embedding" ? Task::embedding : Task::labelling;
  return facts;
}

bool asks_for_length(const Model& model) {
  const auto length = nlohmann::json::parse(model.describe()).at("length");
  return length.is_null() || is_text(length.at("predict"), "reference");
}

void read_source(Session& session, const TaskFacts& facts, const Example& example) {
  facts.takes_speech() ? session.read(SpeechBatch({&example.frames, 1}, facts.info.features))
                       : session.read(example.source);
}

Scores::Scores(const TaskFacts& facts, int64_t rows, int64_t tokens)
    : length(facts.pools() ? 1 : tokens),
      width(facts.info.outputs),
      values(static_cast<size_t>(rows * length * width)),
      out(facts.pools() ? tensor(values.data(), {rows, width}) : tensor(values.data(), {rows, length, width})) {}

std::vector<int64_t> length_bounds(const DataSet& data) {
  std::vector<int64_t> words;
  for (size_t i = 0; i < data.size(); ++i) words.push_back(data[i].words);
  std::sort(words.begin(), words.end());
  std::vector<int64_t> bounds;
  for (size_t i = 1; i < 5 && !words.empty(); ++i) {
    const int64_t bound = words[(words.size() * i - 1) / 5];
    if (bound < words.back() && (bounds.empty() || bound > bounds.back())) bounds.push_back(bound);
  }
  return bounds;
}

size_t bucket_of(const std::vector<int64_t>& bounds, int64_t words) {
  return static_cast<size_t>(std::lower_bound(bounds.begin(), bounds.end(), words) - bounds.begin());
}

std::vector<size_t> spread(size_t n) {
  // Fractions of multiples of the golden ratio fill an interval more evenly than those of any other number.
  const auto fraction = [](size_t i) { return std::fmod(static_cast<double>(i) * 0.6180339887498949, 1.0); };
  std::vector<size_t> by_fraction(n), order(n);
  std::iota(by_fraction.begin(), by_fraction.end(), size_t{0});
  std::stable_sort(by_fraction.begin(), by_fraction.end(),
                   [&](size_t a, size_t b) { return fraction(a) < fraction(b); });
  for (size_t rank = 0; rank < n; ++rank) order[by_fraction[rank]] = rank;
  return order;
}

DataSet::DataSet(const std::string& path, const Model& model, const TaskFacts& facts, const ReadAudio& read_audio)
    : path_(path) {
  if (facts.takes_speech() && !read_audio) fail(Fault::usage, "{}: this program reads no recordings", path);
  std::vector<Example> in_file;
  const Reader reader{model, facts, read_audio, folder_of(path)};
  const std::vector<std::string> lines = lines_of(path);
  repeated_ = lines.size() - std::unordered_set<std::string_view>(lines.begin(), lines.end()).size();
  for (const std::string& line : lines) {
    const size_t number = in_file.size() + 1;
    in_file.push_back(reader.read(line, fmt::format("{}:{}", path, number)));
    in_file.back().line = number;
  }
  for (size_t i : spread(in_file.size())) examples_.push_back(std::move(in_file[i]));
}

std::string DataSet::place_of(size_t i) const { return fmt::format("{}:{}", path_, examples_[i].line); }

}  // namespace attnkit::core::search
