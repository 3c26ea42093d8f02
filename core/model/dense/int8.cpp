// int8 weights, symmetric with a scale for each output; inputs are rounded to 8 bits with a scale for each row.  Both
// are integers, so that products and sums are exact.
//
//   y[o] = scale[o] s (sum over k of (u[k] - 128) w[o][k]) + b[o],  u[k] = round(x[k] / s) + 128,  s = max |x| / 127
//
// The instructions of x86 that multiply bytes want one side without a sign, hence the 128, which is taken off by a sum
// of weights known before (Bhandare et al. 2019, arXiv:1906.00532, quantise a Transformer so).  Those of Arm have signs
// on both sides, and 0 in place of 128.
#include "core/base/int8.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/model/dense/bytes.hpp"

namespace attnkit::core {
namespace {

using dense::group, dense::groups_of, dense::lanes, dense::Sums, dense::tile_rows;

struct Packed {
  int64_t inputs, outputs;
  const int8_t* weight;  // [panel][group][16][4]
  const float* scale;    // [output], padded to panels, as the next two
  const float* bias;
  const int32_t* offset;  // -shift times the sum of the weights
};

// The number that is added to the inputs.
int32_t shift_of(ByteKernel with) { return with == ByteKernel::neon || with == ByteKernel::dot ? 0 : 128; }

using Isas = dense::Isas<32, 4, 2>;

#if defined(__x86_64__)
template <int R, int P>
__attribute__((target(ATTNKIT_VNNI))) void multiply(Isas::Vnni, const Packed& w, const uint8_t* u, int64_t stride,
                                                    int64_t panel, dense::Ahead ahead, Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  // Loops that are not unrolled early, and memcpy of a sum, make gcc copy sums in every step and keep some in memory.
  __m512i acc[R][P];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r][p] = _mm512_setzero_si512();
  for (int64_t g = 0; g < groups; ++g, ahead.at += ahead.step)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const __m512i column = _mm512_loadu_si512(weight + (p * groups + g) * lanes * group);
      if constexpr (dense::asks_ahead<Isas::Vnni, R>) __builtin_prefetch(ahead.at + p * dense::memory_line, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, u + r * stride + g * group, sizeof four);
        acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], _mm512_set1_epi32(four), column);
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) _mm512_store_si512(sums[r][p].of, acc[r][p]);
}

template <int R, int P, class D>
__attribute__((target("avx2"))) void multiply(Isas::Dots<D>, const Packed& w, const uint8_t* u, int64_t stride,
                                              int64_t panel, dense::Ahead ahead, Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  __m256i acc[R][P][2];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p) acc[r][p][0] = acc[r][p][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g, ahead.at += ahead.step)
    for (int p = 0; p < P; ++p) {
      const auto* column = reinterpret_cast<const __m256i*>(weight + (p * groups + g) * lanes * group);
      if constexpr (dense::asks_ahead<Isas::Dots<D>, R>) __builtin_prefetch(ahead.at + p * dense::memory_line, 0, 2);
      const __m256i low = _mm256_loadu_si256(column), high = _mm256_loadu_si256(column + 1);
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, u + r * stride + g * group, sizeof four);
        const __m256i x = _mm256_set1_epi32(four);
        acc[r][p][0] = D::add_dot(acc[r][p][0], x, low);
        acc[r][p][1] = D::add_dot(acc[r][p][1], x, high);
      }
    }
  // Not by memcpy: gcc keeps in memory what has an address.
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      for (int h = 0; h < 2; ++h)
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums[r][p].of + h * lanes / 2), acc[r][p][h]);
}

// AVX2's own product of bytes saturates, so both sides have 16 bits: `u` is what in_pairs() wrote.
template <int R, int P>
__attribute__((target("avx2"))) void multiply(Isas::Avx2, const Packed& w, const uint8_t* u, int64_t stride,
                                              int64_t panel, dense::Ahead ahead, Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  __m256i acc[R][P][2];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) acc[r][p][0] = acc[r][p][1] = _mm256_setzero_si256();
  for (int64_t g = 0; g < groups; ++g, ahead.at += ahead.step)
    for (int p = 0; p < P; ++p) {
      const auto* column = reinterpret_cast<const __m256i*>(weight + (p * groups + g) * lanes * group);
      if constexpr (dense::asks_ahead<Isas::Avx2, R>) __builtin_prefetch(ahead.at + p * dense::memory_line, 0, 2);
      __m256i even[2], odd[2];
      for (int h = 0; h < 2; ++h) {
        const __m256i bytes = _mm256_loadu_si256(column + h);
        even[h] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
        odd[h] = _mm256_srai_epi16(bytes, 8);
      }
      for (int r = 0; r < R; ++r) {
        int32_t two[2];
        std::memcpy(two, u + r * stride + g * sizeof two, sizeof two);
        const __m256i x = _mm256_set1_epi32(two[0]), y = _mm256_set1_epi32(two[1]);
        for (int h = 0; h < 2; ++h)
          acc[r][p][h] = _mm256_add_epi32(
              acc[r][p][h], _mm256_add_epi32(_mm256_madd_epi16(x, even[h]), _mm256_madd_epi16(y, odd[h])));
      }
    }
  // Not by memcpy: gcc keeps in memory what has an address.
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r)
      for (int h = 0; h < 2; ++h)
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums[r][p].of + h * lanes / 2), acc[r][p][h]);
}

