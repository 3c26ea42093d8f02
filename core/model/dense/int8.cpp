// int8 weights, symmetric with a scale for each output; inputs are rounded to 8 bits with a scale for each row.  Both
// are integers, so that products and sums are exact.
//
//   y[o] = scale[o] s (sum over k of (u[k] - 128) w[o][k]) + b[o],  u[k] = round(x[k] / s) + 128,  s = max |x| / 127
//
// The instructions that multiply bytes want one side without a sign, hence the 128, which is taken off by a sum of
// weights known before (Bhandare et al. 2019, arXiv:1906.00532, quantise a Transformer so).
#include <algorithm>
#include <cmath>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/base/buffer.hpp"
#include "core/base/error.hpp"
#include "core/base/sha256.hpp"
#include "core/model/dense/walk.hpp"

namespace attnkit {
namespace {

constexpr int64_t lanes = panel_outputs, group = 4;  // inputs that are multiplied by one instruction

// The sums of one row and one panel.
struct alignas(64) Sums {
  int32_t of[lanes];
};

int64_t groups_of(int64_t inputs) { return (inputs + group - 1) / group; }

// A row as bytes with 128 added, and its scale.  A NaN or infinity makes the scale NaN, and so all that is computed of
// it.
struct Round {
  const float* x;
  int64_t inputs;
  uint8_t* u;
  float* scale;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    using V = simd::Vec<Isa>;
    V most{}, apart{};
    for (int64_t k = 0; k < inputs; k += lanes) {
      V v;
      simd::load(x + k, inputs - k, v);
      apart += v - v;  // NaN unless all are finite
      v = simd::select(v < 0.0f, -v, v);
      most = simd::select(v > most, v, most);
    }
    const float largest = simd::largest(most), inverse = largest > 0 ? 127.0f / largest : 0.0f;
    const bool finite = simd::sum(apart) == 0.0f;
    *scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
    for (int64_t k = 0; k < inputs; k += lanes) {
      V v;
      simd::load(x + k, inputs - k, v);
      v = v * (std::isfinite(inverse) ? inverse : 0.0f) + 12582912.0f;  // 1.5 * 2^23: rounds into the low bits
      uint8_t bytes[lanes];
      simd::store_as(simd::bits_as<int32_t>(v) - (0x4b400000 - 128), bytes);
      std::memcpy(u + k, bytes, static_cast<size_t>(std::min(lanes, inputs - k)));
    }
  }
};

struct Packed {
  int64_t inputs, outputs;
  const int8_t* weight;  // [panel][group][16][4]
  const float* scale;    // [output], padded to panels, as the next two
  const float* bias;
  const int32_t* offset;  // -128 times the sum of the weights
};

// The instructions that multiply, and the largest tile of rows and panels that their registers hold.
struct Vnni {
  static constexpr int rows = 8, columns = 2;
};
struct Avx2 {
  static constexpr int rows = 4, columns = 1;
};
struct Plain {
  static constexpr int rows = 2, columns = 1;
};

#if defined(__x86_64__)
#define ATTNKIT_VNNI "avx512f,avx512vl,avx512bw,avx512vnni"

template <int R, int P>
__attribute__((target(ATTNKIT_VNNI))) void multiply(Vnni, const Packed& w, const uint8_t* u, int64_t stride,
                                                    int64_t panel, Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  __m512i acc[R][P];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) acc[r][p] = _mm512_loadu_si512(w.offset + (panel + p) * lanes);
  for (int64_t g = 0; g < groups; ++g)
    for (int p = 0; p < P; ++p) {
      const __m512i column = _mm512_loadu_si512(weight + (p * groups + g) * lanes * group);
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, u + r * stride + g * group, sizeof four);
        acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], _mm512_set1_epi32(four), column);
      }
    }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) std::memcpy(&sums[r][p], &acc[r][p], sizeof(Sums));
}

// Bytes at even and at odd places as 16 bits, since AVX2's own product of bytes saturates.
template <int R, int P>
__attribute__((target("avx2"))) void multiply(Avx2, const Packed& w, const uint8_t* u, int64_t stride, int64_t panel,
                                              Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  const __m256i low = _mm256_set1_epi16(0xff);
  __m256i acc[R][P][2];
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) std::memcpy(acc[r][p], w.offset + (panel + p) * lanes, sizeof acc[r][p]);
  for (int64_t g = 0; g < groups; ++g)
    for (int p = 0; p < P; ++p)
      for (int h = 0; h < 2; ++h) {
        const __m256i column =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + (p * groups + g) * lanes * group + h * 32));
        const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(column, 8), 8), odd = _mm256_srai_epi16(column, 8);
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, u + r * stride + g * group, sizeof four);
          const __m256i x = _mm256_set1_epi32(four);
          const __m256i both = _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(x, low), even),
                                                _mm256_madd_epi16(_mm256_srli_epi16(x, 8), odd));
          acc[r][p][h] = _mm256_add_epi32(acc[r][p][h], both);
        }
      }
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) std::memcpy(&sums[r][p], acc[r][p], sizeof(Sums));
}
#endif

template <int R, int P>
void multiply(Plain, const Packed& w, const uint8_t* u, int64_t stride, int64_t panel, Sums (&sums)[R][P]) {
  const int64_t groups = groups_of(w.inputs);
  const int8_t* weight = w.weight + panel * groups * lanes * group;
  for (int p = 0; p < P; ++p)
    for (int r = 0; r < R; ++r) {
      std::memcpy(&sums[r][p], w.offset + (panel + p) * lanes, sizeof(Sums));
      for (int64_t k = 0; k < groups * group; ++k)
        for (int64_t l = 0; l < lanes; ++l)
          sums[r][p].of[l] += u[r * stride + k] * weight[((p * groups + k / group) * lanes + l) * group + k % group];
    }
}

