// int4 weights: blocks of 32 inputs with a scale for each output, and an offset where weights have them
// (core/base/int4.hpp); inputs are rounded to 8 bits with a scale s for each block.
//
//   y[o] = sum over blocks of s (scale[o] (sum over k of (n[o][k] - 8) q[k]) + offset[o] (sum over k of q[k])) + b[o],
//   q[k] = round(x[k] / s),  s = max |x| / 127
//
// n are the 4 bits, without a sign.  The sums of a block are exact, and 8 times the sum of its q is taken off them; the
// sum over blocks is one chain of multiply-adds of floats.
#include "core/base/int4.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "core/base/sha256.hpp"
#include "core/model/dense/bytes.hpp"

namespace attnkit::core {
namespace {

using dense::group, dense::lanes, dense::Sums, dense::tile_rows;

// A block of a panel: two groups of inputs share a line, the first in the low halves of its bytes.
constexpr int64_t line = lanes * group, pairs = int4_block / group / 2, block_bytes = pairs * line;
// Blocks whose sums wait for their scales.
constexpr int64_t max_blocks = 16;

struct Packed {
  int64_t inputs, outputs, blocks;
  const uint8_t* weight;  // [panel][block][pair of groups][16][4]
  const float* scale;     // [panel][block][16]
  const float* offset;    // the same, or NULL
  const float* bias;      // [output], padded to panels

  const uint8_t* at(int64_t panel, int64_t block) const { return weight + (panel * blocks + block) * block_bytes; }
};

using Isas = dense::Isas<dense::block_rows, 1, 2>;

// multiply(): the sums of R rows and P panels over a block, x: the rows' bytes of the block.
#if defined(__x86_64__)
template <int R, int P>
__attribute__((target(ATTNKIT_VNNI))) void multiply(Isas::Vnni, const Packed& w, const uint8_t* x, int64_t stride,
                                                    int64_t panel, int64_t block, Sums (&sums)[R][P]) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512i acc[R][P];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) acc[r][p] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int64_t i = 0; i < pairs; ++i) {
    __m512i columns[2][P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const __m512i both = _mm512_loadu_si512(w.at(panel + p, block) + i * line);
      columns[0][p] = _mm512_and_si512(both, low);
      columns[1][p] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
#pragma GCC unroll 8
    for (int64_t g = 0; g < 2; ++g)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, x + r * stride + (2 * i + g) * group, sizeof four);
        const __m512i in = _mm512_set1_epi32(four);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], columns[g][p], in);
      }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) _mm512_store_si512(sums[r][p].of, acc[r][p]);
}

// Sums of 16 bits hold a block: 8 groups of two products of at most 15 times 127.
struct Avx2Sums {
  __attribute__((target("avx2"), always_inline)) static inline __m256i add_dot(__m256i acc, __m256i a, __m256i b) {
    return _mm256_add_epi16(acc, _mm256_maddubs_epi16(a, b));
  }
  __attribute__((target("avx2"), always_inline)) static inline __m256i of_four(__m256i acc) {
    return _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
  }
};
template <class D>
struct DotSums : D {
  __attribute__((target("avx2"), always_inline)) static inline __m256i of_four(__m256i acc) { return acc; }
};

