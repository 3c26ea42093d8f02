#include "core/tokenizer/huggingface.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/added_tokens.hpp"
#include "core/tokenizer/bpe.hpp"
#include "core/tokenizer/normalizer.hpp"
#include "core/tokenizer/pre_tokenizer.hpp"
#include "core/tokenizer/sequence.hpp"
#include "core/tokenizer/token_decoder.hpp"
#include "core/tokenizer/unicode.hpp"
#include "core/tokenizer/unigram.hpp"
#include "core/tokenizer/vocabulary.hpp"
#include "core/tokenizer/wordpiece.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t max_file = uint64_t{64} << 20;
constexpr int64_t max_id = 1 << 21;  // vocabularies have up to a million tokens

// The tokens around every text.
struct Frame {
  std::vector<int32_t> before;
  int32_t end = -1;
};

// From text to tokens and back, step by step.
struct Steps {
  Normalizer normalise;
  Normalizer normalise_keeping;  // the same, but for what a Precompiled leaves out
  PreTokenizer split;
  std::unique_ptr<const Spelling> spelling;
  TokenDecoder decode;
};

class SteppedTokenizer : public Tokenizer {
 public:
  SteppedTokenizer(Steps steps, size_t max_ids) : steps_(std::move(steps)), max_ids_(max_ids) {}

  void name(int32_t id, const std::string& token) {
    resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = token;
  }
  void resize(size_t size) {
    tokens_.resize(std::max(tokens_.size(), size));
    special_.resize(tokens_.size());
  }
  void add(const AddedToken& token, bool normalized, bool special) {
    AddedToken made = token;
    if (normalized) made.content = steps_.normalise(token.content);
    name(token.id, to_utf8(made.content));
    special_[static_cast<size_t>(token.id)] = special;
    (normalized ? normalised_ : as_written_).add(std::move(made));
  }
  // before: of every text; begin, end: what hosts add.
  void frame(std::vector<int32_t> before, int32_t begin, int32_t end) {
    before_ = std::move(before);
    begin_ = begin;
    end_ = end;
  }

  std::vector<int32_t> tokenize(std::string_view text) const override {
    std::vector<int32_t> ids = before_;
    const std::u32string whole = to_characters(text);
    const auto take = [&](int32_t id) { ids.push_back(id); };
    as_written_.split(
        whole,
        [&](std::u32string_view part) {
          const std::u32string normal = steps_.normalise(part);
          normalised_.split(
              normal,
              [&](std::u32string_view words) {
                spell(words, part.data() == whole.data() && words.data() == normal.data() && !drops_first(part), ids);
              },
              take);
        },
        take);
    if (ids.size() >= max_ids_) ids.resize(max_ids_ - 1);
    return ids;
  }

  std::string detokenize(const int32_t* ids, size_t n) const override {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < n; ++i) {
      const size_t id = checked(ids, i);
      if (!special_[id] && !tokens_[id].empty()) tokens.push_back(tokens_[id]);
    }
    steps_.decode(tokens);
    std::string text;
    for (const std::string& part : tokens) text += part;
    return text;
  }

  int size() const override { return static_cast<int>(tokens_.size()); }
  int32_t begin_id() const override { return begin_; }
  int32_t end_id() const override { return end_; }
  const std::string& token(int32_t id) const override { return tokens_.at(static_cast<size_t>(id)); }

 private:
  // Whether normalisation leaves the first character out: what follows is then not what a text begins with, as Hugging
  // Face sees it, which a Precompiled does not tell of what it leaves out in front.
  bool drops_first(std::u32string_view text) const {
    const std::u32string with{text.front(), U'x'};
    return steps_.normalise_keeping(with) == steps_.normalise_keeping(U"x");
  }

  void spell(std::u32string_view words, bool first, std::vector<int32_t>& ids) const {
    std::vector<Piece> pieces{{std::u32string(words), first}};
    steps_.split(pieces);
    for (const Piece& piece : pieces)
      if (!piece.text.empty()) steps_.spelling->spell(piece.text, ids);
  }

  Steps steps_;
  AddedTokens as_written_, normalised_;
  std::vector<std::string> tokens_;
  std::vector<bool> special_;
  std::vector<int32_t> before_;
  int32_t begin_ = -1, end_ = -1;
  size_t max_ids_;
};

