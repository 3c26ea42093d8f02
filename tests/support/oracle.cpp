#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace attnkit::test {

bool Scene::sees(int64_t b, int64_t i, int64_t j) const {
  const auto row = static_cast<size_t>(b);
  if (!q_len.empty() && i >= q_len[row]) return false;
  if (!k_len.empty() && j >= k_len[row]) return false;
  if (!visible.empty() && j >= visible[static_cast<size_t>(b * queries + i)]) return false;
  return !causal || j <= i;
}

Element elements(const Array& a) {
  return [&a](int64_t b, int64_t h, int64_t j, int64_t c) { return double{a.at(b, h, j, c)}; };
}

Denominator guard(const std::string& kind, double eps) {
  if (kind == "add") return [eps](double x) { return x + eps; };
  if (kind == "clamp") return [eps](double x) { return std::max(x, eps); };
  return [](double x) { return x; };
}

Truth oracle(const Scene& scene, const Weight& weight, const Element& value, const Denominator& denominator) {
  Truth truth{scene, {}, {}};
  const auto width = static_cast<size_t>(scene.values);
  for (int64_t b = 0; b < scene.batch; ++b)
    for (int64_t h = 0; h < scene.heads; ++h)
      for (int64_t i = 0; i < scene.queries; ++i) {
        std::vector<double> sum(width), size(width);
        double total = 0;
        bool any = false;
        for (int64_t j = 0; j < scene.keys; ++j) {
          if (!scene.sees(b, i, j)) continue;
          any = true;
          const double w = weight(b, h, i, j);
          total += w;
          for (size_t c = 0; c < width; ++c) {
            const double x = w * value(b, h, j, static_cast<int64_t>(c));
            sum[c] += x;
            size[c] += std::abs(x);
          }
        }
        const double g = any ? denominator(total) : 1;
        for (size_t c = 0; c < width; ++c) {
          truth.o.push_back(any ? sum[c] / g : 0);
          truth.size.push_back(any ? size[c] / std::abs(g) : 0);
        }
      }
  return truth;
}

double error_of(const Array& got, const Truth& truth, bool may_cancel) {
  Ratio ratio;
  size_t at = 0;
  for (int64_t b = 0; b < got.batch; ++b)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t i = 0; i < got.rows; ++i)
        for (int64_t c = 0; c < got.width; ++c, ++at)
          ratio.add(got.at(b, h, i, c), truth.o[at], may_cancel ? truth.size[at] : truth.o[at]);
  return ratio();
}

void record_error(double error) { testing::Test::RecordProperty("error", std::to_string(1e9 * error) + "e-9"); }

}  // namespace attnkit::test