// The sums of a tile as floats, with scales and bias, added or stored.
template <int R, int P>
struct Store {
  const Sums (&sums)[R][P];
  const Packed& w;
  const float* scales;  // of the rows
  float* y;
  int64_t y_stride, panel;
  bool add;
  template <class Isa>
  ATTNKIT_INLINE void operator()() const {
    for (int p = 0; p < P; ++p) {
      const int64_t first = (panel + p) * lanes, n = std::min(lanes, w.outputs - first);
      for (int r = 0; r < R; ++r) {
        auto v = simd::load_as<simd::Vec<Isa>>(sums[r][p].of);
        v = v * (simd::at<Isa>(w.scale + first) * scales[r]) + simd::at<Isa>(w.bias + first);
        dense::put(v, n, add, y + r * y_stride + first);
      }
    }
  }
};

struct Kernel {
  const Packed& w;
  const uint8_t* u;
  int64_t u_stride;
  const float* scales;  // of the rows
  const DenseRows& rows;
  const DenseFinish& finish;
  int64_t outputs = w.outputs;

  template <class Isa, int R, int P>
  void tile(int64_t row, int64_t panel) const {
    Sums sums[R][P];
    multiply<R, P>(Isa(), w, u + row * u_stride, u_stride, panel, sums);
    simd::dispatch(Store<R, P>{sums, w, scales + row, rows.y + row * rows.y_stride, rows.y_stride, panel, finish.add});
  }
};

class Int8 : public DenseWeights {
 public:
  explicit Int8(const DenseSource& from) : w_{from.inputs, from.outputs, nullptr, nullptr, nullptr, nullptr} {
    // Beyond, a sum of 32 bits could overflow.
    if (from.inputs > 32768)
      fail(ATTN_UNSUPPORTED, "a layer of {} inputs: int8 weights take up to 32,768, use f32 or bf16", from.inputs);
    const int64_t padded = (from.outputs + lanes - 1) / lanes * lanes, groups = groups_of(from.inputs);
    const int64_t bytes = padded * groups * group;
    auto* packed = reinterpret_cast<int8_t*>(packed_.get<float>(bytes / 4 + 3 * padded));
    std::fill_n(reinterpret_cast<float*>(packed), bytes / 4 + 3 * padded, 0.0f);
    auto *scale = reinterpret_cast<float*>(packed + bytes), *bias = scale + padded;
    auto* offset = reinterpret_cast<int32_t*>(bias + padded);
    std::vector<uint8_t> u(static_cast<size_t>(from.inputs));
    for (int64_t o = 0; o < from.outputs; ++o) {
      simd::dispatch(Round{from.weight.data() + o * from.inputs, from.inputs, u.data(), scale + o});
      int8_t* first = packed + (o / lanes * groups * lanes + o % lanes) * group;
      for (int64_t k = 0; k < from.inputs; ++k) {
        const int q = u[static_cast<size_t>(k)] - 128;
        first[k / group * lanes * group + k % group] = static_cast<int8_t>(q);
        offset[o] -= 128 * q;
      }
    }
    std::copy(from.bias.begin(), from.bias.end(), bias);
    w_.weight = packed;
    w_.scale = scale;
    w_.bias = bias;
    w_.offset = offset;
  }

  void run(Threads& threads, const DenseRows& rows, const DenseFinish& finish) const override {
    // Of this thread alone: it grows to the largest layer and then stays.
    static thread_local Buffer bytes, row_scales;
    const int64_t stride = groups_of(w_.inputs) * group, n = rows.count;
    auto* u = bytes.get<uint8_t>(n * stride);
    auto* scales = row_scales.get<float>(n);
    threads.each(n, 32768 / std::max<int64_t>(1, w_.inputs) + 1, [&](int64_t begin, int64_t end, uint32_t) {
      for (int64_t r = begin; r < end; ++r) {
        simd::dispatch(Round{rows.x + r * rows.x_stride, w_.inputs, u + r * stride, scales + r});
        std::fill(u + r * stride + w_.inputs, u + (r + 1) * stride, uint8_t{128});
      }
    });
    const Kernel kernel{w_, u, stride, scales, rows, finish};
    dense::walk(threads, kernel, static_cast<double>(w_.inputs) / group, [](const auto& piece) {
#if defined(__x86_64__)
      static const bool vnni = simd::level == 2 && __builtin_cpu_supports("avx512vnni");
      if (vnni) return piece.template operator()<Vnni>();
      if (simd::level >= 1) return piece.template operator()<Avx2>();
#endif
      piece.template operator()<Plain>();
    });
  }

  void row(int64_t output, float* weights) const override {
    const int64_t groups = groups_of(w_.inputs);
    for (int64_t k = 0; k < w_.inputs; ++k)
      weights[k] = w_.scale[output] *
                   static_cast<float>(
                       w_.weight[((output / lanes * groups + k / group) * lanes + output % lanes) * group + k % group]);
  }

  void digest(Sha256& to) const override {
    const int64_t padded = (w_.outputs + lanes - 1) / lanes * lanes;
    to.add_numbers(std::span(w_.weight, static_cast<size_t>(padded * groups_of(w_.inputs) * group)));
    to.add_numbers(std::span(w_.scale, static_cast<size_t>(2 * padded)));
  }
  uint64_t bytes() const override { return packed_.bytes(); }

 private:
  Packed w_;
  Buffer packed_;
};

}  // namespace

std::shared_ptr<const DenseWeights> int8_weights(const DenseSource& from) { return std::make_shared<Int8>(from); }

}  // namespace attnkit
