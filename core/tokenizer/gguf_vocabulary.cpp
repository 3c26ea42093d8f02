#include "core/tokenizer/gguf_vocabulary.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/formats/gguf.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/sentencepiece.hpp"

namespace attnkit::core {
namespace {

constexpr size_t max_token = 1024;  // bytes; a token is split in all ways while it is read

using nlohmann::json;

json byte_level(bool words) { return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", words}}; }

json split_then_bytes(const std::string& pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}, byte_level(false)}}};
}

// Words of Llama 3 and Qwen2, which differ in how many digits they keep together.
json words_of_llama3(const std::string& digits) {
  return split_then_bytes(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + digits +
                          R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}

class Document {
 public:
  explicit Document(const JsonValue& metadata) : metadata_(metadata) {}

  json read() {
    const JsonValue kind = at("model");
    const std::string model = kind.text();
    read_tokens();
    json made;
    if (model == "gpt2")
      made = gpt2();
    else if (model == "llama" || model == "t5")
      made = tokenizer_json(sentence_pieces(model == "llama"));
    else
      kind.wrong(fmt::format("is {}, which is not supported; gpt2, llama and t5 are", quote(model)));
    // As llama.cpp takes it where the file does not say.
    const bool begins = at("add_bos_token").truth(model == "llama" || begins_);
    made["post_processor"] =
        frame_json(tokens_, begins ? token_of("bos_token_id") : std::nullopt, token_of("eos_token_id"));
    return made;
  }

 private:
  JsonValue at(const std::string& key) const { return metadata_["tokenizer.ggml." + key]; }

  void read_tokens() {
    for (const JsonValue& token : at("tokens").items()) tokens_.push_back(token.text());
    if (tokens_.empty()) at("tokens").wrong("is empty");
    if (at("token_type"))
      for (const JsonValue& type : at("token_type").items()) types_.push_back(type.integer());
    types_.resize(tokens_.size(), static_cast<int64_t>(PieceType::normal));
    for (size_t id = 0; id < tokens_.size(); ++id)
      if (tokens_[id].empty() || tokens_[id].size() > max_token || valid_utf8(tokens_[id]) < tokens_[id].size())
        at("tokens").wrong(fmt::format("has {} at {}, which is no token", quote(tokens_[id]), id));
  }

  // Bytes as letters, words by a pattern.
  json gpt2() {
    json vocabulary = json::object(), added = json::array(), merges = json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      vocabulary[tokens_[id]] = id;
      const auto type = static_cast<PieceType>(types_[id]);
      const bool own = type == PieceType::user_defined;
      if (own || type == PieceType::control || type == PieceType::unknown)
        added.push_back({{"id", id}, {"content", tokens_[id]}, {"special", !own}, {"normalized", false}});
    }
    for (const JsonValue& merge : at("merges").items()) merges.push_back(merge.text());
    json made = {{"added_tokens", added},
                 {"model", {{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", std::move(merges)}}},
                 {"decoder", byte_level(true)}};
    const JsonValue pre = at("pre");
    const std::string name = pre.text();
    const auto is = [&](std::initializer_list<const char*> names) {
      return std::ranges::any_of(names, [&](const char* one) { return name == one; });
    };
    if (is({"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"})) {
      made["pre_tokenizer"] = byte_level(true);
    } else if (is({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})) {
      made["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)}}};
    } else if (is({"llama3", "llama-v3", "llama-bpe", "falcon3"})) {
      begins_ = true;
      made["pre_tokenizer"] = words_of_llama3("{1,3}");
      made["model"]["ignore_merges"] = true;
    } else if (is({"qwen2", "deepseek-r1-qwen", "stablelm2"})) {
      made["pre_tokenizer"] = words_of_llama3("");
      made["normalizer"] = {{"type", "NFC"}};
    } else {
      pre.wrong(fmt::format(
          "is {}, which is not supported; gpt-2, llama-bpe, qwen2, smollm and others with the same words are",
          quote(name)));
    }
    return made;
  }

  SentencePieces sentence_pieces(bool pairs) const {
    const std::vector<JsonValue> scores = at("scores").items();
    if (scores.size() != tokens_.size())
      at("scores").wrong(fmt::format("has {} numbers for {} tokens", scores.size(), tokens_.size()));
    SentencePieces made;
    made.pairs = made.bytes = pairs;
    made.single_spaces = at("remove_extra_whitespaces").truth(!pairs);
    made.space_first = at("add_space_prefix").truth(true);
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!scores[id].json().is_number()) scores[id].wrong("must be a number");
      const auto score = scores[id].json().get<double>();
      if (!std::isfinite(score)) scores[id].wrong("must be finite");
      made.pieces.push_back({tokens_[id], score, static_cast<PieceType>(types_[id])});
    }
    made.unknown = token_of("unknown_token_id");
    if (at("precompiled_charsmap"))
      for (const JsonValue& byte : at("precompiled_charsmap").items())
        made.charsmap += static_cast<char>(byte.integer());
    return made;
  }

  std::optional<size_t> token_of(const char* key) const {
    const JsonValue id = at(key);
    if (!id) return {};
    const int64_t n = id.integer();
    if (n < 0 || static_cast<size_t>(n) >= tokens_.size())
      id.wrong(fmt::format("is {}; there are {} tokens", n, tokens_.size()));
    return static_cast<size_t>(n);
  }

  const JsonValue& metadata_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> types_;
  bool begins_ = false;  // where add_bos_token does not say
};

}  // namespace

std::shared_ptr<const Tokenizer> open_gguf_vocabulary(const std::string& path, const TokenizerUse& use) {
  const auto file = MappedFile::open(path);
  const Gguf gguf = Gguf::read(file->bytes(), path);
  const json document = Document(JsonValue(gguf.metadata, path)).read();
  return read_tokenizer_json(JsonValue(document, path), use);
}

}  // namespace attnkit::core
