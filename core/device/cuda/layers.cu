// Layers around attention: each reads and writes its rows once, but norms, which read them three times.
#include <algorithm>

#include "core/device/cuda/block.hpp"
#include "core/device/cuda/device.hpp"

namespace attnkit::core::device {
namespace {

// A piece of `chunks` blocks of a row each; f.at<kWidth>(row, column) is for kWidth numbers of it.
template <int kWidth, class F>
__global__ void each_kernel(F f, unsigned chunks, int64_t width) {
  const unsigned row = blockIdx.x / chunks, chunk = blockIdx.x - row * chunks;
  const int64_t column = (int64_t{chunk} * blockDim.x + threadIdx.x) * kWidth;
  if (column < width) f.template at<kWidth>(int64_t{row}, column);
}

template <class F>
void for_each(uintptr_t stream, const char* name, const F& f, int64_t rows, int64_t width, bool by_four) {
  if (rows == 0 || width == 0) return;
  const int64_t units = by_four ? width / 4 : width;
  const auto threads = static_cast<unsigned>(std::min<int64_t>((units + 31) / 32 * 32, 256));
  const int64_t chunks = (units + threads - 1) / threads;
  start(stream, name, by_four ? each_kernel<4, F> : each_kernel<1, F>, rows * chunks, threads, f,
        static_cast<unsigned>(chunks), width);
}

// f(number of the type)
template <class F>
void with_type(DeviceType type, const F& f) {
  if (type == DeviceType::bf16)
    f(__nv_bfloat16{});
  else if (type == DeviceType::f16)
    f(__half{});
  else
    f(float{});
}

template <class T>
struct Round {
  const float* from;
  T* to;
  template <int kWidth>
  __device__ void at(int64_t, int64_t i) const {
    store(load<kWidth>(from + i), to + i);
  }
};

// x += y
template <class T>
struct Add {
  float* x;
  const T* y;
  template <int kWidth>
  __device__ void at(int64_t, int64_t i) const {
    auto v = load<kWidth>(x + i);
    const auto other = load<kWidth>(y + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.at[k] += other.at[k];
    store(v, x + i);
  }
};

struct Scale {
  float* x;
  float scale;
  const float* bias;
  int64_t width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    auto v = load<kWidth>(x + row * width + column);
    Floats<kWidth> more{};
    if (bias) more = load<kWidth>(bias + column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.at[k] = scale * v.at[k] + more.at[k];
    store(v, x + row * width + column);
  }
};

// x / (1 + e^-y)
__device__ float gated(float x, float y) { return attnkit::cuda::quotient(x, 1.0f + expf(-y)); }

// As core/model/activation.hpp.  A NaN stays one.
__device__ float activated(DeviceActivation f, float x) {
  switch (f) {
    case DeviceActivation::none:
      break;
    case DeviceActivation::relu:
      return x < 0.0f ? 0.0f : x;
    case DeviceActivation::gelu: {
      const float near = x < -14.0f ? -14.0f : x;  // beyond it is 0, which infinity times 0 is not
      return 0.5f * near * erfcf(-0.70710678f * near);
    }
    case DeviceActivation::gelu_tanh:
      return gated(x, 1.59576912f * (x + 0.044715f * x * x * x));
    case DeviceActivation::quick_gelu:
      return gated(x, 1.702f * x);
    case DeviceActivation::silu:
      return gated(x, x);
  }
  return x;
}

template <class T>
struct Activate {
  T* y;
  const float* bias;
  DeviceActivation f;
  int64_t width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    auto v = load<kWidth>(y + row * width + column);
    Floats<kWidth> more{};
    if (bias) more = load<kWidth>(bias + column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.at[k] = activated(f, v.at[k] + more.at[k]);
    store(v, y + row * width + column);
  }
};

template <class T>
struct Gate {
  const float *x, *y;
  int64_t next;
  DeviceActivation f;
  T* to;
  int64_t width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    auto v = load<kWidth>(x + row * next + column);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.at[k] = activated(f, v.at[k]);
    if (y) {
      const auto by = load<kWidth>(y + row * next + column);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v.at[k] *= by.at[k];
    }
    store(v, to + row * width + column);
  }
};

struct Embed {
  DeviceEmbedding layer;
  const int32_t *ids, *lengths, *first;
  unsigned length;
  float* x;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    const unsigned b = static_cast<unsigned>(row) / length;
    const int i = static_cast<int>(static_cast<unsigned>(row) - b * length);
    Floats<kWidth> v{};
    if (i < lengths[b]) {
      const int64_t position = (first ? first[b] : 0) + i;
      if (!layer.zero_begin || position > 0) v = load<kWidth>(layer.table + ids[row] * layer.width + column);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v.at[k] *= layer.scale;
      if (layer.positions) {
        const auto more = load<kWidth>(layer.positions + position * layer.width + column);
#pragma unroll
        for (int k = 0; k < kWidth; ++k) v.at[k] += more.at[k];
      }
    }
    store(v, x + row * layer.width + column);
  }
};

struct ClearPadding {
  float* x;
  const int32_t* lengths;
  unsigned length;
  int64_t width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    const unsigned b = static_cast<unsigned>(row) / length;
    if (static_cast<int>(static_cast<unsigned>(row) - b * length) >= lengths[b])
      store(Floats<kWidth>{}, x + row * width + column);
  }
};