// By halves of 8 outputs; S adds the products of four inputs to its sums, and in the end has one for each output.
template <class S, int R, int P>
__attribute__((target("avx2"))) void multiply_halves(const Packed& w, const uint8_t* x, int64_t stride, int64_t panel,
                                                     int64_t block, Sums (&sums)[R][P]) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int p = 0; p < P; ++p)
    for (int h = 0; h < 2; ++h) {
      const uint8_t* weight = w.at(panel + p, block) + h * line / 2;
      __m256i acc[R];
      for (int r = 0; r < R; ++r) acc[r] = _mm256_setzero_si256();
      for (int64_t i = 0; i < pairs; ++i) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + i * line));
        const __m256i columns[2] = {_mm256_and_si256(both, low), _mm256_and_si256(_mm256_srli_epi16(both, 4), low)};
        for (int64_t g = 0; g < 2; ++g)
          for (int r = 0; r < R; ++r) {
            int32_t four;
            std::memcpy(&four, x + r * stride + (2 * i + g) * group, sizeof four);
            acc[r] = S::add_dot(acc[r], columns[g], _mm256_set1_epi32(four));
          }
      }
      for (int r = 0; r < R; ++r)
        _mm256_store_si256(reinterpret_cast<__m256i*>(sums[r][p].of + h * lanes / 2), S::of_four(acc[r]));
    }
}
template <int R, int P, class D>
void multiply(Isas::Dots<D>, const Packed& w, const uint8_t* x, int64_t stride, int64_t panel, int64_t block,
              Sums (&sums)[R][P]) {
  multiply_halves<DotSums<D>>(w, x, stride, panel, block, sums);
}
template <int R, int P>
void multiply(Isas::Avx2, const Packed& w, const uint8_t* x, int64_t stride, int64_t panel, int64_t block,
              Sums (&sums)[R][P]) {
  multiply_halves<Avx2Sums>(w, x, stride, panel, block, sums);
}

