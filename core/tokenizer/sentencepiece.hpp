// SentencePiece's vocabularies (Kudo and Richardson 2018, arXiv:1808.06226) as values of a tokenizer.json.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tokenizer/huggingface.hpp"

namespace attnkit::core {

// As its files number them, and GGUF's.
enum class PieceType : int64_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct SentencePieces {
  struct Piece {
    std::string text;
    double score = 0;
    PieceType type = PieceType::normal;
  };
  std::vector<Piece> pieces;  // by id
  std::optional<size_t> unknown;
  bool pairs = false;         // joined two by two, the best score first; else the best sum
  bool bytes = false;         // spell what has no token
  std::string charsmap;       // of the normalisation, not base64; empty: none
  bool space_first = true;    // put before every text
  bool single_spaces = true;  // none at the ends, and one for several
  // User-defined pieces are part of the text that is split, and unused ones are no result, as SentencePiece has it;
  // else user-defined ones are found first, and what is between them is normalised by itself.
  bool types_count = false;
};

// Of all but what stands around texts.
nlohmann::json tokenizer_json(const SentencePieces& of);
// The frame of texts: ids of pieces.
nlohmann::json frame_json(const std::vector<std::string>& tokens, std::optional<size_t> begin,
                          std::optional<size_t> end);

// A .model or .spm file.  Texts end with its </s>; nothing begins them.  Throws Error naming the file and what is
// wrong.
std::shared_ptr<const Tokenizer> open_sentencepiece(const std::string& path, const TokenizerUse& use);

}  // namespace attnkit::core