// The values of a tokenizer.json.
class Reader {
 public:
  Reader(const JsonValue& root, const TokenizerUse& use) : root_(root), use_(use) {}

  std::shared_ptr<const Tokenizer> read() {
    Steps steps;
    steps.normalise = read_normalizer(root_["normalizer"]);
    steps.normalise_keeping = read_normalizer(root_["normalizer"], true);
    steps.split = read_pre_tokenizer(root_["pre_tokenizer"]);
    steps.decode = read_token_decoder(root_["decoder"]);
    steps.spelling = spelling(root_["model"]);
    auto made = std::make_shared<SteppedTokenizer>(std::move(steps), use_.max_ids);
    for (const auto& [token, id] : ids_) {
      made->name(id, token);
      tokens_[id] = token;
    }
    if (root_["added_tokens"])
      for (const JsonValue& token : root_["added_tokens"].items()) add(token, *made);
    made->resize(static_cast<size_t>(use_.size));
    read_frame(*made);
    return made;
  }

 private:
  static int32_t id_of(const JsonValue& value) {
    const int64_t id = value.integer();
    if (id < 0 || id > max_id) value.wrong(fmt::format("is {}; ids are 0 to {}", id, max_id));
    return static_cast<int32_t>(id);
  }

  // Of a token and its id.
  static int32_t id_of_pair(const JsonValue& value) {
    const std::vector<JsonValue> pair = value.items();
    if (pair.size() != 2) value.wrong("must be a token and its id");
    return id_of(pair[1]);
  }

