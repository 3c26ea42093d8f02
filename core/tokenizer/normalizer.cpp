#include "core/tokenizer/normalizer.hpp"

#include <vector>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/charsmap.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/sequence.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

struct BertNormalizer {
  bool clean;       // control characters go, white space becomes spaces
  bool ideographs;  // each a word
  bool strip_accents, lowercase;

  static bool stays(char32_t c) { return c != 0 && c != 0xfffd && !is_control(c); }
  static bool is_space_to_clean(char32_t c) {
    return c == '\t' || c == '\n' || c == '\r' || (!is_control(c) && is_white_space(c));
  }

  std::u32string operator()(std::u32string_view text) const {
    std::u32string made;
    made.reserve(text.size());
    for (const char32_t c : text) {
      const bool space = clean && is_space_to_clean(c);
      if (clean && !space && !stays(c)) continue;
      if (ideographs && is_ideograph(c))
        made.append({U' ', c, U' '});
      else
        made += space ? U' ' : c;
    }
    if (strip_accents) {
      made = normal_form(made, NormalForm::nfd);
      std::erase_if(made, is_mark);
    }
    return lowercase ? lower(made) : made;
  }
};

Normalizer bert(const JsonValue& part) {
  BertNormalizer made{};
  made.clean = part["clean_text"].truth(true);
  made.ideographs = part["handle_chinese_chars"].truth(true);
  made.lowercase = part["lowercase"].truth(true);
  made.strip_accents = part["strip_accents"].truth(made.lowercase);
  return made;
}

Normalizer strip(const JsonValue& part) {
  const bool left = part["strip_left"].truth(true), right = part["strip_right"].truth(true);
  // Of SentencePiece's files: this character alone.
  const std::u32string only = part["character"] ? to_characters(part["character"].text()) : std::u32string();
  const auto goes = [only](char32_t c) { return only.empty() ? is_white_space(c) : c == only.front(); };
  return [=](std::u32string_view text) {
    while (left && !text.empty() && goes(text.front())) text.remove_prefix(1);
    while (right && !text.empty() && goes(text.back())) text.remove_suffix(1);
    return std::u32string(text);
  };
}

Normalizer replace(const JsonValue& part) {
  const std::u32string by = to_characters(part["content"].text());
  const Finder find = read_finder(part["pattern"]);
  return [by, find](std::u32string_view text) {
    std::u32string made;
    size_t done = 0;
    for (const auto& [from, to] : find(text)) {
      made.append(text, done, from - done).append(by);
      done = to;
    }
    return made.append(text, done);
  };
}

Normalizer sequence(const JsonValue& whole, bool keep) {
  std::vector<Normalizer> steps;
  for (const JsonValue& part : read_sequence(whole, "normalizers")) steps.push_back(read_normalizer(part, keep));
  return [steps](std::u32string_view text) {
    std::u32string made(text);
    for (const Normalizer& step : steps) made = step(made);
    return made;
  };
}

}  // namespace

Normalizer read_normalizer(const JsonValue& part, bool keep) {
  if (!part) return [](std::u32string_view text) { return std::u32string(text); };
  const std::string type = part["type"].text();
  if (type == "Sequence") return sequence(part, keep);
  if (type == "BertNormalizer") return bert(part);
  if (type == "Lowercase") return lower;
  if (type == "Replace") return replace(part);
  if (type == "Strip") return strip(part);
  if (type == "StripAccents")
    return [](std::u32string_view text) {
      std::u32string made(text);
      std::erase_if(made, is_combining);
      return made;
    };
  if (type == "Prepend") {
    const std::u32string front = to_characters(part["prepend"].text());
    return [front](std::u32string_view text) { return text.empty() ? std::u32string() : front + std::u32string(text); };
  }
  if (type == "Precompiled") {
    const Charsmap map(part["precompiled_charsmap"], part["longest"].truth(false), KeptTexts(part["kept"]));
    return [map, keep](std::u32string_view text) {
      std::u32string made = map.apply(text);
      return keep && made.size() < text.size() ? std::u32string(text) : made;
    };
  }
  constexpr std::pair<const char*, NormalForm> forms[] = {
      {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  for (const auto& [name, form] : forms)
    if (type == name) return [form = form](std::u32string_view text) { return normal_form(text, form); };
  part.wrong(fmt::format(
      "is {}, which is not supported; BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, Precompiled, Prepend, "
      "Replace, Sequence, Strip and StripAccents are",
      quote(type)));
}

}  // namespace attnkit::core
