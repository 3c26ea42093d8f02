// The tokenizer of a folder: the files that it may be in, each with what the others lack.
#include <algorithm>
#include <tuple>

#include "core/base/file.hpp"
#include "core/base/formats/protobuf.hpp"
#include "core/base/text.hpp"
#include "core/import/huggingface.hpp"

namespace attnkit::core {
namespace {

constexpr int64_t max_sentinels = 1000;
constexpr const char* help = "save the tokenizer with transformers, which writes a tokenizer.json";

// The number of pieces of a SentencePiece file: of its fields of number 1.  What is damaged is refused when it is
// read.
int64_t pieces_of(const fs::path& path) {
  const std::vector<std::byte> file = read_file(path.string(), max_json);
  int64_t pieces = 0;
  each_field({reinterpret_cast<const char*>(file.data()), file.size()},
             [&](const ProtobufField& field) { pieces += field.number == 1; });
  return pieces;
}

class Reader {
 public:
  Reader(Draft& draft, const fs::path& folder, const Architecture& architecture, FolderTokenizer& made)
      : draft_(draft), folder_(folder), architecture_(architecture), made_(made) {}

  void add(const JsonValue* config) {
    const auto settings = find("tokenizer_config.json");
    if (const auto path = find("tokenizer.json")) return add_json(*path);
    const bool decodes = draft_.has("model.decoder");
    if (decodes && add_pieces_and_ids()) return;
    if (decodes && config && add_pieces(*config)) return;
    if (add_fairseq()) return;
    if (decodes)
      refuse(fmt::format("{}: holds no tokenizer.json, no spiece.model, and no vocab.json with SentencePiece's file",
                         folder_.string()),
             "save the tokenizer with transformers, which writes one");
    add_wordpiece(settings);
  }

 private:
  void add_json(const fs::path& path) {
    add_vocabulary(path, "huggingface");
    const JsonValue root = draft_.read(path), normalizer = root["normalizer"];
    made_.lowercases = normalizer.is_object() && normalizer["lowercase"].truth(false);
    if (!draft_.has("model.decoder")) return;
    const JsonValue vocabulary = root["model"]["vocab"], added = root["added_tokens"];
    if (vocabulary.is_object()) read_ids(vocabulary);
    if (vocabulary.is_array())
      for (const JsonValue& piece : vocabulary.items())
        for (const JsonValue& part : piece.items())
          if (part.is_text()) made_.tokens[std::ssize(made_.tokens)] = part.text();
    if (added)
      for (const JsonValue& one : added.items()) made_.tokens[one["id"].integer()] = one["content"].text();
  }

  // SentencePiece's files, with the model's ids in another file: one for both sides, or one for each.
  bool add_pieces_and_ids() {
    const auto ids = any({"vocab.json", "shared_vocabulary.json", "source_vocabulary.json"});
    const auto one = any({"sentencepiece.bpe.model", "sentencepiece.model"}), source = find("source.spm");
    if (!ids || (!one && !source)) return false;
    const fs::path target_ids = any({"target_vocab.json", "target_vocabulary.json"}).value_or(*ids);
    for (const std::string& side : sides_of_text()) {
      const auto& [own, own_ids] =
          side == "model.encoder" ? std::tuple("source.spm", *ids) : std::tuple("target.spm", target_ids);
      const std::string why = fmt::format("there is a {}, whose tokens it makes", ids->filename().string());
      draft_.add_file(side, "vocab", one ? *one : draft_.take(folder_ / own, why));
      draft_.add_text(side, "tokenizer", "huggingface");
      draft_.add_file(side, "ids", own_ids);
      add_more_tokens(side, architecture_.more);
    }
    const JsonValue list = draft_.read(target_ids);
    if (list.is_array())
      for (const JsonValue& token : list.items()) made_.tokens[std::ssize(made_.tokens)] = token.text();
    else
      read_ids(list);
    for (const std::string& token : architecture_.more.tokens)
      made_.tokens[made_.tokens.empty() ? 0 : made_.tokens.rbegin()->first + 1] = token;
    return true;
  }

  // SentencePiece's file alone, whose ids are the model's, as T5 has it.  Beside it stands which tokens begin and end
  // texts, and config.json has their ids.
  bool add_pieces(const JsonValue& config) {
    const auto file = find("spiece.model");
    if (!file) return false;
    add_vocabulary(*file, "huggingface");
    add_tokens_behind(*file, config);
    std::map<std::string, std::string> said = {{"pad", "<pad>"}, {"eos", "</s>"}, {"unk", "<unk>"}};
    for (const char* beside : {"special_tokens_map.json", "tokenizer_config.json"})
      if (const auto settings = draft_.find_json(folder_ / beside))
        for (auto& [kind, token] : said)
          if (const JsonValue own = (*settings)[kind + "_token"])
            token = own.is_object() ? own["content"].text() : own.text();
    for (const auto& [kind, token] : said)
      if (const JsonValue id = config[kind + "_token_id"]) made_.tokens[id.integer()] = token;
    return true;
  }

