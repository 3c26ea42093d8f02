#include "core/tokenizer/sentencepiece.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/formats/protobuf.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/base64.hpp"
#include "core/tokenizer/renumbered.hpp"

namespace attnkit::core {
namespace {

using nlohmann::json;

constexpr uint64_t max_file = uint64_t{64} << 20;
constexpr size_t max_piece = 1024;   // bytes; one is split in all ways while merges are read
constexpr int max_spaces = 1 << 20;  // that a text of tokens may begin with
constexpr const char* mark = "\u2581";

bool is_added(const SentencePieces& of, PieceType type) {
  return type == PieceType::control || type == PieceType::unknown ||
         (type == PieceType::user_defined && !of.types_count);
}

// Whether a text may be spelled with it, or joined of it.
bool is_joined(const SentencePieces& of, PieceType type) {
  if (!of.types_count) return type != PieceType::control && type != PieceType::unknown;
  return type == PieceType::normal || type == PieceType::unused;
}

json ids_of(const SentencePieces& of, std::initializer_list<PieceType> types) {
  json ids = json::array();
  for (size_t id = 0; of.types_count && id < of.pieces.size(); ++id)
    if (std::ranges::find(types, of.pieces[id].type) != types.end()) ids.push_back(id);
  return ids;
}

json user_defined(const SentencePieces& of) {
  json texts = json::array();
  for (const SentencePieces::Piece& piece : of.pieces)
    if (of.types_count && piece.type == PieceType::user_defined) texts.push_back(piece.text);
  return texts;
}

// Two tokens that make a third, in the order of its score.
json merges_of(const SentencePieces& of, const json& ids) {
  struct Pair {
    double score;
    int64_t left, right;
    std::string first, second;
  };
  std::vector<Pair> pairs;
  for (const SentencePieces::Piece& piece : of.pieces) {
    if (!is_joined(of, piece.type)) continue;
    for (size_t n = 1; n < piece.text.size(); ++n) {
      if ((static_cast<unsigned char>(piece.text[n]) & 0xc0u) == 0x80u) continue;  // inside a character
      const std::string first = piece.text.substr(0, n), second = piece.text.substr(n);
      const auto left = ids.find(first), right = ids.find(second);
      const auto may_be = [&](const auto& part) {
        return part != ids.end() && (!of.types_count || is_joined(of, of.pieces[part->template get<size_t>()].type));
      };
      if (may_be(left) && may_be(right))
        pairs.push_back({piece.score, left->get<int64_t>(), right->get<int64_t>(), first, second});
    }
  }
  std::ranges::stable_sort(pairs, [](const Pair& a, const Pair& b) {
    return std::tuple(-a.score, a.left, a.right) < std::tuple(-b.score, b.left, b.right);
  });
  json merges = json::array();
  for (const Pair& pair : pairs) merges.push_back({pair.first, pair.second});
  return merges;
}

json model_of(const SentencePieces& of) {
  json made = {{"type", of.pairs ? "BPE" : "Unigram"}, {"byte_fallback", of.bytes}, {"vocab", json::array()}};
  if (!of.pairs) {
    for (const SentencePieces::Piece& piece : of.pieces) made["vocab"].push_back({piece.text, piece.score});
    if (of.unknown) made["unk_id"] = *of.unknown;
    made["unused"] = ids_of(of, {PieceType::control, PieceType::unknown, PieceType::unused, PieceType::byte});
    made["user_defined"] = ids_of(of, {PieceType::user_defined});
    made["single"] = of.types_count;
    return made;
  }
  json ids = json::object();
  for (size_t id = 0; id < of.pieces.size(); ++id) ids[of.pieces[id].text] = id;
  made["merges"] = merges_of(of, ids);
  made["fuse_unk"] = true;
  made["kept"] = user_defined(of);
  made["unused"] = ids_of(of, {PieceType::unused});
  if (of.unknown) made["unk_token"] = of.pieces[*of.unknown].text;
  made["vocab"] = std::move(ids);
  return made;
}

json replace(const char* kind, const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
}

[[noreturn]] void broken(const std::string& path) {
  fail(ATTN_INVALID, "{}: is no SentencePiece file, or is damaged", path);
}

template <class Take>
void each_field_of(std::string_view message, const std::string& path, Take&& take) {
  if (!each_field(message, take)) broken(path);
}

SentencePieces::Piece piece_of(std::string_view message, const std::string& path) {
  SentencePieces::Piece made;
  each_field_of(message, path, [&](const ProtobufField& field) {
    if (field.number == 1) made.text = field.bytes;
    if (field.number == 2) {
      const auto bits = static_cast<uint32_t>(field.value);
      float score = 0;
      std::memcpy(&score, &bits, sizeof score);
      made.score = score;
    }
    if (field.number == 3) made.type = static_cast<PieceType>(field.value);
  });
  if (made.text.empty() || valid_utf8(made.text) < made.text.size() || !(std::abs(made.score) < 1e30)) broken(path);
  return made;
}

// Fairseq's ids: those of its dictionaries, and the pieces behind the three that every file begins with.
json fairseq_ids(const std::vector<std::string>& tokens, const std::string& path) {
  json ids = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}};
  for (size_t id = 0; id < tokens.size(); ++id)
    if (id < 3 ? tokens[id] != std::array{"<unk>", "<s>", "</s>"}[id] : ids.contains(tokens[id]))
      fail(ATTN_INVALID, "{}: its token {} is {}; fairseq's numbering needs <unk>, <s>, </s>, and no others of its own",
           path, id, quote(tokens[id]));
    else if (id >= 3)
      ids[tokens[id]] = id + 1;
  return ids;
}

