#include "core/import/entries.hpp"

#include <algorithm>

#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

bool is_among(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

// Of "a.b" b in a; {architecture} is what a GGUF file says of itself.
JsonValue find(const JsonValue& config, std::string key) {
  constexpr std::string_view itself = "{architecture}";
  if (key.starts_with(itself)) key.replace(0, itself.size(), config["general.architecture"].text());
  const size_t dot = key.find('.');
  if (dot == std::string::npos) return config[key];
  const JsonValue outer = config[key.substr(0, dot)];
  return outer.is_object() ? find(outer, key.substr(dot + 1)) : config[key];
}

void check_only(const JsonValue& value, const std::vector<std::string>& supported, const std::string& architecture) {
  if (!value || is_among(supported, value.json().dump())) return;
  const std::string said = value.is_text() ? quote(value.text()) : value.json().dump().substr(0, 60);
  refuse(fmt::format("{}: {} is {}, which {} does not support; {}", value.path(), value.place(), said,
                     quote(architecture),
                     supported.empty() ? "it must not be there" : fmt::format("{} is", fmt::join(supported, " or "))));
}

// Values of a manifest as TOML; nothing: the manifest does without.
class Values {
 public:
  Values(const JsonValue& config, const FileTensors& tensors) : config_(config), tensors_(tensors) {}

  std::optional<std::string> of(const ManifestValue& value) const {
    if (!value.constant.empty()) return value.constant;
    if (!value.tensors.empty()) {
      const auto is_there = [&](const std::string& name) { return tensors_.names.contains(name); };
      return std::ranges::any_of(value.tensors, is_there) != value.lacks ? "true" : "false";
    }
    if (!value.numbers.empty()) return numbers(value.numbers);
    if (!value.range.empty()) return range(value.range);
    if (value.config.empty()) return {};
    JsonValue said = find(config_, value.config.front());
    for (size_t i = 1; i < value.config.size() && !said; ++i) said = find(config_, value.config[i]);
    if (const auto none = value.values.find("null"); said.is_null() && none != value.values.end())
      return of(none->second);
    if (said) return meaning(value, said);
    if (!value.absent.empty()) return of(value.values.at(value.absent));
    if (value.optional) return {};
    if (value.fallback.empty()) said.wrong("is not there");
    return of(value.fallback.front());
  }

 private:
  std::optional<std::string> numbers(const std::string& tensor) const {
    const auto found = tensors_.numbers.find(tensor);
    if (found != tensors_.numbers.end()) return fmt::format("[{}]", fmt::join(found->second, ", "));
    if (!tensors_.names.contains(tensor)) return {};
    fail(ATTN_UNSUPPORTED, "tensor {}: is not a row of at most {} numbers of type F32", quote(tensor),
         FileTensors::max_numbers);
  }

  std::optional<std::string> range(const std::vector<ManifestValue>& values) const {
    std::vector<int64_t> ends;
    for (const ManifestValue& end : values)
      if (const auto text = of(end)) ends.push_back(parse_number<int64_t>(*text).value_or(0));
    if (ends.size() < 2 || ends[0] > ends[1]) return {};
    return toml_of(fmt::format("{}..{}", ends[0], ends[1]));
  }

  // Of what the config says.
  std::optional<std::string> meaning(const ManifestValue& value, const JsonValue& said) const {
    for (const std::string& key : value.same)
      if (const JsonValue other = find(config_, key); other && other.json() != said.json())
        other.wrong(fmt::format("is {}, and {} is {}: they must be the same", other.json().dump(), said.place(),
                                said.json().dump()));
    if (!value.values.empty()) {
      const std::string key = said.is_text() ? said.text() : said.json().dump();
      for (const std::string& one : {key, std::string("*")})
        if (const auto means = value.values.find(one); means != value.values.end()) return of(means->second);
      std::vector<std::string> known;
      for (const auto& [one, other] : value.values) known.push_back(one);
      said.wrong(fmt::format("is {}, which is not supported; {} are", said.is_text() ? quote(key) : key.substr(0, 60),
                             fmt::join(known, ", ")));
    }
    if (!value.where.empty()) {
      std::vector<size_t> places;
      const std::vector<JsonValue> items = said.items();
      for (size_t i = 0; i < items.size(); ++i)
        if (items[i].is_text() && items[i].text() == value.where) places.push_back(i + 1);
      if (places.empty()) return {};
      return fmt::format("[{}]", fmt::join(places, ", "));
    }
    if (value.plus != 0 || value.times != 1) {
      int64_t number = 0;
      if (__builtin_mul_overflow(said.integer(), value.times, &number) ||
          __builtin_add_overflow(number, value.plus, &number))
        said.wrong("is too large");
      return std::to_string(number);
    }
    const nlohmann::json& json = said.json();
    const bool numbers =
        json.is_array() && std::ranges::all_of(json, [](const auto& item) { return item.is_number(); });
    if (!json.is_number() && !json.is_boolean() && !json.is_string() && !numbers)
      said.wrong("must be text, a number, true or false, or an array of numbers");
    return json.is_string() ? toml_of(said.text()) : json.dump();
  }

  const JsonValue& config_;
  const FileTensors& tensors_;
};

}  // namespace

Architecture architecture_of(Draft& draft, const JsonValue& config, const char* key,
                             std::shared_ptr<const Architecture> Architecture::*part) {
  const std::string type = config[key].text();
  const std::string& own = draft.request().architecture;
  std::vector<std::string> files = shipped_architectures(), known;
  if (!own.empty()) {
    files = {fs::absolute(own).string()};
    draft.use(files.front());
  }
  for (const std::string& file : files) {
    const Architecture whole = open_architecture(file, "");
    const Architecture* const one = part ? (whole.*part).get() : &whole;
    if (!one) continue;
    if (is_among(one->model_types, type)) return *one;
    // One's own may be for any config.json.
    if (!part && !own.empty() && one->model_types.empty()) return *one;
    known.insert(known.end(), one->model_types.begin(), one->model_types.end());
  }
  if (!part && !own.empty())
    refuse(fmt::format("{}: is of {} {}; {} is for {}", config.path(), key, quote(type), own, fmt::join(known, ", ")));
  if (known.empty()) known.emplace_back("none");
  refuse(fmt::format("{}: {} {} is not supported; {} are", config.path(), key, quote(type), fmt::join(known, ", ")));
}

void add_entries(Draft& draft, const Architecture& architecture, const JsonValue& config, const FileTensors& tensors) {
  for (const auto& [key, supported] : architecture.only) check_only(find(config, key), supported, architecture.name);
  const Values values(config, tensors);
  for (const ManifestEntry& entry : architecture.manifest)
    if (const auto value = values.of(entry.value)) draft.add(entry.table, entry.key, *value);
}

}  // namespace attnkit::core
