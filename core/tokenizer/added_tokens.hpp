// Tokens that a text may hold as they are, found before it is split into words.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attnkit::core {

struct AddedToken {
  std::u32string content;
  int32_t id = -1;
  bool single_word = false;                      // only where no letter or digit touches it
  bool takes_left = false, takes_right = false;  // the white space beside it belongs to it
};

class AddedTokens {
 public:
  void add(AddedToken token);

  // Parts the text, in order: `other` takes what lies between tokens and is not empty, `token` the ids of those found.
  // The leftmost wins, of several there the longest.
  void split(std::u32string_view text, const std::function<void(std::u32string_view)>& other,
             const std::function<void(int32_t)>& token) const;

 private:
  const AddedToken* match(std::u32string_view text, size_t at) const;

  std::map<char32_t, std::vector<AddedToken>> by_first_;  // the longest first
};

}  // namespace attnkit::core
