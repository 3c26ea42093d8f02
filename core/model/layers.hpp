// The small layers around attention: norms, activations, embeddings.  Row by row; a row never depends on another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/manifest/manifest.hpp"
#include "core/model/dense/dense.hpp"
#include "core/speech/source.hpp"
#include "core/weights/reader.hpp"

namespace attnkit::core {

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over `width` (Ba et al. 2016, arXiv:1607.06450), or with
// type rms y = x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019, arXiv:1910.07467).
struct LayerNorm {
  std::vector<float> weight, bias;  // bias empty: none
  double epsilon = 1e-5;
  NormType type = NormType::layer;
  void apply(const float* x, float* y, int64_t rows) const;  // y may be x
  void apply(Threads& threads, const float* x, float* y, int64_t rows) const;
};

// o = o / sqrt(mean(o^2) + 1e-5) over each head of `width` channels, in place (Zhang and Sennrich 2019,
// arXiv:1910.07467).
void normalise_heads(float* o, int64_t rows, int64_t heads, int64_t width);

void add(float* x, const float* y, int64_t n);  // x += y

// x = scale * table[id] + position, where a position is a row of `positions`, learned or sinusoidal, or nothing; then
// the norm, if there is one.
struct Embedding {
  int64_t width = 0;
  float scale = 1;
  bool zero_begin = false;       // zeros in place of the row of an id at position 0
  Numbers table;                 // (vocabulary, width); or, where the output layer shares it or it is not f32, empty
  Dense packed;                  // in place of table: width inputs, an output for each id
  std::vector<float> positions;  // (max_length, width); empty: none
  LayerNorm norm = {};           // no weight: none
  int64_t vocabulary() const { return table.empty() ? packed.outputs() : static_cast<int64_t>(table.size()) / width; }
  void row(int64_t id, float* x) const;  // of the table, (width)
  // x (batch, length, width); first: the position of each row's first id, empty: 0.  Zeros behind the ids of a row.
  void apply(const Ids& ids, const std::vector<int32_t>& first, float* x) const;
  // All that follows the table, for rows from position `first`.
  void finish(int64_t first, int64_t rows, float* x) const;
};

// PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i+1) = cos(same) (Vaswani et al. 2017, arXiv:1706.03762, 3.5), or in
// another layout; p from `first`.
std::vector<float> sinusoidal_positions(int64_t rows, int64_t width, Sinusoids layout = Sinusoids::interleaved,
                                        int64_t first = 0);

struct DenseShape {
  int64_t inputs, outputs;
  bool bias;
  WeightType type;
};
// A layer of the tensors name.weight and name.bias, or that layer from the cache of what was packed before; the weight
// is not read then.  recipe: what else it depends on beside the file.
Dense packed_once(WeightReader& weights, const std::string& name, const std::string& recipe, const DenseShape& shape,
                  const std::function<Dense()>& pack);

// Reads layers from a weights file or makes them from its seed, and counts their parameters.
struct LayerReader {
  WeightReader& weights;
  WeightType type = WeightType::f32;  // of dense layers and embeddings
  double norm_eps = 1e-5;
  NormType norm_type = NormType::layer;
  int64_t parameters = 0;
  std::map<std::string, std::pair<Numbers, Dense>> tables = {};  // of embeddings, that sides may share; one of the two

  std::vector<float> tensor(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial);
  LayerNorm norm(const std::string& name, int64_t width);
  Dense dense(const std::string& name, int64_t inputs, int64_t outputs, bool bias = true);
  Dense convolution(const std::string& name, int64_t inputs, int64_t outputs, int64_t kernel);
  // The table of this side's embedding, or of the one that it is tied to.
  void load_table(const std::string& name, const Manifest& manifest, int64_t vocabulary, Embedding& to);
  // Without a vocabulary positions alone.
  Embedding embedding(const std::string& name, const Manifest& manifest, const Stack& stack);
};

}  // namespace attnkit::core
