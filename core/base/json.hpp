// JSON from outside: a file read once, its values with their types checked and one message for each that is wrong.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace attnkit::core {

// Looks at a text before it is parsed, by json::sax_parse(text, &it).  Takes everything; an error of
// the text is the parser's to tell.  The parser's own callback would look through the whole parent of every object.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }
};

// A value of a JSON file with its place in it.  Refers to the document, which must live as long.  What does not fit
// throws Error (ATTN_INVALID): "config.json: hidden_size must be an integer, not a string".
class JsonValue {
 public:
  JsonValue(const nlohmann::json& document, const std::string& path) : JsonValue(&document, path, "") {}

  // Of an object: the member, which need not be there.
  JsonValue operator[](const std::string& key) const;
  // Neither missing nor null.
  explicit operator bool() const { return value_ && !value_->is_null(); }
  bool is_null() const { return value_ && value_->is_null(); }
  bool is_object() const { return value_ && value_->is_object(); }
  bool is_array() const { return value_ && value_->is_array(); }
  bool is_text() const { return value_ && value_->is_string(); }
  std::string text() const;
  int64_t integer() const;
  bool truth() const;
  bool truth(bool fallback) const { return *this ? truth() : fallback; }
  std::vector<JsonValue> items() const;                            // of an array
  std::vector<std::pair<std::string, JsonValue>> members() const;  // of an object
  const nlohmann::json& json() const { return *value_; }           // there is one
  const std::string& path() const { return path_; }
  const std::string& place() const { return place_; }  // "model.vocab"

  // "config.json: hidden_size " and the text.
  [[noreturn]] void wrong(const std::string& text) const;

 private:
  JsonValue(const nlohmann::json* value, std::string path, std::string place)
      : value_(value), path_(std::move(path)), place_(std::move(place)) {}
  [[noreturn]] void must_be(const char* what) const;

  const nlohmann::json* value_;
  std::string path_, place_;
};

// Reads a file of at most `limit` bytes.  Throws Error (ATTN_INVALID) naming the file: unreadable, no JSON.
nlohmann::json read_json(const std::string& path, uint64_t limit);

}  // namespace attnkit::core
