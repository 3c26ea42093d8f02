#include "core/weights/header.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

using nlohmann::json;

// nlohmann merges duplicate keys when it builds a document, so the events are read instead.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  std::vector<HeaderTensor> take() { return std::move(tensors_); }

  bool start_object(std::size_t) override {
    if (in_ == In::start) return enter(In::root);
    if (in_ != In::root) wrong("an object where none belongs");
    if (name_ == "__metadata__") return enter(In::metadata);
    tensor_ = HeaderTensor{};
    tensor_.name = name_;
    fields_.clear();
    return enter(In::tensor);
  }

  bool key(string_t& name) override {
    if (in_ == In::root) {
      if (!names_.insert(name).second) broken("holds {} twice", quote(name));
      name_ = name;
    } else if (in_ == In::metadata) {
      if (!metadata_.insert(name).second) broken("holds the __metadata__ key {} twice", quote(name));
    } else {
      if (name != "dtype" && name != "shape" && name != "data_offsets")
        broken("tensor {} has an unknown field {}", quote(name_), quote(name));
      if (!fields_.insert(name).second) broken("tensor {} has the field {} twice", quote(name_), quote(name));
      field_ = name;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (in_ == In::metadata) return true;
    if (in_ != In::tensor || field_ != "dtype") wrong("a string");
    tensor_.dtype = value;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (in_ == In::shape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        broken("tensor {} has a dimension of {}, which is too large", quote(name_), value);
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else if (in_ == In::offsets && n_offsets_ < 2) {
      tensor_.offsets[n_offsets_++] = value;
    } else {
      wrong("a number");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (in_ != In::tensor || field_ == "dtype") wrong("an array");
    n_offsets_ = 0;
    return enter(field_ == "shape" ? In::shape : In::offsets);
  }

  bool end_array() override {
    if (in_ == In::offsets && n_offsets_ != 2) broken("tensor {}: data_offsets needs two numbers", quote(name_));
    return enter(In::tensor);
  }

  bool end_object() override {
    if (in_ == In::root) return enter(In::done);
    if (in_ == In::tensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"})
        if (!fields_.contains(field)) broken("tensor {} has no {}", quote(name_), field);
      tensors_.push_back(std::move(tensor_));
    }
    return enter(In::root);
  }

  bool null() override { wrong("null"); }
  bool boolean(bool) override { wrong("a boolean"); }
  bool number_integer(number_integer_t) override { wrong("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { wrong("a number that is no 64-bit integer"); }
  bool binary(binary_t&) override { wrong("binary data"); }
  bool parse_error(std::size_t byte, const std::string&, const json::exception&) override {
    broken("is no JSON at byte {}", byte);
  }

 private:
  enum class In { start, root, metadata, tensor, shape, offsets, done };

  bool enter(In in) {
    in_ = in;
    return true;
  }

  template <class... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> text, Args&&... args) {
    fail(ATTN_INVALID, "{}: the header {}", path_, fmt::format(text, std::forward<Args>(args)...));
  }

  [[noreturn]] void wrong(const char* what) {
    if (in_ == In::start) broken("must be an object, not {}", what);
    if (in_ == In::root) broken("has {} for {}, which must be an object", what, quote(name_));
    if (in_ == In::metadata) broken("has {} in __metadata__, where only strings belong", what);
    broken("tensor {}: {} has {} where it does not belong", quote(name_), field_, what);
  }

  const std::string& path_;
  In in_ = In::start;
  std::vector<HeaderTensor> tensors_;
  std::set<std::string> names_, metadata_, fields_;
  std::string name_, field_;
  HeaderTensor tensor_;
  size_t n_offsets_ = 0;
};

}  // namespace

std::vector<HeaderTensor> read_header(std::string_view text, const std::string& path) {
  // nlohmann takes a NUL for the end of its input and would not look behind it.
  if (text.find('\0') != std::string_view::npos) fail(ATTN_INVALID, "{}: the header holds a NUL byte", path);
  HeaderReader reader(path);
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace attnkit
