#include "core/tokenizer/huggingface.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/json.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/added_tokens.hpp"
#include "core/tokenizer/byte_bpe.hpp"
#include "core/tokenizer/unicode.hpp"
#include "core/tokenizer/vocabulary.hpp"
#include "core/tokenizer/wordpiece.hpp"

namespace attnkit {
namespace {

constexpr uint64_t max_file = uint64_t{64} << 20;
constexpr int64_t max_id = 1 << 21;  // vocabularies have up to a million tokens

// What stands around every text.
struct Frame {
  std::vector<int32_t> before;
  int32_t end = -1;
};

class FramedTokenizer : public Tokenizer {
 public:
  FramedTokenizer(std::unique_ptr<const Spelling> spelling, const TokenIds& ids, size_t most)
      : spelling_(std::move(spelling)), most_(most) {
    for (const auto& [token, id] : ids) name(id, token);
  }

  void add(const AddedToken& token, bool normalized, bool special) {
    AddedToken made = token;
    if (normalized) made.content = spelling_->normalise(token.content);
    name(token.id, to_utf8(made.content));
    if (special) special_.push_back(token.id);
    (normalized ? normalised_ : as_written_).add(std::move(made));
  }
  void frame(Frame frame) { frame_ = std::move(frame); }

  std::vector<int32_t> tokenize(std::string_view text) const override {
    std::vector<int32_t> ids = frame_.before;
    const auto take = [&](int32_t id) { ids.push_back(id); };
    as_written_.split(
        to_characters(text),
        [&](std::u32string_view part) {
          normalised_.split(
              spelling_->normalise(part), [&](std::u32string_view words) { spelling_->spell(words, ids); }, take);
        },
        take);
    if (ids.size() >= most_) ids.resize(most_ - 1);
    return ids;
  }

  std::string detokenize(const int32_t* ids, size_t n) const override {
    std::vector<std::string_view> tokens;
    for (size_t i = 0; i < n; ++i) {
      if (ids[i] < 0 || ids[i] >= size())
        fail(ATTN_INVALID, "token {} is {}; the vocabulary has ids 0 to {}", i, ids[i], size() - 1);
      if (std::ranges::find(special_, ids[i]) == special_.end()) tokens.push_back(token(ids[i]));
    }
    return spelling_->join(tokens);
  }

  int size() const override { return static_cast<int>(tokens_.size()); }
  int32_t begin_id() const override { return frame_.before.empty() ? -1 : frame_.before.front(); }
  int32_t end_id() const override { return frame_.end; }
  const std::string& token(int32_t id) const override { return tokens_.at(static_cast<size_t>(id)); }

 private:
  void name(int32_t id, const std::string& token) {
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = token;
  }

  std::unique_ptr<const Spelling> spelling_;
  AddedTokens as_written_, normalised_;
  std::vector<std::string> tokens_;
  std::vector<int32_t> special_;
  Frame frame_;
  size_t most_;
};

// The values of a tokenizer.json.
class Reader {
 public:
  explicit Reader(const JsonValue& root) : root_(root) {}

  std::shared_ptr<const Tokenizer> read(size_t most) const {
    const JsonValue model = root_["model"];
    const TokenIds ids = vocabulary(model["vocab"]);
    auto made = std::make_shared<FramedTokenizer>(spelling(model, ids), ids, most);
    if (root_["added_tokens"])
      for (const JsonValue& token : root_["added_tokens"].items()) add(token, *made);
    const Frame around = frame(root_["post_processor"]);
    std::vector<int32_t> all = around.before;
    all.push_back(around.end);
    for (const int32_t id : all)
      if (id >= made->size() || made->token(id).empty())
        root_["post_processor"].wrong(fmt::format("has the id {}, which no token has", id));
    if (around.before.size() + 2 > most)
      fail(ATTN_INVALID, "{}: texts begin and end with {} tokens, and at most {} are wanted", root_.path(),
           around.before.size() + 1, most);
    made->frame(around);
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

  static TokenIds vocabulary(const JsonValue& vocab) {
    if (!vocab.is_object()) vocab.wrong("must be an object of tokens and ids");
    TokenIds ids;
    for (const auto& [token, id] : vocab.json().items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(max_id))
        vocab.wrong(fmt::format("has the token {} with an id that is none: ids are 0 to {}", quote(token), max_id));
      ids.emplace(token, id.get<int32_t>());
    }
    if (ids.empty()) vocab.wrong("is empty");
    return ids;
  }

  // The kind of a part of the tokenizer, which must be the one that is known.
  static void must_be(const JsonValue& part, const char* kind) {
    const std::string type = part ? part["type"].text() : "null";
    if (type == kind) return;
    part.wrong(fmt::format("is {}, which is not supported; {} is", quote(type), quote(kind)));
  }

