// Stands in for abi/include/attnkit/kernels/cuda/device.hpp, which says what these are.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>

namespace emulator {

template <class T>
constexpr uint32_t unit_of = sizeof(T) % 4 == 0 ? 4 : 2;

// An index that knows the line where it stands.
struct Index {
  template <class I, std::enable_if_t<std::is_integral_v<I> || std::is_enum_v<I>, int> = 0>
  __forceinline__ Index(I i, EMULATOR_SITE) : i(static_cast<int64_t>(i)), site{file, line} {}
  int64_t i;
  Site site;
};

template <class T>
class Shared;

// An element: reading and writing it is held against what other threads do.
template <class T>
class Element {
 public:
  __forceinline__ Element(uint32_t offset, Part part, Site site) : offset_(offset), part_(part), site_(site) {}
  Element(const Element&) = default;
  __forceinline__ operator T() const {
    T value;
    std::memcpy(&value, access(offset_, sizeof(T), part_, Access::kRead, site_), sizeof(T));
    return value;
  }
  __forceinline__ const Element& operator=(const T& value) const {
    std::memcpy(access(offset_, sizeof(T), part_, Access::kWrite, site_), &value, sizeof(T));
    return *this;
  }
  const Element& operator=(const Element& other) const { return *this = static_cast<T>(other); }
  const Element& operator+=(const T& x) const { return *this = static_cast<T>(*this) + x; }
  const Element& operator-=(const T& x) const { return *this = static_cast<T>(*this) - x; }
  const Element& operator*=(const T& x) const { return *this = static_cast<T>(*this) * x; }
  const Element& operator/=(const T& x) const { return *this = static_cast<T>(*this) / x; }
  Shared<T> operator&() const { return {offset_, part_}; }
  T exchange(const T& value) const {
    auto* at = access(offset_, sizeof(T), part_, Access::kAtomic, site_);
    T before;
    std::memcpy(&before, at, sizeof(T));
    std::memcpy(at, &value, sizeof(T));
    return before;
  }

 private:
  uint32_t offset_;
  Part part_;
  Site site_;
};

// A pointer into shared memory; it does not leave its part.
template <class T>
class Shared {
  static_assert(sizeof(T) % 2 == 0, "accesses are told apart in steps of two bytes");

 public:
  Shared() = default;
  Shared(int64_t offset, Part part) : offset_(offset), part_(part) {}
  __forceinline__ Element<T> operator[](const Index& index) const {
    const int64_t at = offset_ + index.i * static_cast<int64_t>(sizeof(T));
    if (at < part_.begin || at + static_cast<int64_t>(sizeof(T)) > part_.end)
      fail_beyond(at, sizeof(T), part_, index.site);
    return {static_cast<uint32_t>(at), part_, index.site};
  }
  Shared operator+(int64_t n) const { return {offset_ + n * static_cast<int64_t>(sizeof(T)), part_}; }
  template <class U>
  Shared<U> as() const {
    return {offset_, part_};
  }
  int64_t offset() const { return offset_; }
  Part part() const { return part_; }

 private:
  int64_t offset_ = 0;
  Part part_{};
};

}  // namespace emulator

template <class T>
T atomicAdd(emulator::Shared<T> to, std::type_identity_t<T> x, EMULATOR_SITE) {
  const auto element = to[emulator::Index(0, line, file)];
  const T before = element.exchange(T{});
  element.exchange(before + x);
  return before;
}