// Returns the tokens that are in the list of ids but not in the file, with ids behind the file's.
json others_of(const std::vector<std::string>& tokens, const JsonValue& ids) {
  const std::set<std::string> own(tokens.begin(), tokens.end());
  json others = json::object();
  for (const auto& [token, id] : ids.members())
    if (!own.contains(token)) others[token] = tokens.size() + others.size();
  return others;
}

}  // namespace

json tokenizer_json(const SentencePieces& of) {
  json added = json::array(), normalizers = json::array(), decoders = json::array();
  for (size_t id = 0; id < of.pieces.size(); ++id)
    if (const auto& [text, score, type] = of.pieces[id]; is_added(of, type))
      added.push_back(
          {{"id", id}, {"content", text}, {"special", type != PieceType::user_defined}, {"normalized", false}});
  if (!of.charsmap.empty())
    normalizers.push_back({{"type", "Precompiled"},
                           {"precompiled_charsmap", to_base64(of.charsmap)},
                           {"longest", true},
                           {"kept", user_defined(of)}});
  if (of.single_spaces) {
    normalizers.push_back({{"type", "Strip"}, {"character", " "}});
    normalizers.push_back(replace("Regex", " {2,}", " "));
  }
  if (of.space_first) normalizers.push_back({{"type", "Prepend"}, {"prepend", mark}});
  normalizers.push_back(replace("String", " ", mark));
  // Those of the text itself as well, and the one in front of nothing else.
  if (of.single_spaces) normalizers.push_back({{"type", "Strip"}, {"character", mark}, {"strip_left", false}});
  decoders = {replace("String", mark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (of.space_first)
    decoders.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", of.single_spaces ? max_spaces : 1}, {"stop", 0}});
  return {{"model", model_of(of)},
          {"added_tokens", added},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

json frame_json(const std::vector<std::string>& tokens, std::optional<size_t> begin, std::optional<size_t> end) {
  json single = json::array(), specials = json::object();
  const auto add = [&](std::optional<size_t> id) {
    if (!id) return;
    specials[tokens[*id]] = {{"ids", {*id}}};
    single.push_back({{"SpecialToken", {{"id", tokens[*id]}}}});
  };
  add(begin);
  single.push_back({{"Sequence", {{"id", "A"}}}});
  add(end);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", specials}};
}

std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path, const TokenizerUse& use) {
  const std::vector<std::byte> file = read_file(path, max_file);
  SentencePieces made;
  uint64_t kind = 1;
  int64_t end = 2;
  bool escapes = true, suffix = false;
  each_field_of({reinterpret_cast<const char*>(file.data()), file.size()}, path, [&](const ProtobufField& field) {
    if (field.number == 1) made.pieces.push_back(piece_of(field.bytes, path));
    if (field.number == 2)
      each_field_of(field.bytes, path, [&](const ProtobufField& of) {
        if (of.number == 3) kind = of.value;
        if (of.number == 24) suffix = of.value != 0;
        if (of.number == 35) made.bytes = of.value != 0;
        if (of.number == 42) end = static_cast<int32_t>(of.value);
      });
    if (field.number == 3)
      each_field_of(field.bytes, path, [&](const ProtobufField& of) {
        if (of.number == 2) made.charsmap = of.bytes;
        if (of.number == 3) made.space_first = of.value != 0;
        if (of.number == 4) made.single_spaces = of.value != 0;
        if (of.number == 5) escapes = of.value != 0;
      });
  });
  if (made.pieces.empty()) broken(path);
  if (kind != 1 && kind != 2)
    fail(ATTN_INVALID, "{}: is a model of type {}, which is not supported; 1 (unigram) and 2 (pairs) are", path, kind);
  if (suffix || !escapes) fail(ATTN_INVALID, "{}: has its white space otherwise than is supported", path);
  made.pairs = kind == 2;
  made.types_count = true;
  std::vector<std::string> tokens;
  for (const SentencePieces::Piece& piece : made.pieces) {
    if (made.pairs && piece.text.size() > max_piece)
      fail(ATTN_INVALID, "{}: a piece has {} bytes, {} are the most where pairs are merged: {}...", path,
           piece.text.size(), max_piece, quote(piece.text.substr(0, 20)));
    if (piece.type == PieceType::unknown && !made.unknown) made.unknown = tokens.size();
    tokens.push_back(piece.text);
  }
  const bool ends = end >= 0 && static_cast<size_t>(end) < tokens.size();
  json document = tokenizer_json(made);
  if (use.ids.empty() && !use.fairseq)
    for (size_t i = 0; i < use.more.size(); ++i)
      document["added_tokens"].push_back(
          {{"id", tokens.size() + i}, {"content", use.more[i]}, {"special", true}, {"normalized", false}});
  document["post_processor"] = frame_json(tokens, {}, ends ? std::optional(static_cast<size_t>(end)) : std::nullopt);
  if (use.ids.empty() && !use.fairseq) return read_tokenizer_json(JsonValue(document, path), use);
  const json list = use.fairseq ? fairseq_ids(tokens, path) : read_ids(use.ids);
  const JsonValue ids(list, use.fairseq ? path : use.ids);
  if (!made.pairs) document["model"]["others"] = others_of(tokens, ids);
  return renumbered(read_tokenizer_json(JsonValue(document, path), {}), ids, use);
}

}  // namespace attnkit::core