// `count` blocks from `block` on, a byte for each number.
__attribute__((target(ATTNKIT_AMX))) void unpack(const Packed& w, int64_t panel, int64_t block, int64_t count,
                                                 uint8_t* to) {
  const __m512i low = _mm512_set1_epi8(15);
  const uint8_t* from = w.at(panel, block);
  for (int64_t i = 0; i < count * pairs; ++i) {
    const __m512i both = _mm512_loadu_si512(from + i * line);
    _mm512_storeu_si512(to + 2 * i * line, _mm512_and_si512(both, low));
    _mm512_storeu_si512(to + (2 * i + 1) * line, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

// The sums of the rows of a tile over each of `count` blocks.
__attribute__((target(ATTNKIT_AMX))) void multiply_tiles(const uint8_t* weight, const uint8_t* x, int64_t stride,
                                                         int64_t count, Sums (*sums)[tile_rows]) {
  asm volatile("" ::: "memory");  // gcc's intrinsics do not say that they read memory
  for (int64_t b = 0; b < count; ++b) {
    _tile_zero(0);
    _tile_loadd(4, x + b * int4_block, stride);
    _tile_loadd(6, weight + b * 2 * block_bytes, line);
    _tile_dpbsud(0, 4, 6);
    _tile_stored(0, sums[b], sizeof(Sums));
  }
}
#elif defined(__aarch64__)
template <int R, int P>
void multiply(Isas::Dot, const Packed& w, const uint8_t* x, int64_t stride, int64_t panel, int64_t block,
              Sums (&sums)[R][P]) {
  for (int p = 0; p < P; ++p) {
    const uint8_t* weight = w.at(panel + p, block);
    int32x4_t acc[R][4];
    for (auto& row : acc)
      for (auto& four : row) four = vdupq_n_s32(0);
    for (int64_t i = 0; i < pairs; ++i) {
      int8x16_t in[R][2];
      for (int r = 0; r < R; ++r)
        for (int64_t g = 0; g < 2; ++g) in[r][g] = dense::four_times(x + r * stride + (2 * i + g) * group);
      for (int c = 0; c < 4; ++c) {
        const uint8x16_t both = vld1q_u8(weight + i * line + c * 16);
        const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
        for (int r = 0; r < R; ++r)
          acc[r][c] = dense::add_dot(dense::add_dot(acc[r][c], low, in[r][0]), high, in[r][1]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < 4; ++c) vst1q_s32(sums[r][p].of + 4 * c, acc[r][c]);
  }
}

// Sums of 16 bits hold a block: 8 products of at most 15 times 127, twice.
template <int R, int P>
void multiply(Isas::Neon, const Packed& w, const uint8_t* x, int64_t stride, int64_t panel, int64_t block,
              Sums (&sums)[R][P]) {
  for (int p = 0; p < P; ++p)
    for (int c = 0; c < 4; ++c) {
      const uint8_t* weight = w.at(panel + p, block) + c * 16;
      int16x8_t acc[R][2];
      for (auto& row : acc) row[0] = row[1] = vdupq_n_s16(0);
      for (int64_t i = 0; i < pairs; ++i) {
        const uint8x16_t both = vld1q_u8(weight + i * line);
        const int8x16_t columns[2] = {vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))),
                                      vreinterpretq_s8_u8(vshrq_n_u8(both, 4))};
        for (int64_t g = 0; g < 2; ++g)
          for (int r = 0; r < R; ++r) {
            const int8x16_t in = dense::four_times(x + r * stride + (2 * i + g) * group);
            acc[r][0] = vmlal_s8(acc[r][0], vget_low_s8(columns[g]), vget_low_s8(in));
            acc[r][1] = vmlal_high_s8(acc[r][1], columns[g], in);
          }
      }
      for (int r = 0; r < R; ++r) vst1q_s32(sums[r][p].of + 4 * c, vpaddlq_s16(vpaddq_s16(acc[r][0], acc[r][1])));
    }
}
#endif

template <int R, int P>
void multiply(Isas::Plain, const Packed& w, const uint8_t* x, int64_t stride, int64_t panel, int64_t block,
              Sums (&sums)[R][P]) {
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) {
      sums[r][p] = {};
      for (int64_t k = 0; k < int4_block; ++k) {
        const uint8_t* both = w.at(panel + p, block) + k / group / 2 * line + k % group;
        const int64_t shift = k / group % 2 * 4;
        for (int64_t l = 0; l < lanes; ++l)
          sums[r][p].of[l] += (both[l * group] >> shift & 15) * static_cast<int8_t>(x[r * stride + k]);
      }
    }
}

// Adds the sums of blocks to those of rows and a panel, which begin at zero; the last ones make the outputs.
struct Scale {
  const Packed& w;
  int64_t panel, block, count;
  const Sums* exact;             // of the first block and row
  int64_t next_block, next_row;  // where those of the next are
  const int32_t* inputs;         // sums of each block of the first row's inputs
  const float* scales;           // of them
  int64_t rows;
  float (*sums)[lanes];
  float* y;
  int64_t y_stride;
  bool add;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    const Scale copy = *this;  // the floats that are written could be any of the members
    int64_t r = 0;
    for (; r + 4 <= copy.rows; r += 4) copy.together<Isa, 4>(r);
    for (; r < copy.rows; ++r) copy.together<Isa, 1>(r);
  }
  // R rows from r on: the chain of one over its blocks waits, and others fill the time.
  template <class Isa, int R>
  ATTNKIT_INLINE void together(int64_t r) const {
    const float* scale = w.scale + (panel * w.blocks + block) * lanes;
    const float* offset = w.offset ? w.offset + (panel * w.blocks + block) * lanes : nullptr;
    const int64_t blocks = w.blocks, n = std::min(lanes, w.outputs - panel * lanes);
    const bool first = block == 0, last = block + count == blocks;
    simd::Vec<Isa> sum[R];
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) sum[i] = first ? simd::Vec<Isa>{} : simd::at<Isa>(sums[r + i]);
    for (int64_t b = 0; b < count; ++b) {
      const auto of_weights = simd::at<Isa>(scale + b * lanes);
#pragma GCC unroll 4
      for (int i = 0; i < R; ++i) {
        const Sums& of_block = exact[b * next_block + (r + i) * next_row];
        const int32_t of_inputs = inputs[(r + i) * blocks + block + b];
        const float of_row = scales[(r + i) * blocks + block + b];
        const auto products = dense::as_floats(simd::at<Isa>(of_block.of) - 8 * of_inputs);
        sum[i] += products * (of_weights * of_row);
        if (offset) sum[i] += static_cast<float>(of_inputs) * of_row * simd::at<Isa>(offset + b * lanes);
      }
    }
    const auto bias = simd::at<Isa>(w.bias + panel * lanes);
#pragma GCC unroll 4
    for (int i = 0; i < R; ++i) {
      if (last) {
        sum[i] = sum[i] + bias;
        dense::put(sum[i], n, add, y + (r + i) * y_stride);
      } else {
        simd::store(sum[i], sums[r + i]);
      }
    }
  }
};

