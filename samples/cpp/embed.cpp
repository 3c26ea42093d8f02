// The likeness of texts to the first: cosines of their vectors.   embed MODEL.toml "text" "text" ...
#include <cmath>
#include <cstdio>
#include <numeric>

#include "common.hpp"

int main(int argc, char** argv) try {
  if (argc < 4) return usage(argv, "MODEL.toml \"text\" \"text\" ...");
  const attnkit::Model model(attnkit::Runtime(), argv[1]);
  std::vector<attnkit::Ids> texts;
  for (int i = 2; i < argc; ++i) {
    texts.push_back(model.tokenize(attnkit::Side::source, argv[i]));
    texts.back().push_back(model.info().end_id);
  }
  const int64_t rows = argc - 2, width = model.info().outputs;
  std::vector<float> vectors(rows * width);
  model.forward(attnkit::Batch(texts), attnkit::Batch(), attnkit::tensor(vectors.data(), {rows, width}));
  const auto dot = [&](int64_t a, int64_t b) {
    const float *x = vectors.data() + a * width, *y = vectors.data() + b * width;
    return std::inner_product(x, x + width, y, 0.0, std::plus<>(), [](double p, double q) { return p * q; });
  };
  for (int64_t i = 1; i < rows; ++i)
    std::printf("%.4f %s\n", dot(0, i) / std::sqrt(dot(0, 0) * dot(i, i)), argv[i + 2]);
} catch (const std::exception& e) {
  return failed(e);
}
