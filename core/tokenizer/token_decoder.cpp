#include "core/tokenizer/token_decoder.hpp"

#include <optional>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/byte_letters.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/sequence.hpp"
#include "core/tokenizer/unicode.hpp"

namespace attnkit::core {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

std::string concatenated(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

TokenDecoder wordpiece(const JsonValue& part) {
  const std::string mark = part["prefix"] ? part["prefix"].text() : "##";
  const bool tidy = part["cleanup"].truth(true);
  return [=](Tokens& tokens) {
    constexpr std::pair<const char*, const char*> tidying[] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0) {
        if (token.starts_with(mark))
          token.erase(0, mark.size());
        else
          token.insert(0, " ");
      }
      for (const auto& [from, to] : tidying)
        if (tidy) replace_all(token, from, to);
    }
  };
}

// The bytes of tokens of letters; any other token is what it is.
void byte_level(Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) {
    std::string bytes;
    for (const char32_t c : to_characters(token)) {
      const std::optional<unsigned char> byte = byte_of_letter(c);
      if (!byte) {
        bytes = token;
        break;
      }
      bytes += static_cast<char>(*byte);
    }
    text += bytes;
  }
  tokens = {only_utf8(text)};
}

std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return {};
  unsigned byte = 0;
  const char* end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, byte, 16).ptr != end) return {};
  return static_cast<char>(byte);
}

// Tokens such as <0xE2> in a row; where they are no UTF-8, each is U+FFFD.
void byte_fallback(Tokens& tokens) {
  Tokens made;
  std::string bytes;
  const auto flush = [&] {
    if (valid_utf8(bytes) < bytes.size()) {
      made.insert(made.end(), bytes.size(), "\ufffd");
    } else if (!bytes.empty()) {
      made.push_back(bytes);
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const std::optional<char> byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    flush();
    made.push_back(token);
  }
  flush();
  tokens = std::move(made);
}

TokenDecoder metaspace(const JsonValue& part) {
  const std::string mark = part["replacement"].text();
  if (mark.empty()) part["replacement"].wrong("is empty");
  const bool prepended =
      part["add_prefix_space"].truth(true) && !(part["prepend_scheme"] && part["prepend_scheme"].text() == "never");
  return [=](Tokens& tokens) {
    for (size_t i = 0; i < tokens.size(); ++i) replace_all(tokens[i], mark, i == 0 && prepended ? "" : " ");
  };
}

TokenDecoder replace(const JsonValue& part) {
  const std::u32string by = to_characters(part["content"].text());
  const Finder find = read_finder(part["pattern"]);
  return [=](Tokens& tokens) {
    for (std::string& token : tokens) {
      const std::u32string text = to_characters(token);
      std::u32string made;
      size_t done = 0;
      for (const auto& [from, to] : find(text)) {
        made.append(text, done, from - done).append(by);
        done = to;
      }
      token = to_utf8(made.append(text, done));
    }
  };
}

TokenDecoder strip(const JsonValue& part) {
  const std::string content = part["content"].text();
  if (content.empty()) part["content"].wrong("is empty");
  const int64_t front = part["start"].integer(), back = part["stop"].integer();
  return [=](Tokens& tokens) {
    for (std::string& token : tokens) {
      for (int64_t n = 0; n < front && token.starts_with(content); ++n) token.erase(0, content.size());
      for (int64_t n = 0; n < back && token.ends_with(content); ++n) token.resize(token.size() - content.size());
    }
  };
}

}  // namespace

TokenDecoder read_token_decoder(const JsonValue& part) {
  if (!part)
    return [](Tokens& tokens) {
      for (size_t i = 1; i < tokens.size(); ++i) tokens[i].insert(0, " ");
    };
  const std::string type = part["type"].text();
  if (type == "Sequence") {
    std::vector<TokenDecoder> steps;
    for (const JsonValue& step : read_sequence(part, "decoders")) steps.push_back(read_token_decoder(step));
    return [steps](Tokens& tokens) {
      for (const TokenDecoder& step : steps) step(tokens);
    };
  }
  if (type == "WordPiece") return wordpiece(part);
  if (type == "ByteLevel") return byte_level;
  if (type == "ByteFallback") return byte_fallback;
  if (type == "Metaspace") return metaspace(part);
  if (type == "Replace") return replace(part);
  if (type == "Strip") return strip(part);
  if (type == "Fuse") return [](Tokens& tokens) { tokens = {concatenated(tokens)}; };
  part.wrong(
      fmt::format("is {}, which is not supported; ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, "
                  "Strip and WordPiece are",
                  quote(type)));
}

}  // namespace attnkit::core
