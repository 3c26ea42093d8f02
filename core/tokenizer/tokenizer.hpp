// From text to the tokens that a model takes, and back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.hpp"

namespace attnkit::core {

// Immutable: any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // All ids that stand for the text, from the beginning that the tokenizer itself gives it, if any, up to but without
  // end_id(), which hosts add.  Throws Error: no UTF-8, or what cannot be spelled.
  virtual std::vector<int32_t> tokenize(std::string_view text) const = 0;
  // Special tokens are left out.  Throws Error: an id outside.
  virtual std::string detokenize(const int32_t* ids, size_t n) const = 0;

  virtual int size() const = 0;
  virtual int32_t begin_id() const = 0;
  virtual int32_t end_id() const = 0;
  virtual const std::string& token(int32_t id) const = 0;

 protected:
  // The id of token i as an index.  Throws Error: outside.
  size_t checked(const int32_t* ids, size_t i) const {
    if (ids[i] < 0 || ids[i] >= size())
      fail(ATTN_INVALID, "token {} is {}; the vocabulary has ids 0 to {}", i, ids[i], size() - 1);
    return static_cast<size_t>(ids[i]);
  }
};

}  // namespace attnkit::core
