#include "core/base/json.hpp"

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr int max_depth = 64;

// Readers of a value may recurse.
struct Depth : JsonEvents {
  explicit Depth(const std::string& file) : path(file) {}
  bool start() {
    if (++open > max_depth) fail(ATTN_INVALID, "{}: is nested deeper than {} levels", path, max_depth);
    return true;
  }
  bool end() { return --open, true; }
  bool start_object(std::size_t) override { return start(); }
  bool end_object() override { return end(); }
  bool start_array(std::size_t) override { return start(); }
  bool end_array() override { return end(); }

  const std::string& path;
  int open = 0;
};

const char* kind_of(const nlohmann::json* value) {
  if (!value) return "absent";
  if (value->is_number()) return value->is_number_integer() ? "an integer" : "a number";
  if (value->is_boolean()) return "a boolean";
  return value->is_null() ? "null" : value->is_string() ? "a string" : value->is_array() ? "an array" : "an object";
}

}  // namespace

void JsonValue::wrong(const std::string& text) const {
  core::fail(ATTN_INVALID, "{}: {} {}", path_, place_.empty() ? "the document" : place_.c_str(), text);
}

void JsonValue::must_be(const char* what) const { wrong(fmt::format("must be {}, not {}", what, kind_of(value_))); }

JsonValue JsonValue::operator[](const std::string& key) const {
  if (!is_object()) must_be("an object");
  const auto member = value_->find(key);
  return {member == value_->end() ? nullptr : &*member, path_, place_.empty() ? key : place_ + "." + key};
}

std::string JsonValue::text() const {
  if (!is_text()) must_be("a string");
  return value_->get<std::string>();
}

int64_t JsonValue::integer() const {
  if (!value_ || !value_->is_number_integer()) must_be("an integer");
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX}) wrong("is too large");
  return value_->get<int64_t>();
}

bool JsonValue::truth() const {
  if (!value_ || !value_->is_boolean()) must_be("true or false");
  return value_->get<bool>();
}

std::vector<JsonValue> JsonValue::items() const {
  if (!is_array()) must_be("an array");
  std::vector<JsonValue> all;
  for (size_t i = 0; i < value_->size(); ++i) all.push_back({&(*value_)[i], path_, fmt::format("{}[{}]", place_, i)});
  return all;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  if (!is_object()) must_be("an object");
  std::vector<std::pair<std::string, JsonValue>> all;
  for (const auto& [key, value] : value_->items())
    all.emplace_back(key, JsonValue{&value, path_, place_ + (place_.empty() ? "" : ".") + quote(key)});
  return all;
}

nlohmann::json read_json(const std::string& path, uint64_t limit) {
  const std::vector<std::byte> bytes = read_file(path, limit);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  try {
    Depth depth(path);
    nlohmann::json::sax_parse(text, &depth);
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    fail(ATTN_INVALID, "{}: is no JSON at byte {}: the file is cut off or damaged", path, e.byte);
  } catch (const nlohmann::json::out_of_range&) {
    fail(ATTN_INVALID, "{}: holds a number that is too large", path);
  }
}

}  // namespace attnkit::core