// A row's columns are the units of all its heads: the pairs and, where y is not x, the channels that do not turn.
template <class T>
struct Turn {
  DeviceRotary layer;
  const float* x;
  T* y;
  const int32_t* first;
  unsigned length, units;
  int64_t heads, width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    const unsigned b = static_cast<unsigned>(row) / length, head = static_cast<unsigned>(column) / units;
    const int64_t i = row - int64_t{b} * length, unit = column - int64_t{head} * units;
    const int64_t of_head = (row * heads + head) * width;
    if (unit >= layer.pairs) {
      const int64_t channel = of_head + layer.pairs + unit;
      y[channel] = attnkit::cuda::narrowed<T>(x[channel]);
      return;
    }
    const int64_t position = min((first ? first[b] : 0) + i, layer.max_length - 1);
    const float* by = layer.turns + (position * layer.pairs + unit) * 2;
    const float cosine = by[0], sine = by[1];
    const int64_t at = of_head + unit * layer.first;
    const float one = x[at], other = x[at + layer.second];
    y[at] = attnkit::cuda::narrowed<T>(one * cosine - other * sine);
    y[at + layer.second] = attnkit::cuda::narrowed<T>(other * cosine + one * sine);
  }
};

template <class T>
struct RepeatHeads {
  const float* from;
  T* to;
  unsigned heads, times;
  int64_t kv_heads, width;
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {  // of (rows heads, width)
    const unsigned r = static_cast<unsigned>(row) / heads, head = static_cast<unsigned>(row) - r * heads;
    store(load<kWidth>(from + (r * kv_heads + head / times) * width + column), to + row * width + column);
  }
};

// A row's columns are those of all parts, one behind the other.
template <class T>
struct Spread {
  DeviceHeads parts[kMostHeads];
  DeviceRotary layer;
  const float* x;
  const int32_t* first;
  unsigned length;
  int64_t made;  // numbers of a row of x
  __device__ float turned(const float* head, int channel, int64_t row) const {
    const int pairs = static_cast<int>(layer.pairs);
    if (channel >= 2 * pairs) return head[channel];
    const bool halves = layer.first == 1;
    const int pair = halves ? channel % pairs : channel / 2;
    const bool is_other = halves ? channel >= pairs : channel % 2 == 1;
    const unsigned b = static_cast<unsigned>(row) / length;
    const int64_t position = min((first ? first[b] : 0) + (row - int64_t{b} * length), layer.max_length - 1);
    const float* by = layer.turns + (position * layer.pairs + pair) * 2;
    const float *one = head + pair * layer.first, *other = one + layer.second;
    return is_other ? *other * by[0] + *one * by[1] : *one * by[0] - *other * by[1];
  }
  template <int kWidth>
  __device__ void at(int64_t row, int64_t column) const {
    const float* from = x + row * made;
#pragma unroll
    for (int k = 0; k < kMostHeads; ++k) {  // no part by a number that is not constant: it would lie in local memory
      const DeviceHeads& part = parts[k];
      const int64_t size = part.heads * part.width;
      if (column < size) {
        const auto width = static_cast<unsigned>(part.width), at = static_cast<unsigned>(column);
        const unsigned head = at / width, channel = at - head * width;
        const auto times = static_cast<unsigned>(part.heads / part.made);
        from += int64_t{head / times} * part.width;
        static_cast<T*>(part.to)[row * size + column] =
            attnkit::cuda::narrowed<T>(part.turns ? turned(from, static_cast<int>(channel), row) : from[channel]);
        return;
      }
      column -= size;
      from += part.made * part.width;
    }
  }
};

struct Norm {
  const float *weight, *bias;  // NULL: none
  int64_t width;
  float share, epsilon;  // share: 1 / width
  bool rms;
};

template <int kWarps>
__device__ float total(float x) {
  if constexpr (kWarps == 1)
    return fold_of_warp(x, Sum{});
  else
    return fold_of_block(x, 0.0f, Sum{});
}

