// Nystrom attention in float64, as its authors compute it: on a padded sequence, whole matrices at a time.
#pragma once
#include <algorithm>
#include <cmath>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace attnkit::test {

// softmax of each row over its first `real` columns; the others get 0, as the authors' mask of -1e9 gives them.
inline Matrix softmax(Matrix scores, size_t real) {
  for (Row& row : scores) {
    const size_t all = row.size();
    row.resize(real);
    row = softmax(row);
    row.resize(all);
  }
  return scores;
}

struct Form {
  int64_t landmarks = 64, iterations = 6, length = 0;
  Matrix filters{};  // by head; none: no convolution

  Settings settings() const {
    Settings s = {{"landmarks", landmarks}, {"iterations", iterations}, {"length", length}};
    if (!filters.empty()) {
      s["conv"] = true;
      s["kernel"] = static_cast<int64_t>(filters[0].size());
    }
    return s;
  }
  // As the authors compute it: on a sequence that is padded with zeros, with the pads masked as keys.
  Matrix operator()(Matrix q, Matrix k, Matrix v, size_t head = 0) const {
    const size_t n = q.size(), l = static_cast<size_t>(landmarks);
    const size_t padded = length > 0 ? static_cast<size_t>(length) : (n + l - 1) / l * l, segment = padded / l;
    const double root = std::pow(static_cast<double>(q[0].size()), -0.25);
    for (Matrix* x : {&q, &k}) {
      x->resize(padded, Row((*x)[0].size()));
      for (Row& row : *x)
        for (double& y : row) y *= root;
    }
    v.resize(padded, Row(v[0].size()));
    Matrix out;
    if (segment == 1) {
      out = times(softmax(times(q, transposed(k)), n), v);
    } else {
      const Matrix lq = means(q, segment), lk = means(k, segment);
      const Matrix a = softmax(times(lq, transposed(lk)), l);
      const Matrix left = softmax(times(q, transposed(lk)), l), right = softmax(times(lq, transposed(k)), n);
      out = times(times(left, pseudo_inverse(a, iterations)), times(right, v));
    }
    if (!filters.empty()) convolve(filters[head], v, out);
    out.resize(n);
    return out;
  }
  static Matrix means(const Matrix& x, size_t segment) {
    Matrix m(x.size() / segment, Row(x[0].size()));
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t f = 0; f < x[0].size(); ++f) m[i / segment][f] += x[i][f] / static_cast<double>(segment);
    return m;
  }
  static void convolve(const Row& w, const Matrix& v, Matrix& out) {
    const auto half = static_cast<int64_t>(w.size() / 2), n = static_cast<int64_t>(v.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = std::max<int64_t>(0, i - half); j < std::min(n, i + half + 1); ++j)
        for (size_t c = 0; c < v[0].size(); ++c)
          out[static_cast<size_t>(i)][c] += w[static_cast<size_t>(j - i + half)] * v[static_cast<size_t>(j)][c];
  }
};

}  // namespace attnkit::test
