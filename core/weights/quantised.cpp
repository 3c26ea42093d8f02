#include "core/weights/quantised.hpp"

#include <algorithm>
#include <cstring>

#include "core/base/half.hpp"

namespace attnkit::core {
namespace {

float half_at(const uint8_t* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof half);
  return from_half(half);
}

// 32 numbers: a scale, then a byte each.
void q8_0(const uint8_t* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(static_cast<int8_t>(in[2 + i]));
}

// 32 numbers: a scale, then 4 bits each from -8; the low halves of the bytes first.
void q4_0(const uint8_t* in, float* out) {
  const float scale = half_at(in);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>((in[2 + i] & 15) - 8);
    out[i + 16] = scale * static_cast<float>((in[2 + i] >> 4) - 8);
  }
}

// 32 numbers: a scale and the least, then 4 bits each.
void q4_1(const uint8_t* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(in[4 + i] & 15) + least;
    out[i + 16] = scale * static_cast<float>(in[4 + i] >> 4) + least;
  }
}

// 256 numbers in eight parts: scales of the parts' scales and least numbers, these in 6 bits, then 4 bits each.
void q4_k(const uint8_t* in, float* out) {
  const float scale = half_at(in), least = half_at(in + 2);
  const uint8_t *six = in + 4, *bits = in + 16;
  for (int part = 0; part < 8; ++part) {
    const int i = part % 4, s = part < 4 ? six[i] & 63 : (six[8 + i] & 15) | (six[i] >> 2 & 48);
    const int m = part < 4 ? six[4 + i] & 63 : (six[8 + i] >> 4) | (six[4 + i] >> 2 & 48);
    const float of_part = scale * static_cast<float>(s), from = least * static_cast<float>(m);
    for (int n = 0; n < 32; ++n) {
      const uint8_t two = bits[part / 2 * 32 + n];
      out[part * 32 + n] = of_part * static_cast<float>(part % 2 == 0 ? two & 15 : two >> 4) - from;
    }
  }
}

// 256 numbers in sixteen parts: 4 low bits of each, 2 high bits, the parts' scales, a scale of these; from -32.
void q6_k(const uint8_t* in, float* out) {
  const float scale = half_at(in + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, quarter = i / 32 % 4, n = i % 32;
    const uint8_t low = in[half * 64 + quarter % 2 * 32 + n], high = in[128 + half * 32 + n];
    const int q = (quarter < 2 ? low & 15 : low >> 4) | (high >> 2 * quarter & 3) << 4;
    const auto of_part = static_cast<int8_t>(in[192 + i / 16]);
    out[i] = scale * static_cast<float>(of_part) * static_cast<float>(q - 32);
  }
}

struct Kind {
  const char* type;
  size_t numbers, bytes;
  void (*make)(const uint8_t*, float*);
};
constexpr Kind kinds[] = {
    {"Q8_0", 32, 34, q8_0},   {"Q4_0", 32, 18, q4_0},   {"Q4_1", 32, 20, q4_1},
    {"Q4_K", 256, 144, q4_k}, {"Q6_K", 256, 210, q6_k},
};

const Kind* kind_of(const std::string& type) {
  const auto* found = std::ranges::find_if(kinds, [&](const Kind& kind) { return type == kind.type; });
  return found == std::end(kinds) ? nullptr : found;
}

}  // namespace

bool is_quantised(const std::string& type) { return kind_of(type) != nullptr; }

std::vector<float> dequantised(const std::string& type, std::span<const std::byte> blocks) {
  const Kind& kind = *kind_of(type);
  std::vector<float> made(blocks.size() / kind.bytes * kind.numbers);
  const auto* in = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t i = 0; i < blocks.size() / kind.bytes; ++i)
    kind.make(in + i * kind.bytes, made.data() + i * kind.numbers);
  return made;
}

}  // namespace attnkit::core
