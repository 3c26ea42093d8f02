#include "core/tokenizer/renumbered.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/formats/yaml.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/spelling.hpp"
#include "core/tokenizer/token_decoder.hpp"

namespace attnkit::core {
namespace {

constexpr uint64_t max_file = uint64_t{64} << 20;
constexpr int64_t max_id = 1 << 21;
constexpr std::string_view mark = "\u2581", code_begin = ">>", code_end = "<<";

class Renumbered : public Tokenizer {
 public:
  Renumbered(std::shared_ptr<const Tokenizer> own, const JsonValue& ids, const TokenizerUse& use)
      : own_(std::move(own)), max_ids_(use.max_ids) {
    for (const auto& [token, id] : ids.members()) {
      const int64_t number = id.integer();
      if (number < 0 || number > max_id) id.wrong(fmt::format("is {}; ids are 0 to {}", number, max_id));
      add(token, static_cast<int32_t>(number), ids.path());
    }
    for (const std::string& token : use.more) add(token, static_cast<int32_t>(tokens_.size()), ids.path());
    tokens_.resize(std::max(tokens_.size(), static_cast<size_t>(use.size)));
    const int32_t unknown = named("<unk>", "of what has no token", ids.path());
    for (int32_t id = 0; id < own_->size(); ++id) {
      if (own_->token(id) == "<0x00>") {
        const nlohmann::json bytes = {{"type", "ByteFallback"}};
        decode_bytes_ = read_token_decoder(JsonValue(bytes, ids.path()));
      }
      const auto found = ids_.find(own_->token(id));
      theirs_.push_back(found == ids_.end() ? unknown : found->second);
    }
    const std::string end = use.end.empty() ? "</s>" : use.end;
    if (use.ends || ids_.contains(end)) end_ = named(end, "that ends texts", ids.path());
    if (!use.begin.empty()) begin_ = named(use.begin, "\"begin\"", ids.path());
    target_ = use.target;
    special_.resize(tokens_.size());
    const auto hide = [&](int32_t id) {
      if (id >= 0) special_[static_cast<size_t>(id)] = true;
    };
    for (const char* token : {"<s>", "</s>", "<pad>", "<unk>"})
      if (const auto found = ids_.find(std::string_view(token)); found != ids_.end()) hide(found->second);
    for (const int32_t id : {begin_, end_}) hide(id);
    for (const std::string& token : use.more) hide(ids_.at(token));
    for (const auto& [token, id] : ids_)
      if (token.starts_with(code_begin) && token.ends_with(code_end)) hide(id);
  }

  std::vector<int32_t> tokenize(std::string_view text) const override {
    std::vector<int32_t> ids;
    if (begin_ >= 0 && !target_) ids.push_back(begin_);
    if (text.starts_with(code_begin)) {
      const size_t end = text.find(code_end);
      const auto code = end == std::string_view::npos ? ids_.end() : ids_.find(text.substr(0, end + code_end.size()));
      if (code != ids_.end()) {
        ids.push_back(code->second);
        text.remove_prefix(code->first.size());
      }
    }
    for (const int32_t id : own_->tokenize(text)) ids.push_back(theirs_[static_cast<size_t>(id)]);
    if (ids.size() >= max_ids_) ids.resize(max_ids_ - 1);
    return ids;
  }

  std::string detokenize(const int32_t* ids, size_t n) const override {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < n; ++i)
      if (!special_[checked(ids, i)]) tokens.push_back(token(ids[i]));
    if (decode_bytes_) decode_bytes_(tokens);
    std::string text;
    for (const std::string& part : tokens) text += part;
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) text.replace(at, mark.size(), " ");
    const size_t first = text.find_first_not_of(' ');
    return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') + 1 - first);
  }

  int size() const override { return static_cast<int>(tokens_.size()); }
  int32_t begin_id() const override { return begin_; }
  int32_t end_id() const override { return end_; }
  const std::string& token(int32_t id) const override { return tokens_.at(static_cast<size_t>(id)); }

 private:
  void add(const std::string& token, int32_t id, const std::string& path) {
    if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
    std::string& place = tokens_[static_cast<size_t>(id)];
    if (!place.empty()) fail(ATTN_INVALID, "{}: {} and {} have the same id {}", path, quote(place), quote(token), id);
    place = token;
    ids_[token] = id;
  }

  int32_t named(const std::string& token, const char* what, const std::string& path) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) fail(ATTN_INVALID, "{}: has no token {}, {}", path, quote(token), what);
    return found->second;
  }

  std::shared_ptr<const Tokenizer> own_;
  std::vector<int32_t> theirs_;  // by own id
  std::vector<std::string> tokens_;
  std::vector<bool> special_;
  TokenDecoder decode_bytes_;  // none: there are no tokens of bytes
  TokenIds ids_;
  int32_t begin_ = -1, end_ = -1;
  bool target_ = false;
  size_t max_ids_;
};

}  // namespace

nlohmann::json read_ids(const std::string& path) {
  if (path.ends_with(".yml") || path.ends_with(".yaml")) return read_yaml(path, max_file);
  const nlohmann::json read = read_json(path, max_file);
  if (!read.is_array()) return read;
  nlohmann::json ids = nlohmann::json::object();
  for (const JsonValue& token : JsonValue(read, path).items()) ids[token.text()] = ids.size();
  return ids;
}

std::shared_ptr<const Tokenizer> renumbered(std::shared_ptr<const Tokenizer> own, const JsonValue& ids,
                                            const TokenizerUse& use) {
  return std::make_shared<Renumbered>(std::move(own), ids, use);
}

}  // namespace attnkit::core