// M tiles of rows, the second `second` rows below the first, and P panels; tile 2 m + p has the sums of both.
template <int M, int P>
__attribute__((target(ATTNKIT_AMX))) void multiply_tiles(const Packed& w, const uint8_t* u, int64_t stride,
                                                         int64_t second, int64_t panel, Sums (&sums)[4][tile_rows]) {
  const int64_t groups = groups_of(w.inputs), line = lanes * group;
  const int8_t* weight = w.weight + panel * groups * line;
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (M > 1) _tile_zero(2);
  if constexpr (M > 1 && P > 1) _tile_zero(3);
  for (int64_t g = 0; g < groups; g += 16) {
    _tile_loadd(6, weight + g * line, line);
    _tile_loadd(4, u + g * group, stride);
    _tile_dpbusd(0, 4, 6);
    if constexpr (M > 1) {
      _tile_loadd(5, u + second * stride + g * group, stride);
      _tile_dpbusd(2, 5, 6);
    }
    if constexpr (P > 1) {
      _tile_loadd(7, weight + (groups + g) * line, line);
      _tile_dpbusd(1, 4, 7);
    }
    if constexpr (M > 1 && P > 1) _tile_dpbusd(3, 5, 7);
  }
  _tile_stored(0, sums[0], sizeof(Sums));
  if constexpr (P > 1) _tile_stored(1, sums[1], sizeof(Sums));
  if constexpr (M > 1) _tile_stored(2, sums[2], sizeof(Sums));
  if constexpr (M > 1 && P > 1) _tile_stored(3, sums[3], sizeof(Sums));
}
#elif defined(__aarch64__)
// add(acc, weights, inputs) adds the products of four outputs and a group of inputs.
template <int R, int P, class Add>
ATTNKIT_INLINE void multiply_groups(const Packed& w, const uint8_t* q, int64_t stride, int64_t panel,
                                    Sums (&sums)[R][P], Add add) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  int32x4_t acc[R][P][4];
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) acc[r][p][i] = vdupq_n_s32(0);
  for (int64_t g = 0; g < groups; ++g) {
    int8x16_t x[R];
    for (int r = 0; r < R; ++r) x[r] = dense::four_times(q + r * stride + g * group);
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) {
        const int8x16_t column = vld1q_s8(weight + ((p * groups + g) * 4 + i) * 16);
        for (int r = 0; r < R; ++r) acc[r][p][i] = add(acc[r][p][i], column, x[r]);
      }
  }
  for (int r = 0; r < R; ++r)
    for (int p = 0; p < P; ++p)
      for (int i = 0; i < 4; ++i) vst1q_s32(sums[r][p].of + 4 * i, acc[r][p][i]);
}

template <int R, int P>
void multiply(Isas::Dot, const Packed& w, const uint8_t* q, int64_t stride, int64_t panel, const dense::Ahead&,
              Sums (&sums)[R][P]) {
  multiply_groups(w, q, stride, panel, sums, dense::add_dot);
}

// 16 bits hold two products of at most 127 times 127.
template <int R, int P>
void multiply(Isas::Neon, const Packed& w, const uint8_t* q, int64_t stride, int64_t panel, const dense::Ahead&,
              Sums (&sums)[R][P]) {
  multiply_groups(w, q, stride, panel, sums, [](int32x4_t acc, int8x16_t column, int8x16_t x) {
    const int16x8_t low = vmull_s8(vget_low_s8(column), vget_low_s8(x)), high = vmull_high_s8(column, x);
    return vpadalq_s16(acc, vpaddq_s16(low, high));
  });
}
#endif

template <int R, int P>
void multiply(Isas::Plain, const Packed& w, const uint8_t* u, int64_t stride, int64_t panel, const dense::Ahead&,
              Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) {
      sums[r][p] = {};
      for (int64_t k = 0; k < groups * group; ++k)
        for (int64_t l = 0; l < lanes; ++l)
          sums[r][p].of[l] += u[r * stride + k] * weight[((p * groups + k / group) * lanes + l) * group + k % group];
    }
}