#define ATTNKIT_SHARED(T, name, n) \
  static char name##_key;          \
  const auto name = ::attnkit::cuda::declared<T>(&name##_key, n)

namespace attnkit::cuda {

template <class T>
using Shared = emulator::Shared<T>;

template <class T>
Shared<T> declared(const void* key, size_t n) {
  const emulator::Part part =
      emulator::static_shared(key, n * sizeof(T), std::max<size_t>(alignof(T), 16), emulator::unit_of<T>);
  return {part.begin, part};
}

class SharedParts {
 public:
  SharedParts() : all_(emulator::dynamic_shared()), next_(all_.begin) {}
  template <class T>
  Shared<T> take(int64_t n, EMULATOR_SITE) {
    const uint32_t begin = next_, end = begin + static_cast<uint32_t>(n) * static_cast<uint32_t>(sizeof(T));
    if (end > all_.end)
      emulator::fail("the kernel takes " + std::to_string(end - all_.begin) +
                         " bytes of dynamic shared memory and was " + "launched with " +
                         std::to_string(all_.end - all_.begin),
                     {file, line});
    next_ = (end + 15) / 16 * 16;
    return {begin, {begin, end, emulator::unit_of<T>}};
  }

 private:
  emulator::Part all_;
  uint32_t next_;
};

template <class U, class T>
Shared<U> as(Shared<T> p) {
  return p.template as<U>();
}
template <class U, class T>
U* as(T* p) {
  return reinterpret_cast<U*>(p);
}

template <class T>
void copy_async(Shared<T> to, const T* from, EMULATOR_SITE) {
  emulator::begin_copy(static_cast<uint32_t>(to.offset()), 16, to.part(), from, {file, line});
}
inline void commit_copies() { emulator::commit_copies(); }
template <int kGroups>
void wait_for_copies(EMULATOR_SITE) {
  emulator::wait_for_copies(kGroups, {file, line});
}

inline float as_tf32(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) return std::bit_cast<float>(bits & 0xFFFFE000u);
  return std::bit_cast<float>((bits + 0x1000u) & 0xFFFFE000u);
}

namespace stand_in {

inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// The numbers of a lane in a product, each number widened to f32.
struct Fragment {
  std::array<float, 8> a;
  std::array<float, 4> b;
  std::array<float, 4> d;
};

// d += a b, 16 x 8 of k; where an element of an operand lies in which lane says PTX's chapter on mma.
template <int kDepth>
void multiply(void* const* brought, unsigned mask, emulator::Site site) {
  if (mask != 0xFFFFFFFFu) emulator::fail("a matrix product needs all 32 lanes", site);
  double a[16][kDepth], b[kDepth][8];
  for (int l = 0; l < 32; ++l) {
    const auto& from = *static_cast<Fragment*>(brought[l]);
    const int row = l / 4, t = l % 4;
    for (int i = 0; i < kDepth / 2; ++i)
      if constexpr (kDepth == 16)
        a[row + (i / 2 % 2) * 8][t * 2 + i % 2 + i / 4 * 8] = double{from.a[static_cast<size_t>(i)]};
      else
        a[row + i % 2 * 8][t + i / 2 * 4] = double{from.a[static_cast<size_t>(i)]};
    for (int i = 0; i < kDepth / 4; ++i)
      b[kDepth == 16 ? t * 2 + i % 2 + i / 2 * 8 : t + i * 4][row] = double{from.b[static_cast<size_t>(i)]};
  }
  for (int row = 0; row < 16; ++row) {
    const auto own = [&](int column) -> float& {
      return static_cast<Fragment*>(brought[row % 8 * 4 + column / 2])
          ->d[static_cast<size_t>(row / 8 * 2 + column % 2)];
    };
    double sums[8];
    for (int c = 0; c < 8; ++c) sums[c] = double{own(c)};
    for (int k = 0; k < kDepth; ++k)  // columns inside, which a compiler takes side by side
      for (int c = 0; c < 8; ++c) sums[c] += a[row][k] * b[k][c];
    for (int c = 0; c < 8; ++c) own(c) = static_cast<float>(sums[c]);
  }
}

}  // namespace stand_in

template <class T>
float half_of(uint32_t pair, int i) {
  return stand_in::widened(T{static_cast<uint16_t>(pair >> (16 * i))});
}

template <class T>
uint32_t pair_of(float low, float high) {
  const auto bits = [](float x) -> uint32_t {
    if constexpr (std::is_same_v<T, __half>)
      return __float2half_rn(x).bits;
    else
      return __float2bfloat16_rn(x).bits;
  };
  return bits(low) | bits(high) << 16;
}

template <class T>
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMULATOR_SITE) {
  stand_in::Fragment mine{};
  for (int i = 0; i < 8; ++i) mine.a[static_cast<size_t>(i)] = half_of<T>(a[i / 2], i % 2);
  for (int i = 0; i < 4; ++i) mine.b[static_cast<size_t>(i)] = half_of<T>(b[i / 2], i % 2);
  std::copy(d, d + 4, mine.d.begin());
  emulator::collective(0xFFFFFFFFu, stand_in::multiply<16>, &mine, {file, line});
  std::copy(mine.d.begin(), mine.d.end(), d);
}
// The unit ignores the low 13 bits of its operands.
inline void multiply_add(float (&d)[4], const float (&a)[4], const float (&b)[2], EMULATOR_SITE) {
  const auto cut = [](float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xFFFFE000u); };
  stand_in::Fragment mine{};
  std::transform(a, a + 4, mine.a.begin(), cut);
  std::transform(b, b + 2, mine.b.begin(), cut);
  std::copy(d, d + 4, mine.d.begin());
  emulator::collective(0xFFFFFFFFu, stand_in::multiply<8>, &mine, {file, line});
  std::copy(mine.d.begin(), mine.d.end(), d);
}

template <bool kTransposed, class T>
void load_matrices(uint32_t (&to)[4], Shared<T> row, EMULATOR_SITE) {
  static_assert(sizeof(T) == 2);
  struct Lane {
    std::array<uint16_t, 8> row;
    uint32_t to[4];
  } mine{};
  if (row.offset() % 16 != 0)
    emulator::fail("a row of a matrix does not begin at a multiple of 16 bytes", {file, line});
  mine.row = row.template as<std::array<uint16_t, 8>>()[emulator::Index(0, line, file)];
  emulator::collective(
      0xFFFFFFFFu,
      [](void* const* brought, unsigned, emulator::Site) {
        const auto at = [&](int matrix, int row, int column) {
          return uint32_t{static_cast<Lane*>(brought[matrix * 8 + row])->row[static_cast<size_t>(column)]};
        };
        for (int l = 0; l < 32; ++l)
          for (int m = 0; m < 4; ++m) {
            const int r = l / 4, c = l % 4 * 2;
            static_cast<Lane*>(brought[l])->to[m] =
                kTransposed ? at(m, c, r) | at(m, c + 1, r) << 16 : at(m, r, c) | at(m, r, c + 1) << 16;
          }
      },
      &mine, {file, line});
  std::copy(mine.to, mine.to + 4, to);
}

}  // namespace attnkit::cuda
