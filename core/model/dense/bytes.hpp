// Common to weights of integers: inputs rounded to bytes while running, the instructions that multiply bytes, exact
// sums.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "core/base/buffer.hpp"
#include "core/model/dense/amx.hpp"
#include "core/model/dense/walk.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#define ATTNKIT_VNNI "avx512f,avx512vl,avx512bw,avx512vnni"
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace attnkit::core::dense {

constexpr int64_t lanes = panel_outputs;
constexpr int64_t group = 4;       // inputs that are multiplied by one instruction
constexpr int64_t tile_rows = 16;  // of AMX

// The sums of one row and one panel.
struct alignas(64) Sums {
  int32_t of[lanes];
};

inline int64_t groups_of(int64_t inputs) { return (inputs + group - 1) / group; }

#if defined(__x86_64__)
// AVX-VNNI, of processors without AVX-512; and the same instruction as AVX-512 writes it, with which processors that
// have no AVX-VNNI run its kernels in tests.  Each adds to the lanes of acc dot products of four bytes, `a` without a
// sign.  Not the intrinsics, which only functions compiled for one of them may call.
struct AvxVnni {
  __attribute__((target("avx2"), always_inline)) static inline __m256i add_dot(__m256i acc, __m256i a, __m256i b) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
  }
};
struct Avx512Vnni {
  __attribute__((target("avx2"), always_inline)) static inline __m256i add_dot(__m256i acc, __m256i a, __m256i b) {
    asm("%{evex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
    return acc;
  }
};
#elif defined(__aarch64__)
// The bytes at x in each of 4 lanes.
inline int8x16_t four_times(const uint8_t* x) {
  int32_t four;
  std::memcpy(&four, x, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

// Adds to each lane of acc the dot product of four bytes.  Not the intrinsic, which only functions compiled for such
// machines may call: tiles would have to be written once more for them.
inline int32x4_t add_dot(int32x4_t acc, int8x16_t a, int8x16_t b) {
  asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b));
  return acc;
}
#endif

// A row rounded to integers from -127 to 127, plus `shift`, with a scale for each block of `block` inputs.  A NaN or
// infinity makes the scale NaN, and so all that is computed of it.
struct Round {
  const float* x;
  int64_t inputs, block;
  uint8_t* bytes;
  float* scales;
  int32_t shift;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const Round copy = *this;  // a byte that is written could be any of the members'
    for (int64_t k = 0, b = 0; k < copy.inputs; k += copy.block, ++b)
      copy.scales[b] = of_block<Isa>(copy.x + k, std::min(copy.block, copy.inputs - k), copy.bytes + k, copy.shift);
  }
  template <class Isa>
  static ATTNKIT_INLINE float of_block(const float* from, int64_t n, uint8_t* to, int32_t shift) {
    using V = simd::Vec<Isa>;
    // Magnitudes are ordered as the integers of their bits are; infinity and NaN come last.
    constexpr int64_t chains = 4;
    simd::Vector<int32_t, Isa> most[chains] = {};
    const auto compare = [&](const V& v, int64_t c) __attribute__((always_inline)) {
      const auto magnitude = simd::bits_as<int32_t>(v) & INT32_MAX;
      most[c] = simd::select(magnitude > most[c], magnitude, most[c]);
    };
    int64_t k = 0;
    for (; k + chains * lanes <= n; k += chains * lanes)
      for (int64_t c = 0; c < chains; ++c) compare(simd::at<Isa>(from + k + c * lanes), c);
    for (; k < n; k += lanes) {
      V v;
      simd::load(from + k, n - k, v);
      compare(v, 0);
    }
    for (int64_t c = 1; c < chains; ++c) most[0] = simd::select(most[c] > most[0], most[c], most[0]);
    const int32_t bits = simd::largest(most[0]);
    const bool finite = bits < 0x7f800000;
    const float largest = finite ? std::bit_cast<float>(bits) : std::numeric_limits<float>::quiet_NaN();
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f, factor = std::isfinite(inverse) ? inverse : 0.0f;
    const int32_t zero = 0x4b400000 - shift;
    const auto rounded = [&](const V& v) __attribute__((always_inline)) {
      return simd::bits_as<int32_t>(v * factor + 12582912.0f) - zero;  // 1.5 * 2^23: rounds into the low bits
    };
    for (k = 0; k + lanes <= n; k += lanes) simd::store_as(rounded(simd::at<Isa>(from + k)), to + k);
    if (k < n) {
      V v;
      simd::load(from + k, n - k, v);
      uint8_t last[lanes];
      simd::store_as(rounded(v), last);
      std::memcpy(to + k, last, static_cast<size_t>(n - k));
    }
    return largest / 127.0f;
  }
};

// The bytes of rows; scales and sums of their blocks, row by row.
struct RoundedRows {
  const uint8_t* bytes;
  int64_t stride;
  const float* scales;
  const int32_t* sums;
};

// Borrows memory of this thread, which the next call takes again.  Behind a row are zeros up to a multiple of 64.
// block: how many inputs share a scale and are summed; 0: all share a scale, and there are no sums.
RoundedRows rounded(Threads& threads, const DenseRows& rows, int64_t inputs, int32_t shift, int64_t block = 0);

// Tiles take nearly as long for a few rows as for 16.
inline ByteKernel kernel_of(ByteKernel with, int64_t rows) {
  return with == ByteKernel::amx && rows < 4 ? ByteKernel::vnni : with;
}

template <class V>
ATTNKIT_INLINE auto as_floats(const V& x) {
  if constexpr (simd::is_pair<V>) {
    using Half = decltype(as_floats(x.low));
    return simd::Pair<Half>{as_floats(x.low), as_floats(x.high)};
  } else {
    return __builtin_convertvector(x, typename simd::RegisterOf<float, sizeof(V)>::Type);
  }
}

// The largest tile of rows and panels that the registers of each hold.
template <int amx_rows, int amx_columns, int vnni_columns>
struct Isas {
  struct Amx {
    static constexpr int rows = amx_rows, columns = amx_columns;
    static constexpr bool any_rows = true;
  };
  struct Vnni {
    static constexpr int rows = 8, columns = vnni_columns;
  };
  struct Avx2 {
    static constexpr int rows = 4, columns = 1;
  };
  template <class D>
  struct Dots {
    static constexpr int rows = 6, columns = 1;
  };
  struct Neon {
    static constexpr int rows = 4, columns = 1;
  };
  struct Dot : Neon {};
  struct Plain {
    static constexpr int rows = 2, columns = 1;
  };
};

// Runs a piece with the tiles that Isas has for `with`.
template <class Isas, class Piece>
void dispatch(ByteKernel with, const Piece& piece) {
  switch (with) {
#if defined(__x86_64__)
    case ByteKernel::amx: {
      const Tiles tiles;
      return piece.template operator()<typename Isas::Amx>();
    }
    case ByteKernel::vnni:
      return piece.template operator()<typename Isas::Vnni>();
    case ByteKernel::avx_vnni:
      return has_avx_vnni() ? piece.template operator()<typename Isas::template Dots<AvxVnni>>()
                            : piece.template operator()<typename Isas::template Dots<Avx512Vnni>>();
    case ByteKernel::avx2:
      return piece.template operator()<typename Isas::Avx2>();
#elif defined(__aarch64__)
    case ByteKernel::dot:
      return piece.template operator()<typename Isas::Dot>();
    case ByteKernel::neon:
      return piece.template operator()<typename Isas::Neon>();
#endif
    default:
      return piece.template operator()<typename Isas::Plain>();
  }
}

}  // namespace attnkit::core::dense
