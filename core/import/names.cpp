#include "core/import/names.hpp"

#include <algorithm>
#include <optional>

#include "core/base/error.hpp"
#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view layer = "{layer}", layer_from_0 = "{layer-1}";
constexpr size_t max_digits = 9;

struct Bound {
  std::optional<int> layer;
  std::string rest;
};

// The number that text begins with, as it is written without zeros in front; takes it off.
std::optional<int> take_number(std::string_view& text) {
  const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
  if (n == 0 || n > max_digits || (n > 1 && text.front() == '0')) return {};
  const auto number = parse_number<int>(text.substr(0, n));
  text.remove_prefix(n);
  return number;
}

std::optional<Bound> match(std::string_view pattern, std::string_view text) {
  Bound bound;
  while (!pattern.empty()) {
    if (pattern == "*") {
      bound.rest = text;
      return bound;
    }
    const bool one = pattern.starts_with(layer), zero = pattern.starts_with(layer_from_0);
    if (one || zero) {
      std::optional<int> number = take_number(text);
      if (number && zero) ++*number;
      if (!number || *number < 1 || bound.layer.value_or(*number) != *number) return {};
      bound.layer = number;
      pattern.remove_prefix(one ? layer.size() : layer_from_0.size());
    } else {
      if (text.empty() || text.front() != pattern.front()) return {};
      text.remove_prefix(1);
      pattern.remove_prefix(1);
    }
  }
  return text.empty() ? std::optional(bound) : std::nullopt;
}

std::string fill(std::string_view pattern, const Bound& bound) {
  std::string made;
  while (!pattern.empty()) {
    const bool one = pattern.starts_with(layer), zero = pattern.starts_with(layer_from_0);
    if (one || zero)
      made += std::to_string(bound.layer.value_or(0) - zero);
    else if (pattern == "*")
      made += bound.rest;
    else
      made += pattern.front();
    pattern.remove_prefix(one ? layer.size() : zero ? layer_from_0.size() : 1);
  }
  return made;
}

}  // namespace

bool is_pattern(std::string_view pattern) {
  std::string name(pattern);
  for (const std::string_view known : {layer, layer_from_0})
    for (size_t at = 0; (at = name.find(known, at)) != std::string::npos;) name.replace(at, known.size(), "0");
  const size_t star = name.find('*');
  return !name.empty() && name.find_first_of("{}") == std::string::npos &&
         (star == std::string::npos || star + 1 == name.size());
}

std::string NameMap::plain(const std::string& theirs) const {
  std::string name = theirs.starts_with(prefix) ? theirs.substr(prefix.size()) : theirs;
  const size_t dot = name.find_last_of("./");
  if (dot == std::string::npos) return name;
  const auto ending = endings.find(name.substr(dot + 1));
  return ending == endings.end() ? name : name.substr(0, dot + 1) + ending->second;
}

NameMap::Share NameMap::share(const NameRule& rule) const {
  if (rule.sizes.empty()) return {rule.part - 1, 1, rule.parts};
  Share share{0, 0, 0};
  for (size_t i = 0; i < rule.sizes.size(); ++i) {
    const std::string& word = rule.sizes[i];
    const auto known = numbers.find(word);
    const int64_t size = known != numbers.end() ? known->second : parse_number<int64_t>(word).value_or(0);
    if (size < 1) fail(ATTN_INVALID, "{}: the part {} of {} has no size", source, quote(word), quote(rule.theirs));
    share.all += size;
    if (static_cast<int>(i) + 1 < rule.part) share.before += size;
    if (static_cast<int>(i) + 1 == rule.part) share.own = size;
  }
  return share;
}

std::shared_ptr<const NameMap> NameMap::with(const std::map<std::string, int64_t>& of_model) const {
  auto made = std::make_shared<NameMap>(*this);
  made->numbers = of_model;
  for (auto* other : {&made->gguf, &made->ctranslate2, &made->marian})
    if (*other) *other = (*other)->with(of_model);
  return made;
}

std::vector<NameMap::Ours> NameMap::ours(const std::string& theirs) const {
  const std::string name = plain(theirs);
  std::vector<Ours> made;
  for (const NameRule& rule : rules)
    if (const auto bound = match(rule.theirs, name)) made.push_back({fill(rule.ours, *bound), &rule});
  return made;
}

bool NameMap::ignores(const std::string& theirs) const {
  const std::string name = plain(theirs);
  return std::ranges::any_of(
      ignored, [&](const std::string& pattern) { return match(pattern, name) || match(pattern, theirs); });
}

std::string NameMap::theirs(const std::string& ours) const {
  const NameRule* nearest = nullptr;  // of two that match, "q.norm.*" and not "q.*"
  for (const NameRule& rule : rules)
    if (match(rule.ours, ours) && (!nearest || rule.ours.size() > nearest->ours.size())) nearest = &rule;
  return nearest ? fill(nearest->theirs, *match(nearest->ours, ours)) : "";
}

}  // namespace attnkit::core
