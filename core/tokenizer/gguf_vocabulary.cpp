#include "core/tokenizer/gguf_vocabulary.hpp"

#include <algorithm>
#include <tuple>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/gguf.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

using nlohmann::json;

enum TokenType : int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

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
    if (model == "gpt2")
      read_gpt2();
    else if (model == "llama")
      read_llama();
    else
      kind.wrong(fmt::format("is {}, which is not supported; gpt2 and llama are", quote(model)));
    read_frame(model == "llama");
    return std::move(made_);
  }

 private:
  JsonValue at(const std::string& key) const { return metadata_["tokenizer.ggml." + key]; }

  void read_tokens() {
    for (const JsonValue& token : at("tokens").items()) tokens_.push_back(token.text());
    if (tokens_.empty()) at("tokens").wrong("is empty");
    if (at("token_type"))
      for (const JsonValue& type : at("token_type").items()) types_.push_back(type.integer());
    types_.resize(tokens_.size(), normal);
    json vocabulary = json::object(), added = json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string& token = tokens_[id];
      if (token.empty() || valid_utf8(token) < token.size())
        at("tokens").wrong(fmt::format("has {} at {}, which is no token", quote(token), id));
      vocabulary[token] = id;
      if (types_[id] != control && types_[id] != unknown && types_[id] != user_defined) continue;
      added.push_back({{"id", id}, {"content", token}, {"special", types_[id] != user_defined}, {"normalized", false}});
    }
    made_["added_tokens"] = std::move(added);
    made_["model"] = {{"type", "BPE"}, {"vocab", std::move(vocabulary)}};
  }

  void read_gpt2() {
    json merges = json::array();
    for (const JsonValue& merge : at("merges").items()) merges.push_back(merge.text());
    made_["model"]["merges"] = std::move(merges);
    made_["decoder"] = byte_level(true);
    const JsonValue pre = at("pre");
    const std::string name = pre.text();
    const auto is = [&](std::initializer_list<const char*> names) {
      return std::ranges::any_of(names, [&](const char* one) { return name == one; });
    };
    if (is({"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"})) {
      made_["pre_tokenizer"] = byte_level(true);
    } else if (is({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})) {
      made_["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, byte_level(true)}}};
    } else if (is({"llama3", "llama-v3", "llama-bpe", "falcon3", "smaug-bpe"})) {
      made_["pre_tokenizer"] = words_of_llama3("{1,3}");
      made_["model"]["ignore_merges"] = true;
    } else if (is({"qwen2", "deepseek-r1-qwen", "stablelm2"})) {
      made_["pre_tokenizer"] = words_of_llama3("");
      made_["normalizer"] = {{"type", "NFC"}};
    } else {
      pre.wrong(fmt::format(
          "is {}, which is not supported; gpt-2, llama-bpe, qwen2, smollm and others with the same words are",
          quote(name)));
    }
  }

  // SentencePiece's pairs: the better the score of the result, the earlier.
  void read_llama() {
    std::vector<double> scores;
    for (const JsonValue& score : at("scores").items()) {
      if (!score.json().is_number()) score.wrong("must be a number");
      scores.push_back(score.json().get<double>());
    }
    if (scores.size() != tokens_.size())
      at("scores").wrong(fmt::format("has {} numbers for {} tokens", scores.size(), tokens_.size()));
    const json& ids = made_["model"]["vocab"];
    struct Pair {
      double score;
      int64_t left, right;
      std::string first, second;
    };
    std::vector<Pair> pairs;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string& token = tokens_[id];
      for (size_t n = 1; n < token.size() && types_[id] != control && types_[id] != unknown; ++n) {
        if ((static_cast<unsigned char>(token[n]) & 0xc0u) == 0x80u) continue;  // inside a character
        const std::string first = token.substr(0, n), second = token.substr(n);
        const auto left = ids.find(first), right = ids.find(second);
        if (left != ids.end() && right != ids.end())
          pairs.push_back({scores[id], left->get<int64_t>(), right->get<int64_t>(), first, second});
      }
    }
    std::ranges::stable_sort(pairs, [](const Pair& a, const Pair& b) {
      return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
    });
    json merges = json::array();
    for (const Pair& pair : pairs) merges.push_back({pair.first, pair.second});
    made_["model"]["merges"] = std::move(merges);
    made_["model"]["byte_fallback"] = true;
    made_["model"]["fuse_unk"] = true;
    if (const JsonValue id = at("unknown_token_id")) made_["model"]["unk_token"] = tokens_[token_of(id)];
    const json spaces = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
    const json words = {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}};
    json normalizers = json::array({spaces});
    json decoders = json::array({words, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
    if (at("add_space_prefix").truth(true)) {
      normalizers.insert(normalizers.begin(), json{{"type", "Prepend"}, {"prepend", "\u2581"}});
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    made_["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
    made_["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  }

  size_t token_of(const JsonValue& id) const {
    const int64_t n = id.integer();
    if (n < 0 || static_cast<size_t>(n) >= tokens_.size())
      id.wrong(fmt::format("is {}; there are {} tokens", n, tokens_.size()));
    return static_cast<size_t>(n);
  }

  void read_frame(bool begins) {
    json single = json::array(), specials = json::object();
    const auto special = [&](const char* key) {
      const size_t id = token_of(at(key));
      specials[tokens_[id]] = {{"id", tokens_[id]}, {"ids", {id}}, {"tokens", {tokens_[id]}}};
      return json{{"SpecialToken", {{"id", tokens_[id]}, {"type_id", 0}}}};
    };
    if (at("add_bos_token").truth(begins)) single.push_back(special("bos_token_id"));
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (at("eos_token_id")) single.push_back(special("eos_token_id"));
    made_["post_processor"] = {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
  }

  const JsonValue& metadata_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> types_;
  json made_ = json::object();
};

}  // namespace

std::shared_ptr<const Tokenizer> open_gguf_vocabulary(const std::string& path, const TokenizerUse& use) {
  const auto file = MappedFile::open(path);
  const Gguf gguf = Gguf::read(file->bytes(), path);
  const json document = Document(JsonValue(gguf.metadata, path)).read();
  return read_tokenizer_json(JsonValue(document, path), use);
}

}  // namespace attnkit