struct Kernel {
  const Packed& w;
  const dense::RoundedRows& x;
  const DenseRows& rows;
  const DenseFinish& finish;
  int64_t outputs = w.outputs;

  void scale(int64_t row, int64_t n, int64_t panel, int64_t block, int64_t count, const Sums* exact, int64_t next_block,
             int64_t next_row, float (*sums)[lanes]) const {
    simd::dispatch(Scale{w, panel, block, count, exact, next_block, next_row, x.sums + row * w.blocks,
                         x.scales + row * w.blocks, n, sums, rows.y + row * rows.y_stride + panel * lanes,
                         rows.y_stride, finish.add});
  }

  const char* weights_of(int64_t panel) const { return reinterpret_cast<const char*>(w.at(panel, 0)); }

  template <class Isa, int R, int P>
  void tile(int64_t row, int64_t panel, const dense::Ahead&) const {
    alignas(64) float sums[P][R][lanes];
    for (int64_t block = 0; block < w.blocks; block += max_blocks) {
      const int64_t count = std::min(max_blocks, w.blocks - block);
      Sums exact[max_blocks][R][P];
      for (int64_t b = 0; b < count; ++b)
        multiply<R, P>(Isa(), w, x.bytes + row * x.stride + (block + b) * int4_block, x.stride, panel, block + b,
                       exact[b]);
      for (int p = 0; p < P; ++p) scale(row, R, panel + p, block, count, &exact[0][0][p], R * P, P, sums[p]);
    }
  }

#if defined(__x86_64__)
  // n rows, a tile of them after the other, so that a panel is unpacked once.
  template <class Isa>
  void strip(int64_t row, int64_t n, int64_t panel, int64_t end) const {
    alignas(64) float sums[Isa::rows][lanes];
    alignas(64) uint8_t weight[max_blocks * 2 * block_bytes];
    Sums exact[max_blocks][tile_rows];
    const int64_t tiles = (n + tile_rows - 1) / tile_rows;
    for (; panel < end; ++panel)
      for (int64_t block = 0; block < w.blocks; block += max_blocks) {
        const int64_t count = std::min(max_blocks, w.blocks - block);
        unpack(w, panel, block, count, weight);
        for (int64_t t = 0; t < tiles; ++t) {
          const int64_t first = n * t / tiles, height = n * (t + 1) / tiles - first;
          dense::Tiles::shape(static_cast<int>(height), 0, int4_block);
          multiply_tiles(weight, x.bytes + (row + first) * x.stride + block * int4_block, x.stride, count, exact);
          scale(row + first, height, panel, block, count, exact[0], tile_rows, 1, sums + first);
        }
      }
  }
#endif
};

class Int4 : public DenseWeights {
 public:
  Int4(const DenseSource& from, ByteKernel with)
      : w_{from.inputs, from.outputs, int4_blocks(from.inputs), nullptr, nullptr, nullptr, nullptr}, with_(with) {
    // The weights, the scales, the bias, and offsets if any block has one.
    const int64_t padded = this->padded(), blocks = padded * w_.blocks;
    const auto bytes = static_cast<uint64_t>(blocks * block_bytes / lanes),
               floats = sizeof(float) * static_cast<uint64_t>(blocks);
    const uint64_t all = bytes + floats + sizeof(float) * static_cast<uint64_t>(padded);
    if (std::byte* const memory = image_.begin(from, from.image.size() == all + floats ? all + floats : all))
      pack(from, memory, reinterpret_cast<float*>(memory + bytes));
    w_.weight = image_.at<uint8_t>(0);
    w_.scale = image_.at<float>(bytes);
    w_.bias = w_.scale + blocks;
    if (image_.bytes().size() > all) w_.offset = image_.at<float>(all);
  }

