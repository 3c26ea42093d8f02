#include "core/tokenizer/pre_tokenizer.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/byte_letters.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/sequence.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

// A stretch of a piece.
struct Part {
  size_t from, to;
  bool matches;
};

// Cuts a text into matches and what lies between, in order, without holes.
using Cutter = std::function<std::vector<Part>(std::u32string_view)>;

std::vector<Part> parts_of(const std::vector<Pattern::Range>& matches, size_t size) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const auto& [from, to] : matches) {
    if (from > done) parts.push_back({done, from, false});
    parts.push_back({from, to, true});
    done = to;
  }
  if (done < size) parts.push_back({done, size, false});
  return parts;
}

Cutter cut_by_characters(const std::function<bool(char32_t)>& matches) {
  return [matches](std::u32string_view text) {
    std::vector<Pattern::Range> found;
    for (size_t i = 0; i < text.size(); ++i)
      if (matches(text[i])) found.push_back({i, i + 1});
    return parts_of(found, text.size());
  };
}

// The treatment of a part that matches.
enum class Behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behaviour read_behaviour(const JsonValue& value) {
  constexpr const char* names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const std::string name = value.text();
  const auto* found = std::ranges::find(names, name);
  if (found == std::end(names))
    value.wrong(fmt::format("is {}, which is not supported; {} are", quote(name), fmt::join(names, ", ")));
  return static_cast<Behaviour>(found - names);
}

void join(std::vector<Part>& parts, Behaviour behaviour) {
  if (behaviour == Behaviour::removed) std::erase_if(parts, [](const Part& part) { return part.matches; });
  if (behaviour == Behaviour::removed || behaviour == Behaviour::isolated) return;
  const bool backwards = behaviour == Behaviour::merged_with_next;
  if (backwards) std::ranges::reverse(parts);
  std::vector<Part> joined;
  bool before = false;
  for (const Part& part : parts) {
    const bool joins = behaviour == Behaviour::contiguous ? part.matches == before : part.matches && !before;
    if (joins && !joined.empty()) {
      joined.back().from = std::min(joined.back().from, part.from);
      joined.back().to = std::max(joined.back().to, part.to);
    } else {
      joined.push_back(part);
    }
    before = part.matches;
  }
  if (backwards) std::ranges::reverse(joined);
  parts = std::move(joined);
}

PreTokenizer splitting(const Cutter& cut, Behaviour behaviour, bool invert = false) {
  return [=](std::vector<Piece>& pieces) {
    std::vector<Piece> made;
    for (const Piece& piece : pieces) {
      std::vector<Part> parts = cut(piece.text);
      for (Part& part : parts) part.matches = part.matches != invert;
      join(parts, behaviour);
      for (const Part& part : parts)
        made.push_back({piece.text.substr(part.from, part.to - part.from), piece.first && part.from == 0});
    }
    pieces = std::move(made);
  };
}

PreTokenizer in_turn(std::vector<PreTokenizer> steps) {
  return [steps = std::move(steps)](std::vector<Piece>& pieces) {
    for (const PreTokenizer& step : steps) step(pieces);
  };
}

Cutter cut_by(const JsonValue& pattern) {
  return [find = read_finder(pattern)](std::u32string_view text) { return parts_of(find(text), text.size()); };
}

// GPT-2's words (Radford et al. 2019), of bytes.
PreTokenizer byte_level(const JsonValue& part) {
  static const Pattern words(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  std::vector<PreTokenizer> steps;
  if (part["add_prefix_space"].truth(true))
    steps.emplace_back([](std::vector<Piece>& pieces) {
      for (Piece& piece : pieces)
        if (!piece.text.starts_with(U' ')) piece.text.insert(piece.text.begin(), U' ');
    });
  if (part["use_regex"].truth(true))
    steps.push_back(splitting([](std::u32string_view text) { return parts_of(words.matches(text), text.size()); },
                              Behaviour::isolated));
  steps.emplace_back([](std::vector<Piece>& pieces) {
    for (Piece& piece : pieces) piece.text = to_letters(to_utf8(piece.text));
  });
  return in_turn(std::move(steps));
}

PreTokenizer metaspace(const JsonValue& part) {
  const std::u32string marks = to_characters(part["replacement"].text());
  if (marks.size() != 1) part["replacement"].wrong("must be one character");
  const char32_t mark = marks.front();
  std::string scheme = part["prepend_scheme"] ? part["prepend_scheme"].text() : "always";
  if (!part["add_prefix_space"].truth(true)) scheme = "never";  // of older files
  if (scheme != "always" && scheme != "first" && scheme != "never")
    part["prepend_scheme"].wrong(
        fmt::format("is {}, which is not supported; always, first and never are", quote(scheme)));
  std::vector<PreTokenizer> steps{[=](std::vector<Piece>& pieces) {
    for (Piece& piece : pieces) {
      std::ranges::replace(piece.text, U' ', mark);
      if ((scheme == "always" || (scheme == "first" && piece.first)) && !piece.text.starts_with(mark))
        piece.text.insert(piece.text.begin(), mark);
    }
  }};
  if (part["split"].truth(true))
    steps.push_back(
        splitting(cut_by_characters([mark](char32_t c) { return c == mark; }), Behaviour::merged_with_next));
  return in_turn(std::move(steps));
}

}  // namespace

PreTokenizer read_pre_tokenizer(const JsonValue& part) {
  if (!part) return in_turn({});
  const std::string type = part["type"].text();
  if (type == "Sequence") {
    std::vector<PreTokenizer> steps;
    for (const JsonValue& step : read_sequence(part, "pretokenizers")) steps.push_back(read_pre_tokenizer(step));
    return in_turn(std::move(steps));
  }
  if (type == "ByteLevel") return byte_level(part);
  if (type == "Metaspace") return metaspace(part);
  if (type == "Split")
    return splitting(cut_by(part["pattern"]), read_behaviour(part["behavior"]), part["invert"].truth(false));
  if (type == "BertPreTokenizer")
    return in_turn({splitting(cut_by_characters(is_white_space), Behaviour::removed),
                    splitting(cut_by_characters(is_punctuation), Behaviour::isolated)});
  if (type == "WhitespaceSplit") return splitting(cut_by_characters(is_white_space), Behaviour::removed);
  if (type == "Punctuation")
    return splitting(cut_by_characters(is_punctuation),
                     part["behavior"] ? read_behaviour(part["behavior"]) : Behaviour::isolated);
  if (type == "Digits")
    return splitting(cut_by_characters(is_number),
                     part["individual_digits"].truth(false) ? Behaviour::isolated : Behaviour::contiguous);
  part.wrong(
      fmt::format("is {}, which is not supported; BertPreTokenizer, ByteLevel, Digits, Metaspace, Punctuation, "
                  "Sequence, Split and WhitespaceSplit are",
                  quote(type)));
}

}  // namespace attnkit::core