  void read_vocabulary(const JsonValue& vocab) {
    if (!vocab.is_object()) vocab.wrong("must be an object of tokens and ids");
    for (const auto& [token, id] : vocab.json().items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(max_id))
        vocab.wrong(fmt::format("has the token {} with an id that is none: ids are 0 to {}", quote(token), max_id));
      ids_.emplace(token, id.get<int32_t>());
    }
    if (ids_.empty()) vocab.wrong("is empty");
  }

  int32_t token(const JsonValue& value) const {
    const auto found = ids_.find(value.text());
    if (found == ids_.end()) value.wrong("is no token of the vocabulary");
    return found->second;
  }

  std::unique_ptr<const Spelling> spelling(const JsonValue& model) {
    // Older files leave the type out.
    const std::string type = model["type"]               ? model["type"].text()
                             : model["merges"]           ? "BPE"
                             : model["vocab"].is_array() ? "Unigram"
                                                         : "WordPiece";
    if (type == "Unigram") return unigram(model);
    if (type != "BPE" && type != "WordPiece")
      model.wrong(
          fmt::format("is {}, which is not supported; \"WordPiece\", \"BPE\" and \"Unigram\" are", quote(type)));
    read_vocabulary(model["vocab"]);
    return type == "BPE" ? bpe(model) : wordpiece(model);
  }

  std::unique_ptr<const Spelling> wordpiece(const JsonValue& model) const {
    const JsonValue mark = model["continuing_subword_prefix"], most = model["max_input_chars_per_word"];
    if (most && most.integer() < 1) most.wrong("must be 1 or more");
    return std::make_unique<WordPiece>(ids_, token(model["unk_token"]), mark ? mark.text() : "##",
                                       most ? static_cast<size_t>(most.integer()) : 100);
  }

  std::unique_ptr<const Spelling> bpe(const JsonValue& model) const {
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (model[key] && !(model[key].is_text() && model[key].text().empty()))
        model[key].wrong("is given, which is not supported");
    std::vector<std::pair<std::string, std::string>> merges;
    for (const JsonValue& merge : model["merges"].items()) {
      std::vector<std::string> pair;
      if (merge.is_text())
        pair = split(merge.text(), ' ');
      else
        for (const JsonValue& part : merge.items()) pair.push_back(part.text());
      if (pair.size() != 2) merge.wrong("must be two tokens");
      merges.emplace_back(pair[0], pair[1]);
    }
    BpeOptions options;
    if (model["unk_token"]) options.unknown = token(model["unk_token"]);
    options.join_unknown = model["fuse_unk"].truth(false);
    options.bytes = model["byte_fallback"].truth(false);
    options.whole_words = model["ignore_merges"].truth(false);
    // Neither is of a tokenizer.json: they are of SentencePiece's files.
    options.kept = KeptTexts(model["kept"]);
    if (model["unused"])
      for (const JsonValue& one : model["unused"].items()) options.unused.insert(id_of(one));
    try {
      return std::make_unique<Bpe>(ids_, merges, options);
    } catch (const Error& e) {
      fail(ATTN_INVALID, "{}: model: {}", root_.path(), e.what());
    }
  }

  std::unique_ptr<const Spelling> unigram(const JsonValue& model) {
    const JsonValue vocab = model["vocab"], unknown = model["unk_id"];
    std::vector<Unigram::Token> tokens;
    for (const JsonValue& entry : vocab.items()) {
      const std::vector<JsonValue> pair = entry.items();
      if (pair.size() != 2 || !pair[1].json().is_number()) entry.wrong("must be a token and its score");
      tokens.push_back({pair[0].text(), pair[1].json().get<double>(), PieceUse::normal});
      ids_[tokens.back().text] = static_cast<int32_t>(tokens.size() - 1);
    }
    if (tokens.empty()) vocab.wrong("is empty");
    if (tokens.size() > static_cast<size_t>(max_id)) vocab.wrong(fmt::format("has more than {} tokens", max_id));
    // These, and "single", are not of a tokenizer.json: they are of SentencePiece's files.
    for (const auto& [key, use] : {std::pair("unused", PieceUse::none), {"user_defined", PieceUse::user_defined}})
      if (model[key])
        for (const JsonValue& one : model[key].items()) tokens.at(static_cast<size_t>(id_of(one))).use = use;
    std::optional<int32_t> id;
    if (unknown) {
      id = id_of(unknown);
      if (static_cast<size_t>(*id) >= tokens.size()) unknown.wrong(fmt::format("is {}, which no token has", *id));
    }
    TokenIds others;  // not of a tokenizer.json: of SentencePiece's files beside a list of ids
    if (model["others"])
      for (const auto& [token, other] : model["others"].members()) others[token] = ids_[token] = id_of(other);
    return std::make_unique<Unigram>(std::move(tokens), id, model["byte_fallback"].truth(false), others,
                                     model["single"].truth(false));
  }

  // One that repeats a token of the vocabulary has its id.
  void add(const JsonValue& entry, SteppedTokenizer& to) {
    const std::string content = entry["content"].text();
    AddedToken token{to_characters(content), id_of(entry["id"])};
    const auto& [known, id] = *ids_.try_emplace(content, token.id).first;
    if (id != token.id)
      entry["id"].wrong(fmt::format("is {}, and {} has the id {} already", token.id, quote(content), id));
    const std::string_view owner = tokens_.try_emplace(token.id, known).first->second;
    if (owner != content)
      entry["id"].wrong(fmt::format("is {}, which is the id of {} already", token.id, quote(owner)));
    token.single_word = entry["single_word"].truth(false);
    token.takes_left = entry["lstrip"].truth(false);
    token.takes_right = entry["rstrip"].truth(false);
    const bool special = entry["special"].truth(false);
    to.add(token, entry["normalized"].truth(!special), special);
  }

  // A token that the manifest names.
  int32_t named(const char* key, const std::string& token, const SteppedTokenizer& in) const {
    for (int32_t id = 0; id < in.size(); ++id)
      if (in.token(id) == token) return id;
    fail(ATTN_INVALID, "{}: has no token {}, which {} names", root_.path(), quote(token), key);
  }

  void read_frame(SteppedTokenizer& to) const {
    const JsonValue post = root_["post_processor"];
    Frame around = frame(post);
    if (!use_.end.empty()) around.end = named("end", use_.end, to);
    if (around.end < 0 && use_.ends)
      fail(ATTN_INVALID, "{}: names no token that ends a text{}", root_.path(),
           use_.target ? "; the manifest's \"end\" says which"
                       : ": use another file, or end = false where sources of this model end with none");
    if (!use_.target && !use_.begin.empty()) around.before = {named("begin", use_.begin, to)};
    std::vector<int32_t> all = around.before;
    if (around.end >= 0) all.push_back(around.end);
    for (const int32_t id : all)
      if (id >= to.size() || to.token(id).empty()) post.wrong(fmt::format("has the id {}, which no token has", id));
    if (!use_.target) {
      if (around.before.size() + 2 > use_.max_ids)
        fail(ATTN_INVALID, "{}: texts begin and end with {} tokens, and at most {} are wanted", root_.path(),
             around.before.size() + 1, use_.max_ids);
      const int32_t begin = around.before.empty() ? -1 : around.before.front();
      return to.frame(std::move(around.before), begin, around.end);
    }
    int32_t begin = -1;
    if (!use_.begin.empty())
      begin = named("begin", use_.begin, to);
    else if (around.before.size() > 1)
      post.wrong(
          fmt::format("puts {} tokens before a text; a decoder's texts begin with one at most", around.before.size()));
    else if (!around.before.empty())
      begin = around.before.front();
    to.frame({}, begin, around.end);
  }

  static Frame frame(const JsonValue& post) {
    const std::string type = post ? post["type"].text() : "ByteLevel";
    if (type == "ByteLevel") return {};  // of offsets alone
    if (type == "TemplateProcessing") return frame_of_template(post);
    if (type == "BertProcessing" || type == "RobertaProcessing")
      return {{id_of_pair(post["cls"])}, id_of_pair(post["sep"])};
    if (type != "Sequence")
      post.wrong(
          fmt::format("is {}, which is not supported; BertProcessing, ByteLevel, RobertaProcessing, Sequence and "
                      "TemplateProcessing are",
                      quote(type)));
    Frame made;
    for (const JsonValue& part : read_sequence(post, "processors")) {
      const Frame one = frame(part);
      made.before.insert(made.before.begin(), one.before.begin(), one.before.end());
      if (made.end >= 0 && one.end >= 0) part.wrong("puts one more token behind the text; one is supported");
      made.end = std::max(made.end, one.end);
    }
    return made;
  }

  static Frame frame_of_template(const JsonValue& post) {
    Frame made;
    bool text = false;
    for (const JsonValue& part : post["single"].items()) {
      if (part["Sequence"]) {
        if (text) part.wrong("is a second text, of which there is one");
        text = true;
        continue;
      }
      const JsonValue special = post["special_tokens"][part["SpecialToken"]["id"].text()];
      for (const JsonValue& id : special["ids"].items()) {
        if (text && made.end >= 0) part.wrong("is one more token behind the text; one is supported");
        if (text)
          made.end = id_of(id);
        else
          made.before.push_back(id_of(id));
      }
    }
    if (!text) post["single"].wrong("has no place for a text");
    return made;
  }

  const JsonValue& root_;
  const TokenizerUse& use_;
  TokenIds ids_;
  std::unordered_map<int32_t, std::string_view> tokens_;  // the same by their ids
};

}  // namespace

