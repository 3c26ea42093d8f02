// Messages of protocol buffers, field by field; they may be cut off or damaged.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace attnkit::core {

struct ProtobufField {
  uint64_t number;
  uint64_t value;          // of an integer, or the bits of a float
  std::string_view bytes;  // of text or of a message
};

// Gives take all fields in order; of one that is cut off the number alone, and none behind it.  Returns whether the
// message is whole.
template <class Take>
bool each_field(std::string_view message, Take&& take) {
  bool whole = true;
  const auto some = [&](uint64_t n) {
    whole = whole && n <= message.size();
    const std::string_view taken = message.substr(0, whole ? n : 0);
    message.remove_prefix(taken.size());
    return taken;
  };
  const auto integer = [&] {
    uint64_t made = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view next = some(1);
      if (next.empty()) return made;
      const auto byte = static_cast<unsigned char>(next[0]);
      made |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return made;
    }
    whole = false;
    return made;
  };
  while (whole && !message.empty()) {
    const uint64_t key = integer();
    if (!whole) return false;
    ProtobufField field{key >> 3, 0, {}};
    switch (key & 7) {
      case 0:
        field.value = integer();
        break;
      case 1:
        field.bytes = some(8);
        break;
      case 2:
        field.bytes = some(integer());
        break;
      case 5: {
        uint32_t bits = 0;
        const std::string_view own = some(sizeof bits);
        std::memcpy(&bits, own.data(), own.size());
        field.value = bits;
        break;
      }
      default:
        return false;
    }
    take(field);
  }
  return whole;
}

}  // namespace attnkit::core