  void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const override {
    const dense::RoundedRows x = dense::rounded(threads, rows, w_.inputs, 0, int4_block);
    const Kernel kernel{w_, x, rows, finish};
    const ByteKernel with = dense::kernel_of(with_, rows.count);
    const double cost = static_cast<double>(w_.inputs) / (with == ByteKernel::amx ? 12 : 3);
    dense::walk(threads, kernel, cost, [&](const auto& piece) { dense::dispatch<Isas>(with, piece); });
  }

  void row(int64_t output, float* weights) const override {
    for (int64_t k = 0; k < w_.inputs; ++k) {
      const int64_t block = k / int4_block, in = k % int4_block;
      const int q = (w_.weight[place(output, block, in)] >> shift(in) & 15) - 8;
      weights[k] = w_.scale[of_block(output, block)] * static_cast<float>(q);
      if (w_.offset) weights[k] += w_.offset[of_block(output, block)];
    }
  }

  void digest(Sha256& to) const override {
    to.add_numbers(std::span(w_.weight, static_cast<size_t>(padded() * w_.blocks * block_bytes / lanes)));
    to.add_numbers(std::span(w_.scale, static_cast<size_t>(padded() * w_.blocks)));
    if (w_.offset) to.add_numbers(std::span(w_.offset, static_cast<size_t>(padded() * w_.blocks)));
    to.add_numbers(std::span(w_.bias, static_cast<size_t>(padded())));
  }

 private:
  void pack(const DenseSource& from, std::byte* memory, float* scale) {
    auto* const packed = reinterpret_cast<uint8_t*>(memory);
    const int64_t padded = this->padded(), blocks = padded * w_.blocks;
    float* const bias = scale + blocks;
    std::fill_n(scale, blocks, 0.0f);
    std::fill_n(bias, padded, 0.0f);
    std::copy(from.bias.begin(), from.bias.end(), bias);
    // Zeros, made for the first block that has an offset.
    Buffer offsets;
    std::once_flag has_offsets;
    from.each_panel([&](int64_t first, int64_t last) {
      std::fill_n(packed + place(first, 0, 0), w_.blocks * block_bytes, uint8_t{0});
      std::array<int8_t, int4_block> q;
      for (int64_t o = first; o < last; ++o)
        for (int64_t b = 0; b < w_.blocks; ++b) {
          const int64_t n = std::min(int4_block, from.inputs - b * int4_block);
          const auto [step, offset] = round_to_int4(from.weight.data() + o * from.inputs + b * int4_block, n, q.data());
          scale[of_block(o, b)] = step;
          if (offset != 0) {
            std::call_once(has_offsets, [&] { std::fill_n(offsets.get<float>(blocks), blocks, 0.0f); });
            offsets.get<float>(0)[of_block(o, b)] = offset;
          }
          for (int64_t k = 0; k < n; ++k)
            packed[place(o, b, k)] |= static_cast<uint8_t>((q[static_cast<size_t>(k)] + 8) << shift(k));
        }
    });
    if (offsets.bytes() == 0) return;
    const float* const made = offsets.get<float>(0);
    std::memcpy(image_.grow(sizeof(float) * static_cast<uint64_t>(blocks)), made,
                sizeof(float) * static_cast<size_t>(blocks));
  }

  int64_t padded() const { return (w_.outputs + lanes - 1) / lanes * lanes; }
  // The byte of a block's input k, and where in it.
  int64_t place(int64_t output, int64_t block, int64_t k) const {
    const int64_t panel = (output / lanes * w_.blocks + block) * block_bytes;
    return panel + k / group / 2 * line + output % lanes * group + k % group;
  }
  static int64_t shift(int64_t k) { return k / group % 2 * 4; }
  int64_t of_block(int64_t output, int64_t block) const {
    return (output / lanes * w_.blocks + block) * lanes + output % lanes;
  }
  Packed w_;
  ByteKernel with_;
};

}  // namespace

std::shared_ptr<const DenseWeights> int4_weights(const DenseSource& from, ByteKernel with) {
  return std::make_shared<Int4>(from, with);
}

}  // namespace attnkit::core