// kWarps warps walk a row.  Its mean is rounded, so the second walk sums what it is off by too: rows of large numbers
// that differ little keep their digits.
template <int kWarps, int kWidth, class X, class Y>
__global__ void norm_kernel(Norm norm, const X* x, Y* y, int64_t rows) {
  constexpr int kThreads = 32 * kWarps;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kThreads) + threadIdx.x / kThreads;
  if (row >= rows) return;
  const int64_t begin = threadIdx.x % kThreads * kWidth;
  x += row * norm.width;
  y += row * norm.width;
  float mean = 0, off = 0, squares = 0;
  if (!norm.rms) {
    float sum = 0;
    for (int64_t i = begin; i < norm.width; i += kThreads * kWidth) {
      const auto v = load<kWidth>(x + i);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum += v.at[k];
    }
    mean = total<kWarps>(sum) * norm.share;
  }
  for (int64_t i = begin; i < norm.width; i += kThreads * kWidth) {
    const auto v = load<kWidth>(x + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float apart = v.at[k] - mean;
      off += apart;
      squares += apart * apart;
    }
  }
  squares = total<kWarps>(squares) * norm.share;
  if (!norm.rms) {
    off = total<kWarps>(off) * norm.share;
    squares -= off * off;
  } else {
    off = 0;
  }
  const float inverse = rsqrtf(squares + norm.epsilon);
  for (int64_t i = begin; i < norm.width; i += kThreads * kWidth) {
    auto v = load<kWidth>(x + i);
    Floats<kWidth> more{};
    if (norm.bias) more = load<kWidth>(norm.bias + i);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) v.at[k] = (v.at[k] - mean - off) * inverse;
    if (norm.weight) {
      const auto weight = load<kWidth>(norm.weight + i);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) v.at[k] = v.at[k] * weight.at[k] + more.at[k];
    }
    store(v, y + i);
  }
}

template <class X, class Y>
void run_norm(uintptr_t stream, const char* name, const Norm& norm, const X* x, Y* y, int64_t rows) {
  if (rows == 0 || norm.width == 0) return;
  constexpr int kWarps = 8;
  const bool by_four = are_by_four(norm.width, x, y, norm.weight, norm.bias);
  if (norm.width <= 1024)
    start(stream, name, by_four ? norm_kernel<1, 4, X, Y> : norm_kernel<1, 1, X, Y>, (rows + 3) / 4, 128u, norm, x, y,
          rows);
  else
    start(stream, name, by_four ? norm_kernel<kWarps, 4, X, Y> : norm_kernel<kWarps, 1, X, Y>, rows, 32u * kWarps, norm,
          x, y, rows);
}

// Kernels count rows in 32 bits.
void expect_rows(const char* name, int64_t batch, int64_t length) {
  constexpr int64_t kMost = 0x7FFFFFFF;
  if (length > 0 && batch > kMost / length)
    throw invalid(name, " of ", batch, " times ", length, " rows: at most ", kMost, " are possible");
}

}  // namespace

cudaError_t has_kernels() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, norm_kernel<1, 4, float, float>);
}

void round_to_16_bits(DeviceHandle&, uintptr_t stream, DeviceType type, const float* from, int64_t count, void* to) {
  with_type(type, [&](auto number) {
    auto* const at = static_cast<decltype(number)*>(to);
    for_each(stream, "roundings", Round<decltype(number)>{from, at}, 1, count, are_by_four(count, from, at));
  });
}

void activate(uintptr_t stream, void* y, DeviceType of_y, const float* bias, DeviceActivation f, int64_t rows,
              int64_t outputs) {
  with_type(of_y, [&](auto number) {
    auto* const at = static_cast<decltype(number)*>(y);
    for_each(stream, "activations", Activate<decltype(number)>{at, bias, f, outputs}, rows, outputs,
             are_by_four(outputs, at, bias));
  });
}

void norm(DeviceHandle&, uintptr_t stream, const DeviceNorm* layer, const float* x, void* y, DeviceType of_y,
          int64_t rows) {
  const Norm norm{layer->weight,
                  layer->bias,
                  layer->width,
                  1.0f / static_cast<float>(layer->width),
                  static_cast<float>(layer->epsilon),
                  layer->rms};
  with_type(of_y, [&](auto number) { run_norm(stream, "norms", norm, x, static_cast<decltype(number)*>(y), rows); });
}

void normalise_heads(DeviceHandle&, uintptr_t stream, void* o, DeviceType of_o, int64_t rows, int64_t heads,
                     int64_t width) {
  const Norm norm{nullptr, nullptr, width, 1.0f / static_cast<float>(width), 1e-5f, true};
  with_type(of_o, [&](auto number) {
    auto* const at = static_cast<decltype(number)*>(o);
    run_norm(stream, "norms of heads", norm, at, at, rows * heads);
  });
}

