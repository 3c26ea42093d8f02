#include "core/tokenizer/sequence.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

constexpr int max_depth = 8;

}  // namespace

std::vector<JsonValue> read_sequence(const JsonValue& part, const char* key) {
  if (std::ranges::count(part.place(), '[') >= max_depth)
    part.wrong(fmt::format("is a list in a list, {} deep; fewer are supported", max_depth));
  return part[key].items();
}

}  // namespace attnkit::core
