// The text of tokens that come one by one: what is given out is never taken back, and never half a character.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace attnkit::core {

// The tokens' text depends on those before them, but not beyond the first of a word: so each is spelled behind the last
// few that were complete, and what they already said is left out.
class TextStream {
 public:
  using Detokenize = std::function<std::string(std::span<const int32_t>)>;
  explicit TextStream(Detokenize detokenize) : detokenize_(std::move(detokenize)) {}

  // Returns what this token adds; nothing while the bytes of a character are incomplete.
  std::string push(int32_t id);
  // Returns what was kept back, as detokenize has it: U+FFFD for half a character.
  std::string finish();

 private:
  std::string take(bool whole);

  Detokenize detokenize_;
  std::vector<int32_t> ids_;  // the last that were complete, and those since
  size_t complete_ = 0;       // of ids_
};

}  // namespace attnkit::core