  std::unique_ptr<const Spelling> spelling(const JsonValue& model, const TokenIds& ids) const {
    // Older files leave the type out.
    const std::string type = model["type"] ? model["type"].text() : "WordPiece";
    if (type == "BPE") return byte_bpe(model, ids);
    if (type != "WordPiece")
      model.wrong(fmt::format("is {}, which is not supported; \"WordPiece\" and \"BPE\" are", quote(type)));
    const JsonValue normalizer = root_["normalizer"], decoder = root_["decoder"];
    must_be(normalizer, "BertNormalizer");
    must_be(root_["pre_tokenizer"], "BertPreTokenizer");
    BertNormalizer n;
    n.clean = normalizer["clean_text"].truth(true);
    n.ideographs = normalizer["handle_chinese_chars"].truth(true);
    n.lowercase = normalizer["lowercase"].truth(true);
    n.strip_accents = normalizer["strip_accents"].truth(n.lowercase);
    const auto unknown = ids.find(model["unk_token"].text());
    if (unknown == ids.end()) model["unk_token"].wrong("is no token of the vocabulary");
    const JsonValue mark = model["continuing_subword_prefix"], most = model["max_input_chars_per_word"];
    if (most && most.integer() < 1) most.wrong("must be 1 or more");
    return std::make_unique<WordPiece>(ids, unknown->second, mark ? mark.text() : "##",
                                       most ? static_cast<size_t>(most.integer()) : 100, n,
                                       decoder && decoder["cleanup"].truth(true));
  }

  std::unique_ptr<const Spelling> byte_bpe(const JsonValue& model, const TokenIds& ids) const {
    if (root_["normalizer"]) root_["normalizer"].wrong("is not supported beside the model \"BPE\"");
    const JsonValue words = root_["pre_tokenizer"];
    must_be(words, "ByteLevel");
    if (!words["use_regex"].truth(true)) words["use_regex"].wrong("is false, which is not supported");
    for (const char* key : {"byte_fallback", "ignore_merges", "fuse_unk"})
      if (model[key].truth(false)) model[key].wrong("is true, which is not supported");
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
    try {
      return std::make_unique<ByteBpe>(ids, merges, words["add_prefix_space"].truth(true));
    } catch (const Error& e) {
      fail(ATTN_INVALID, "{}: model: {}", root_.path(), e.what());
    }
  }

  static void add(const JsonValue& entry, FramedTokenizer& to) {
    const std::string content = entry["content"].text();
    AddedToken token{to_characters(content), id_of(entry["id"])};
    token.single_word = entry["single_word"].truth(false);
    token.takes_left = entry["lstrip"].truth(false);
    token.takes_right = entry["rstrip"].truth(false);
    const bool special = entry["special"].truth(false);
    to.add(token, entry["normalized"].truth(!special), special);
  }

  static Frame frame(const JsonValue& post) {
    const std::string type = post ? post["type"].text() : "null";
    if (type == "TemplateProcessing") return frame_of_template(post);
    if (type == "BertProcessing" || type == "RobertaProcessing")
      return {{id_of_pair(post["cls"])}, id_of_pair(post["sep"])};
    post.wrong(fmt::format(
        "is {}, which is not supported; TemplateProcessing, BertProcessing and RobertaProcessing are", quote(type)));
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
    if (!text || made.end < 0) post["single"].wrong("must be a text with one special token behind it");
    return made;
  }

  const JsonValue& root_;
};

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer_json(const std::string& path, size_t most) {
  const nlohmann::json document = read_json(path, max_file);
  return Reader(JsonValue(document, path)).read(most);
}

std::shared_ptr<const Tokenizer> open_wordpiece(const std::string& path, bool lowercase, size_t most) {
  TokenIds ids;
  int32_t line = 0;
  for (const std::string& token : read_lines(path)) {
    if (const size_t n = valid_utf8(token); n < token.size())
      fail(ATTN_INVALID, "{}:{}:{}: is not UTF-8", path, line + 1, n + 1);
    ids[token] = line++;
  }
  const auto id_of = [&](const char* token) {
    const auto found = ids.find(token);
    if (found == ids.end()) fail(ATTN_INVALID, "{}: has no line {}, which BERT's vocabularies have", path, token);
    return found->second;
  };
  BertNormalizer normalizer;
  normalizer.lowercase = normalizer.strip_accents = lowercase;
  auto made = std::make_shared<FramedTokenizer>(
      std::make_unique<WordPiece>(ids, id_of("[UNK]"), "##", 100, normalizer, true), ids, most);
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (ids.contains(token)) made->add({to_characters(token), id_of(token)}, false, true);
  made->frame({{id_of("[CLS]")}, id_of("[SEP]")});
  return made;
}

}  // namespace attnkit