// Sums as floats, with scales and bias, added or stored.
struct Store {
  const Packed& w;
  const Sums* sums;
  int64_t next_row, next_panel;  // where the sums of the next row and of the next panel are
  const float* scales;           // of the rows
  float* y;
  int64_t y_stride, rows, panel, panels;
  bool add;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    int64_t p = 0;
    if constexpr (!std::is_same_v<Isa, simd::Neon>)  // its registers hold one
      for (; p + 2 <= panels; p += 2) columns<Isa, 2>(p);
    for (; p < panels; ++p) columns<Isa, 1>(p);
  }
  // Row by row, so that what lies side by side is written together.
  template <class Isa, int P>
  ATTNKIT_INLINE void columns(int64_t p) const {
    const int64_t first = (panel + p) * lanes;
    simd::Vector<int32_t, Isa> offset[P];
    simd::Vec<Isa> scale[P], bias[P];
    for (int i = 0; i < P; ++i) {
      offset[i] = simd::at<Isa>(w.offset + first + i * lanes);
      scale[i] = simd::at<Isa>(w.scale + first + i * lanes);
      bias[i] = simd::at<Isa>(w.bias + first + i * lanes);
    }
    // Copies: the floats that are written could be any of the members.
    const Store copy = *this;
    const Sums* from = sums + p * next_panel;
    const int64_t left = w.outputs - first;
    for (int64_t r = 0; r < copy.rows; ++r)
      for (int i = 0; i < P; ++i) {
        const Sums& exact = from[r * copy.next_row + i * copy.next_panel];
        simd::Vec<Isa> v = dense::as_floats(simd::at<Isa>(exact.of) + offset[i]);
        v = v * (scale[i] * copy.scales[r]) + bias[i];
        const int64_t n = std::min(lanes, left - i * lanes);
        dense::put(v, n, copy.add, copy.y + r * copy.y_stride + first + i * lanes);
      }
  }
};

// Rows whose groups are two pairs of 16 bits: the bytes at even and those at odd places.  Borrows memory of this
// thread, which the next call takes again.
dense::RoundedRows in_pairs(Threads& threads, const dense::RoundedRows& x, int64_t rows) {
  static thread_local Buffer pairs;
  auto* wide = pairs.get<uint32_t>(rows * x.stride / 2);
  threads.each(rows, 32768 / x.stride + 1, [&](int64_t begin, int64_t end, uint32_t) {
    for (int64_t g = begin * x.stride / group; g < end * x.stride / group; ++g) {
      uint32_t four;
      std::memcpy(&four, x.bytes + g * group, sizeof four);
      wide[2 * g] = four & 0xff00ff;
      wide[2 * g + 1] = four >> 8 & 0xff00ff;
    }
  });
  return {reinterpret_cast<const uint8_t*>(wide), 2 * x.stride, x.scales, x.sums};
}

struct Kernel {
  const Packed& w;
  const uint8_t* u;
  int64_t u_stride;
  const float* scales;  // of the rows
  const DenseRows& rows;
  const DenseFinish& finish;
  int64_t outputs = w.outputs;

  void store(const Sums* sums, int64_t next_row, int64_t next_panel, int64_t row, int64_t n, int64_t panel,
             int64_t panels) const {
    float* y = rows.y + row * rows.y_stride;
    simd::dispatch(Store{w, sums, next_row, next_panel, scales + row, y, rows.y_stride, n, panel, panels, finish.add});
  }

  const char* weights_of(int64_t panel) const {
    return reinterpret_cast<const char*>(w.weight + panel * groups_of(w.inputs) * lanes * group);
  }

  template <class Isa, int R, int P>
  void tile(int64_t row, int64_t panel, const dense::Ahead& ahead) const {
    Sums sums[R][P];
    multiply<R, P>(Isa(), w, u + row * u_stride, u_stride, panel, ahead, sums);
    store(sums[0], P, 1, row, R, panel, P);
  }

#if defined(__x86_64__)
  // n rows in one or two tiles, two panels at a time.
  template <class Isa>
  void strip(int64_t row, int64_t n, int64_t panel, int64_t end) const {
    const int64_t first = n > tile_rows ? (n + 1) / 2 : n;
    dense::Tiles::shape(static_cast<int>(first), static_cast<int>(n - first));
    for (; panel < end; panel += 2) {
      Sums sums[4][tile_rows];
      const int64_t panels = std::min<int64_t>(2, end - panel);
      const uint8_t* x = u + row * u_stride;
      if (n > first)
        panels == 2 ? multiply_tiles<2, 2>(w, x, u_stride, first, panel, sums)
                    : multiply_tiles<2, 1>(w, x, u_stride, first, panel, sums);
      else
        panels == 2 ? multiply_tiles<1, 2>(w, x, u_stride, first, panel, sums)
                    : multiply_tiles<1, 1>(w, x, u_stride, first, panel, sums);
      store(sums[0], 1, tile_rows, row, first, panel, panels);
      if (n > first) store(sums[2], 1, tile_rows, row + first, n - first, panel, panels);
    }
  }
#endif
};

