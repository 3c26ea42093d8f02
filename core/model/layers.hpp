// The small layers around attention: norms, activations, embeddings.  Row by row; a row never depends on another.
#pragma once

#include <cstdint>
#include <vector>

#include "core/manifest/manifest.hpp"

namespace attnkit {

// y = (x - mean) / sqrt(variance + 1e-5) * weight + bias over `width` (Ba et al. 2016, arXiv:1607.06450).
struct LayerNorm {
  std::vector<float> weight, bias;
  void apply(const float* x, float* y, int64_t rows) const;  // y may be x
};

// o = o / sqrt(mean(o^2) + 1e-5) over each head of `width` channels, in place (Zhang and Sennrich 2019,
// arXiv:1910.07467).
void normalise_heads(float* o, int64_t rows, int64_t heads, int64_t width);

void activate(Activation activation, float* x, int64_t n);  // in place; GELU is the exact one, with erf

void add(float* x, const float* y, int64_t n);  // x += y

// x[r] = scale * table[id[r]] + position(first[r]), where a position is a row of `learned`, or sinusoidal, or nothing.
struct Embedding {
  int64_t width = 0;
  float scale = 1;
  std::vector<float> table;      // (vocabulary, width)
  std::vector<float> positions;  // (max_length, width), sinusoidal or learned; empty: none
  void row(int32_t id, int64_t position, float* x) const;
  void add_position(int64_t position, float* x) const;
};

// PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(same) (Vaswani et al. 2017, arXiv:1706.03762, 3.5).
std::vector<float> sinusoidal_positions(int64_t rows, int64_t width);

}  // namespace attnkit
