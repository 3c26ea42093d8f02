#include "core/base/text_stream.hpp"

namespace attnkit::core {

std::string TextStream::push(int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string TextStream::finish() { return take(true); }

std::string TextStream::take(bool whole) {
  const std::span<const int32_t> ids = ids_;
  const std::string before = detokenize_(ids.first(complete_)), text = detokenize_(ids);
  const bool half = text.ends_with("\ufffd");
  if ((half && !whole) || text.size() <= before.size()) return "";
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(complete_));
  complete_ = ids_.size();
  // Half a character may turn those before it into U+FFFD: go on behind the one that is no longer there.
  size_t from = before.size();
  while (from < text.size() && (text[from] & 0xc0) == 0x80) ++from;
  return text.substr(from);
}

}  // namespace attnkit::core