class Int8 : public DenseWeights {
 public:
  Int8(const DenseSource& from, ByteKernel with)
      : w_{from.inputs, from.outputs, nullptr, nullptr, nullptr, nullptr}, with_(with) {
    // Beyond, a sum of 32 bits could overflow.
    if (from.inputs > 32768)
      fail(ATTN_UNSUPPORTED, "a layer of {} inputs: int8 weights take up to 32,768, use f32 or bf16", from.inputs);
    const int64_t padded = (from.outputs + lanes - 1) / lanes * lanes, groups = groups_of(from.inputs);
    const int64_t bytes = padded * groups * group;
    // The last tile of AMX may reach past the weights, where its rows have zeros.
    const int64_t size = bytes + 3 * padded * 4 + tile_rows * lanes * group;
    std::byte* const memory = image_.begin(from, static_cast<uint64_t>(size));
    w_.weight = image_.at<int8_t>(0);
    w_.scale = image_.at<float>(static_cast<uint64_t>(bytes));
    w_.bias = w_.scale + padded;
    w_.offset = reinterpret_cast<const int32_t*>(w_.bias + padded);
    if (!memory) return;
    auto* const packed = reinterpret_cast<int8_t*>(memory);
    std::fill_n(packed + bytes, size - bytes, int8_t{0});
    auto *scale = reinterpret_cast<float*>(packed + bytes), *bias = scale + padded;
    auto* offset = reinterpret_cast<int32_t*>(bias + padded);
    from.each_panel([&](int64_t first, int64_t last) {
      int8_t* panel = packed + first * groups * group;
      std::fill_n(panel, groups * lanes * group, int8_t{0});
      std::vector<int8_t> q(static_cast<size_t>(from.inputs));
      for (int64_t o = first; o < last; ++o) {
        scale[o] = round_to_int8(from.weight.data() + o * from.inputs, from.inputs, q.data());
        int32_t sum = 0;
        for (int64_t k = 0; k < from.inputs; ++k) {
          panel[(k / group * lanes + o - first) * group + k % group] = q[static_cast<size_t>(k)];
          sum += q[static_cast<size_t>(k)];
        }
        offset[o] = -shift_of(with) * sum;
      }
    });
    std::copy(from.bias.begin(), from.bias.end(), bias);
  }

  void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const override {
    const ByteKernel with = dense::kernel_of(with_, rows.count);
    dense::RoundedRows x = dense::rounded(threads, rows, w_.inputs, shift_of(with_));
    if (with == ByteKernel::avx2) x = in_pairs(threads, x, rows.count);
    const Kernel kernel{w_, x.bytes, x.stride, x.scales, rows, finish};
    const double cost = static_cast<double>(w_.inputs) / (with == ByteKernel::amx ? 32 : group);
    dense::walk(threads, kernel, cost, [&](const auto& piece) { dense::dispatch<Isas>(with, piece); });
  }

  void row(int64_t output, float* weights) const override {
    const float scale = w_.scale[output];
    const int8_t* from = w_.weight + (output / lanes * groups_of(w_.inputs) * lanes + output % lanes) * group;
    for (int64_t k = 0; k < w_.inputs; k += group, from += lanes * group)
      for (int64_t i = 0; i < std::min(group, w_.inputs - k); ++i) weights[k + i] = scale * static_cast<float>(from[i]);
  }

  void digest(Sha256& to) const override {
    const int64_t padded = (w_.outputs + lanes - 1) / lanes * lanes;
    to.add_numbers(std::span(w_.weight, static_cast<size_t>(padded * groups_of(w_.inputs) * group)));
    to.add_numbers(std::span(w_.scale, static_cast<size_t>(2 * padded)));
  }

 private:
  Packed w_;
  ByteKernel with_;
};

}  // namespace

std::shared_ptr<const DenseWeights> int8_weights(const DenseSource& from, ByteKernel with) {
  return std::make_shared<Int8>(from, with);
}

}  // namespace attnkit::core