std::shared_ptr<const Tokenizer> read_tokenizer_json(const JsonValue& document, const TokenizerUse& use) {
  return Reader(document, use).read();
}

std::shared_ptr<const Tokenizer> open_tokenizer_json(const std::string& path, const TokenizerUse& use) {
  const nlohmann::json document = read_json(path, max_file);
  return read_tokenizer_json(JsonValue(document, path), use);
}

std::shared_ptr<const Tokenizer> open_wordpiece(const std::string& path, bool lowercase, const TokenizerUse& use) {
  nlohmann::json vocabulary = nlohmann::json::object(), added = nlohmann::json::array();
  uint32_t line = 0;
  for (const std::string& token : read_lines(path)) {
    if (const size_t n = valid_utf8(token); n < token.size())
      fail(ATTN_INVALID, "{}:{}:{}: is not UTF-8", path, line + 1, n + 1);
    vocabulary[token] = line++;
  }
  for (const char* token : {"[UNK]", "[CLS]", "[SEP]"})
    if (!vocabulary.contains(token))
      fail(ATTN_INVALID, "{}: has no line {}, which BERT's vocabularies have", path, token);
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (vocabulary.contains(token)) added.push_back({{"id", vocabulary[token]}, {"content", token}, {"special", true}});
  const nlohmann::json cls = {"[CLS]", vocabulary["[CLS]"]}, sep = {"[SEP]", vocabulary["[SEP]"]};
  const nlohmann::json document = {
      {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", lowercase}, {"strip_accents", lowercase}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"model", {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", std::move(vocabulary)}}},
      {"post_processor", {{"type", "BertProcessing"}, {"cls", cls}, {"sep", sep}}},
      {"decoder", {{"type", "WordPiece"}}},
      {"added_tokens", added}};
  return read_tokenizer_json(JsonValue(document, path), use);
}

}  // namespace attnkit::core
