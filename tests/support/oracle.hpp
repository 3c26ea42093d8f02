// The quadratic form of an attention in float64: o_i = sum_j w_ij v_j / g(sum_j w_ij) over the keys that i sees.
#pragma once
#include <functional>

#include "support/array.hpp"
#include "support/runner.hpp"

namespace attnkit::test {

// The keys, and the queries that see them.  Empty vectors: all.
struct Scene {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0, values = 0;  // B, H, N, M, E
  bool causal = false;
  std::vector<int32_t> q_len{}, k_len{}, visible{};
  bool sees(int64_t b, int64_t i, int64_t j) const;
};

using Weight = std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)>;
using Element = std::function<double(int64_t b, int64_t h, int64_t j, int64_t c)>;
using Denominator = std::function<double(double)>;

// The elements of an array that outlives this.
Element elements(const Array& a);

// "none", "add" or "clamp" with eps.
Denominator guard(const std::string& kind, double eps);
// For weights that are divided already, or not at all.
inline double undivided(double) { return 1; }

struct Truth {
  Scene scene;
  std::vector<double> o;     // [B, H, N, E]
  std::vector<double> size;  // sum_j |w_ij v_j| / |g|: what o would be if nothing cancelled
  double at(int64_t b, int64_t h, int64_t i, int64_t c) const {
    return o[static_cast<size_t>(((b * scene.heads + h) * scene.queries + i) * scene.values + c)];
  }
};

Truth oracle(const Scene& scene, const Weight& weight, const Element& value, const Denominator& denominator);

// RMS of (got - o) over RMS of o; or, when terms may cancel, over RMS of size.
double error_of(const Array& got, const Truth& truth, bool may_cancel = false);

// Into the test's report.
void record_error(double error);

}  // namespace attnkit::test