  // The tokens behind the pieces of a file: T5's sentinels, and what added_tokens.json has.
  void add_tokens_behind(const fs::path& file, const JsonValue& config) {
    std::vector<std::string> tokens = architecture_.more.tokens;
    if (const auto settings = draft_.find_json(folder_ / "tokenizer_config.json"))
      if (const JsonValue said = (*settings)["extra_ids"]) {
        const int64_t count = said.integer();
        if (count < 0 || count > max_sentinels)
          said.wrong(fmt::format("is {}; 0 to {} are possible", count, max_sentinels));
        tokens.clear();
        for (int64_t i = count - 1; i >= 0; --i) tokens.push_back(fmt::format("<extra_id_{}>", i));
      }
    const int64_t pieces = pieces_of(file);
    // Without a word of them there may be fewer ids.
    if (const JsonValue size = config["vocab_size"]; size && pieces + std::ssize(tokens) > size.integer())
      tokens.clear();
    if (const auto added = draft_.find_json(folder_ / "added_tokens.json")) {
      std::map<int64_t, std::string> by_id;
      for (const auto& [token, id] : added->members())
        if (std::ranges::find(tokens, token) == tokens.end()) by_id[id.integer()] = token;
      for (const auto& [id, token] : by_id) {
        if (id < pieces) continue;  // a piece itself
        if (id != pieces + std::ssize(tokens))
          refuse(fmt::format("{}: {} has the id {}, and the token behind those that are there is {}", added->path(),
                             quote(token), id, pieces + std::ssize(tokens)),
                 help);
        tokens.push_back(token);
      }
    }
    for (int64_t i = 0; i < std::ssize(tokens); ++i) made_.tokens[pieces + i] = tokens[static_cast<size_t>(i)];
    for (const std::string& side : sides_of_text()) draft_.add_texts(side, "more_tokens", tokens);
  }

  // SentencePiece's file alone, with ids as fairseq has them: XLM-R and NLLB.
  bool add_fairseq() {
    if (!architecture_.fairseq) return false;
    const auto file = find("sentencepiece.bpe.model");
    if (!file) return false;
    add_vocabulary(*file, "huggingface");
    for (const std::string& side : sides_of_text()) {
      draft_.add_text(side, "numbering", "fairseq");
      add_more_tokens(side, *architecture_.fairseq);
    }
    // Ids behind the pieces, whose number the file alone knows, stay ids in the manifest.
    made_.tokens = {{0, "<s>"}, {1, "<pad>"}, {2, "</s>"}, {3, "<unk>"}};
    return true;
  }

  void add_more_tokens(const std::string& side, const MoreTokens& more) {
    draft_.add_texts(side, "more_tokens", more.tokens);
    if (more.source.empty() || side != "model.encoder") return;
    draft_.add_text(side, "begin", more.source);
    if (draft_.has("model.decoder"))
      draft_.note(
          fmt::format("texts are read as {}: \"begin\" of [model.encoder] says another language, and \"forced\" of "
                      "[decode] the one that is written",
                      quote(more.source)));
  }

  // BERT's list of words, with the settings of its tokenizer.
  void add_wordpiece(const std::optional<fs::path>& settings) {
    add_vocabulary(draft_.take(folder_ / "vocab.txt", "a tokenizer.json or BERT's vocab.txt is needed"), "wordpiece");
    made_.lowercases = true;
    if (const auto added = draft_.find_json(folder_ / "added_tokens.json"))
      for (const auto& [token, id] : added->members()) check_special(id, token);
    if (settings) {
      const JsonValue config = draft_.read(*settings);
      if (const JsonValue added = config["added_tokens_decoder"])
        for (const auto& [id, token] : added.members()) check_special(token, token["content"].text());
      for (const char* list : {"additional_special_tokens", "extra_special_tokens"})
        if (const JsonValue added = config[list]; added && added.is_array())
          for (const JsonValue& token : added.items())
            if (token.is_text()) check_special(token, token.text());
      made_.lowercases = config["do_lower_case"].truth(true);
      if (config["strip_accents"].truth(made_.lowercases) != made_.lowercases ||
          !config["tokenize_chinese_chars"].truth(true))
        refuse(fmt::format("{}: without a tokenizer.json, accents are stripped exactly where letters are lower-cased, "
                           "and Chinese characters are words",
                           config.path()),
               help);
    }
    draft_.add("model.encoder", "lowercase", made_.lowercases ? "true" : "false");
  }

  // Texts may hold the tokens that all of BERT's vocabularies have, and no others.
  static void check_special(const JsonValue& at, const std::string& token) {
    constexpr const char* special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    if (std::ranges::find(special, token) == std::end(special))
      refuse(fmt::format("{}: {} adds the token {}, which without a tokenizer.json texts cannot hold", at.path(),
                         at.place(), quote(token)),
             help);
  }

  void add_vocabulary(const fs::path& path, const char* kind) {
    for (const std::string& side : sides_of_text()) {
      draft_.add_file(side, "vocab", path);
      draft_.add_text(side, "tokenizer", kind);
    }
  }

  // An encoder of speech reads no text.
  std::vector<std::string> sides_of_text() {
    std::vector<std::string> sides;
    for (const char* side : {"model.encoder", "model.decoder"})
      if (draft_.has(side) && !draft_.has(std::string(side) + ".features")) sides.emplace_back(side);
    return sides;
  }

  void read_ids(const JsonValue& by_token) {
    for (const auto& [token, id] : by_token.members()) made_.tokens[id.integer()] = token;
  }

  std::optional<fs::path> find(const char* name) { return draft_.find(folder_ / name); }
  // The first that is there.
  std::optional<fs::path> any(std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (const auto found = find(name)) return found;
    return {};
  }

  Draft& draft_;
  const fs::path& folder_;
  const Architecture& architecture_;
  FolderTokenizer& made_;
};

}  // namespace

FolderTokenizer add_tokenizer(Draft& draft, const fs::path& folder, const Architecture& architecture,
                              const JsonValue* config) {
  FolderTokenizer made;
  Reader(draft, folder, architecture, made).add(config);
  return made;
}

}  // namespace attnkit::core