void embed(DeviceHandle&, uintptr_t stream, const DeviceEmbedding* layer, const int32_t* ids, const int32_t* lengths,
           const int32_t* first, int64_t batch, int64_t length, float* x) {
  expect_rows("embeddings", batch, length);
  for_each(stream, "embeddings", Embed{*layer, ids, lengths, first, static_cast<unsigned>(length), x}, batch * length,
           layer->width, are_by_four(layer->width, layer->table, layer->positions, x));
}

void clear_padding(DeviceHandle&, uintptr_t stream, float* x, const int32_t* lengths, int64_t batch, int64_t length,
                   int64_t width) {
  expect_rows("padding", batch, length);
  for_each(stream, "padding", ClearPadding{x, lengths, static_cast<unsigned>(length), width}, batch * length, width,
           are_by_four(width, x));
}

void add(DeviceHandle&, uintptr_t stream, float* x, const void* y, DeviceType of_y, int64_t n) {
  with_type(of_y, [&](auto number) {
    const auto* const from = static_cast<const decltype(number)*>(y);
    for_each(stream, "sums", Add<decltype(number)>{x, from}, 1, n, are_by_four(n, x, from));
  });
}

void gate(DeviceHandle&, uintptr_t stream, const float* x, const float* y, int64_t next, DeviceActivation f, void* to,
          DeviceType of_to, int64_t rows, int64_t width) {
  with_type(of_to, [&](auto number) {
    auto* const at = static_cast<decltype(number)*>(to);
    for_each(stream, "gates", Gate<decltype(number)>{x, y, next, f, at, width}, rows, width,
             next % 4 == 0 && are_by_four(width, x, y, at));
  });
}

void scale(DeviceHandle&, uintptr_t stream, float* x, float scale, const float* bias, int64_t rows, int64_t width) {
  for_each(stream, "scales", Scale{x, scale, bias, width}, rows, width, are_by_four(width, x, bias));
}

void turn(DeviceHandle&, uintptr_t stream, const DeviceRotary* layer, const float* x, void* y, DeviceType of_y,
          const int32_t* first, int64_t batch, int64_t length, int64_t heads, int64_t width) {
  expect_rows("rotary positions", batch, length);
  const int64_t units = y == x ? layer->pairs : width - layer->pairs;
  with_type(of_y, [&](auto number) {
    using T = decltype(number);
    for_each(stream, "rotary positions",
             Turn<T>{*layer, x, static_cast<T*>(y), first, static_cast<unsigned>(length), static_cast<unsigned>(units),
                     heads, width},
             batch * length, heads * units, false);
  });
}

void repeat_heads(DeviceHandle&, uintptr_t stream, const float* from, void* to, DeviceType of_to, int64_t rows,
                  int64_t kv_heads, int64_t heads, int64_t width) {
  if (kv_heads < 1 || heads % kv_heads != 0)
    throw invalid(heads, " heads cannot share ", kv_heads, " heads of keys: they must be a multiple");
  expect_rows("heads", rows, heads);
  with_type(of_to, [&](auto number) {
    using T = decltype(number);
    auto* const at = static_cast<T*>(to);
    for_each(stream, "heads",
             RepeatHeads<T>{from, at, static_cast<unsigned>(heads), static_cast<unsigned>(heads / kv_heads), kv_heads,
                            width},
             rows * heads, width, are_by_four(width, from, at));
  });
}

void spread(DeviceHandle&, uintptr_t stream, const DeviceHeads* parts, int64_t count, const DeviceRotary* layer,
            const float* x, DeviceType of_to, const int32_t* first, int64_t batch, int64_t length) {
  if (count > kMostHeads) throw invalid(count, " parts of a row: at most ", kMostHeads, " are possible");
  expect_rows("heads", batch, length);
  DeviceHeads all[kMostHeads] = {};
  int64_t made = 0, width = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (parts[i].made < 1 || parts[i].heads % parts[i].made != 0)
      throw invalid(parts[i].heads, " heads cannot share ", parts[i].made, " heads of keys: they must be a multiple");
    all[i] = parts[i];
    made += parts[i].made * parts[i].width;
    width += parts[i].heads * parts[i].width;
  }
  with_type(of_to, [&](auto number) {
    Spread<decltype(number)> f{{}, layer ? *layer : DeviceRotary{}, x, first, static_cast<unsigned>(length), made};
    std::copy(all, all + kMostHeads, f.parts);
    for_each(stream, "heads", f, batch * length, width, false);
  });
}

}  // namespace attnkit::core::device
