#include "core/model/dense/amx.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <array>
#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace attnkit::core::dense {
namespace {

// The arguments of the last shape(); zeros: this thread has no tiles.
thread_local std::array<int, 3> shaped;

bool given([[maybe_unused]] unsigned feature) {
#if defined(__linux__)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
  return syscall(SYS_arch_prctl, request_permission, feature) == 0;
#else
  return false;
#endif
}

bool ask() {
  constexpr unsigned tiles = 1u << 24, bytes = 1u << 25, tile_data = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & tiles) == 0 || (d & bytes) == 0) return false;
  return given(tile_data);
}

struct Shapes {  // what ldtilecfg reads
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(Shapes) == 64);

__attribute__((target(ATTNKIT_AMX))) void load(const Shapes& shapes) {
  asm volatile("" ::"r"(&shapes) : "memory");  // gcc's intrinsic says that it reads 8 bytes
  _tile_loadconfig(&shapes);
}
__attribute__((target(ATTNKIT_AMX))) void release() { _tile_release(); }

}  // namespace

bool has_amx() {
  static const bool has = ask();
  return has;
}

Tiles::~Tiles() {
  if (shaped[0] > 0) release();
  shaped = {};
}

void Tiles::shape(int first, int second, int inputs) {
  const std::array<int, 3> wanted = {first, second, inputs};
  if (shaped == wanted) return;
  Shapes shapes;
  const int rows[8] = {first, first, second, second, first, second, inputs / 4, inputs / 4};
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = static_cast<uint8_t>(rows[i]);
    shapes.bytes[i] = static_cast<uint16_t>(rows[i] == 0 ? 0 : i == 4 || i == 5 ? inputs : 64);
  }
  load(shapes);
  shaped = wanted;
}

}  // namespace attnkit::core::dense
#endif
