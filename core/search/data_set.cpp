#include "core/search/data_set.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "core/search/failure.hpp"

namespace attnkit::search {
namespace {

constexpr std::string_view byte_order_mark = "\ufeff";

// Makes lists of lines; `place` is where the line stands.
class Reader {
 public:
  Reader(const Model& model, const Facts& facts) : model_(model), facts_(facts) {}
  List read(const std::string& line, const std::string& place) const;

 private:
  Ids tokens_of(Side side, const std::string& text, const std::string& place, const char* what) const;
  int32_t class_of(const std::string& text, const std::string& place) const;

  const Model& model_;
  const Facts& facts_;
};

Ids Reader::tokens_of(Side side, const std::string& text, const std::string& place, const char* what) const {
  Ids ids;
  try {
    ids = model_.tokenize(side, text);
  } catch (const Error& e) {
    if (e.code() != ATTN_INVALID) throw;
    throw Failure(Fault::data, fmt::format("{}: {}: {}", place, what, e.what()));
  }
  if (ids.empty()) fail(Fault::data, "{}: {} is empty: give every line its text, or delete the line", place, what);
  if (ids.size() >= static_cast<size_t>(facts_.info.max_length))
    fail(Fault::data, "{}: {} has {} tokens and needs one more for <s> or </s>; max_length is {}: shorten it", place,
         what, ids.size(), facts_.info.max_length);
  return ids;
}

int32_t Reader::class_of(const std::string& text, const std::string& place) const {
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= facts_.info.outputs) {
    std::string shown = text.substr(0, 32);
    // What stands here need not be UTF-8, which the reply must be.
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    fail(Fault::data, "{}: the class is \"{}\"; possible are the integers 0 to {}", place, shown,
         facts_.info.outputs - 1);
  }
  return value;
}

List Reader::read(const std::string& line, const std::string& place) const {
  const bool is_pair = facts_.task == Task::translation || facts_.task == Task::classification;
  const size_t tab = line.find('\t');
  if (is_pair && tab == std::string::npos)
    fail(Fault::data, "{}: has no tab; a line is an input, a tab and {}", place,
         facts_.decoder() ? "its reference" : "its class");
  if (is_pair && line.find('\t', tab + 1) != std::string::npos)
    fail(Fault::data, "{}: has more than one tab; a line is an input, a tab and {}", place,
         facts_.decoder() ? "its reference" : "its class");
  List list;
  const Side side = facts_.encoder() ? Side::source : Side::target;
  Ids input = tokens_of(side, is_pair ? line.substr(0, tab) : line, place, is_pair ? "the input" : "the text");
  list.words = static_cast<int64_t>(input.size());
  if (facts_.task == Task::classification)
    list.wanted = {class_of(line.substr(tab + 1), place)};
  else if (facts_.task == Task::translation)
    list.wanted = tokens_of(Side::target, line.substr(tab + 1), place, "the reference");
  else
    list.wanted = input;
  if (facts_.decoder()) {
    list.target = {facts_.info.begin_id};
    list.target.insert(list.target.end(), list.wanted.begin(), list.wanted.end());
  }
  if (facts_.task != Task::classification) list.wanted.push_back(facts_.info.end_id);
  if (facts_.encoder()) {
    list.source = std::move(input);
    list.source.push_back(facts_.info.end_id);
  }
  return list;
}

}  // namespace

Facts facts_of(const Model& model) {
  Facts facts{model.info(), Task::translation};
  if (facts.info.kind == ATTNKIT_DECODER) facts.task = Task::continuation;
  if (facts.info.kind != ATTNKIT_ENCODER) return facts;
  const auto description = nlohmann::json::parse(model.describe());
  facts.task = description["head"]["type"] == "classifier" ? Task::classification : Task::labelling;
  return facts;
}

bool asks_for_length(const Model& model) {
  const auto length = nlohmann::json::parse(model.describe()).at("length");
  return length.is_null() || length.at("predict") == "reference";
}

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

DataSet::DataSet(const std::string& path, const Model& model, const Facts& facts) : path_(path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<List> in_file;
  const Reader reader(model, facts);
  std::string line;
  while (file && std::getline(file, line)) {
    const size_t number = in_file.size() + 1;
    if (number == 1 && line.starts_with(byte_order_mark)) line.erase(0, byte_order_mark.size());
    if (line.ends_with('\r')) line.pop_back();
    in_file.push_back(reader.read(line, fmt::format("{}:{}", path, number)));
    in_file.back().line = number;
  }
  if (!file.eof()) fail(Fault::data, "{}: cannot be read: give a text file that is there", path);
  if (in_file.empty()) fail(Fault::data, "{}: is empty: give one list per line", path);
  for (size_t i : spread(in_file.size())) lists_.push_back(std::move(in_file[i]));
}

std::string DataSet::place_of(size_t i) const { return fmt::format("{}:{}", path_, lists_[i].line); }

}  // namespace attnkit::search
