#include "core/base/formats/yaml.hpp"

#include <yaml-cpp/yaml.h>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr size_t max_values = size_t{1} << 21;
constexpr int max_depth = 16;

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  nlohmann::json value(const YAML::Node& node, int depth = 0) {
    if (++values_ > max_values) wrong(node, fmt::format("has more than {} values", max_values));
    if (depth > max_depth) wrong(node, fmt::format("is nested more than {} deep", max_depth));
    if (node.IsSequence()) {
      nlohmann::json made = nlohmann::json::array();
      for (const auto& item : node) made.push_back(value(item, depth + 1));
      return made;
    }
    if (node.IsMap()) {
      nlohmann::json made = nlohmann::json::object();
      for (const auto& entry : node) {
        if (!entry.first.IsScalar()) wrong(entry.first, "has a key that is no text");
        made[text(entry.first)] = value(entry.second, depth + 1);
      }
      return made;
    }
    return node.IsScalar() ? scalar(node) : nlohmann::json();
  }

 private:
  [[noreturn]] void wrong(const YAML::Node& node, const std::string& message) const {
    fail(ATTN_INVALID, "{}:{}: {}", path_, node.Mark().line + 1, message);
  }

  std::string text(const YAML::Node& node) const {
    if (valid_utf8(node.Scalar()) < node.Scalar().size()) wrong(node, "has a text that is no UTF-8");
    return node.Scalar();
  }

  nlohmann::json scalar(const YAML::Node& node) const {
    std::string said = text(node);
    const bool quoted = node.Tag() == "!";
    if (quoted) return said;
    if (said == "true" || said == "false") return said == "true";
    if (const auto integer = parse_number<int64_t>(said)) return *integer;
    if (const auto number = parse_number<double>(said)) return *number;
    return said;
  }

  const std::string& path_;
  size_t values_ = 0;
};

}  // namespace

nlohmann::json parse_yaml(const std::string& text, const std::string& path) {
  try {
    return Reader(path).value(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    fail(ATTN_INVALID, "{}:{}: is no YAML: {}", path, e.mark.line + 1, e.msg);
  }
}

nlohmann::json read_yaml(const std::string& path, uint64_t limit) {
  const std::vector<std::byte> bytes = read_file(path, limit);
  return parse_yaml({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace attnkit::core
