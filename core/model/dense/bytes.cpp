#include "core/model/dense/bytes.hpp"

#include <cstdlib>
#include <numeric>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace attnkit::core {

bool has_avx_vnni() {
#if defined(__x86_64__)
  // Leaf 7.1, EAX bit 4, which not every compiler knows; that the system keeps the registers is what level 1 says.
  static const bool known = [] {
    unsigned a = 0, b, c, d;
    return simd::level >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & 1u << 4) != 0;
  }();
  return known;
#else
  return false;
#endif
}

bool has(ByteKernel kernel) {
#if defined(__x86_64__)
  static const bool avx512_vnni = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl");
  const bool vnni = simd::level == 2 && avx512_vnni;
  switch (kernel) {
    case ByteKernel::amx:
      return vnni && dense::has_amx();
    case ByteKernel::vnni:
      return vnni;
    case ByteKernel::avx_vnni:
      return simd::level >= 1 && (avx512_vnni || has_avx_vnni());
    case ByteKernel::avx2:
      return simd::level >= 1;
    default:
      break;
  }
#elif defined(__aarch64__)
  if (kernel == ByteKernel::neon) return simd::level >= 1;
#if defined(__linux__)
  if (kernel == ByteKernel::dot) return simd::level >= 1 && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
#endif
  return kernel == ByteKernel::plain;
}

ByteKernel fastest_bytes() {
  const char* wanted = std::getenv("ATTNKIT_INSTRUCTIONS");
  const auto without = [&](const char* name) { return wanted && std::string_view(wanted) == name; };
  if (has(ByteKernel::amx) && !without("avx512")) return ByteKernel::amx;
  if (has(ByteKernel::dot) && !without("neon")) return ByteKernel::dot;
  for (const ByteKernel kernel : {ByteKernel::vnni, ByteKernel::avx_vnni, ByteKernel::avx2, ByteKernel::neon})
    if (has(kernel) && !(kernel == ByteKernel::avx_vnni && without("avx2"))) return kernel;
  return ByteKernel::plain;
}

namespace dense {

RoundedRows rounded(Threads& threads, const DenseRows& rows, int64_t inputs, int32_t shift, int64_t block) {
  // They grow to the largest layer and then stay.
  static thread_local Buffer bytes, block_scales, block_sums;
  // An odd number of lines: rows one below the other do not meet in the same sets of a cache.
  const int64_t stride = ((inputs + 63) / 64 | 1) * 64, blocks = block > 0 ? (inputs + block - 1) / block : 0;
  auto* u = bytes.get<uint8_t>(rows.count * stride);
  const int64_t next = std::max<int64_t>(1, blocks);  // scales of a row
  auto* scales = block_scales.get<float>(rows.count * next);
  auto* sums = block_sums.get<int32_t>(rows.count * blocks);
  threads.each(rows.count, 32768 / std::max<int64_t>(1, inputs) + 1, [&](int64_t begin, int64_t end, uint32_t) {
    for (int64_t r = begin; r < end; ++r) {
      uint8_t* row = u + r * stride;
      simd::dispatch(
          Round{rows.x + r * rows.x_stride, inputs, blocks > 0 ? block : inputs, row, scales + r * next, shift});
      std::fill(row + inputs, row + stride, uint8_t{0});
      for (int64_t b = 0; b < blocks; ++b) {
        const auto* first = reinterpret_cast<const int8_t*>(row + b * block);
        sums[r * blocks + b] = std::accumulate(first, first + block, 0);
      }
    }
  });
  return {u, stride, scales, sums};
}

}  // namespace dense
}  // namespace attnkit::core
