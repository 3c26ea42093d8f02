// BigBird's float64 form, and its table as tests read and write it.
#pragma once
#include <cmath>
#include <cstring>

#include "support/matrix.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

using List = std::vector<int64_t>;

struct Sizes {
  int64_t block, random, length;
  bool repeats = false;
  int64_t blocks() const { return length / block; }
  Settings settings() const { return {{"block", block}, {"random", random}, {"length", length}, {"repeats", repeats}}; }
};

inline List table_row(const Array& table, const Sizes& s, int64_t h, int64_t i) {
  List row;
  for (int64_t r = 0; r < s.random; ++r) {
    int32_t t;
    std::memcpy(&t, &table.data()[static_cast<size_t>((h * (s.blocks() - 2) + i - 1) * s.random + r)], sizeof t);
    row.push_back(t);
  }
  return row;
}

inline void set_row(Array& table, const Sizes& s, int64_t h, int64_t i, const List& row) {
  for (size_t r = 0; r < row.size(); ++r) {
    const auto t = static_cast<int32_t>(row[r]);
    std::memcpy(&table.data()[static_cast<size_t>((h * (s.blocks() - 2) + i - 1) * s.random) + r], &t, sizeof t);
  }
}

inline double weight_of(const Row& q, const Row& k, int64_t times) {
  return static_cast<double>(times) * std::exp(dot(q, k) / std::sqrt(static_cast<double>(q.size())));
}

// How often block i counts block t, from the paper's picture: a matrix of blocks with its border, band and dots.
inline int64_t times(const Sizes& s, const List& drawn, int64_t i, int64_t t) {
  const int64_t last = s.blocks() - 1;
  if (i == 0 || i == last) return 1;
  const int64_t fixed = t == 0 || t == last || std::abs(t - i) <= 1 ? 1 : 0;
  const int64_t random = std::count(drawn.begin(), drawn.end(), t);
  return s.repeats ? fixed + random : std::min<int64_t>(1, fixed + random);
}

inline WeightOf weights(const Sizes& s) {
  return [s](const Mechanism&, Inputs& in, const Scene& scene, const Call&) -> Weight {
    return [s, &in, scene](int64_t b, int64_t h, int64_t i, int64_t j) {
      const Array &q = in["q"], &k = in["k"];
      const int64_t at = i / s.block;
      const List drawn = at > 0 && at < s.blocks() - 1 && s.random > 0 ? table_row(in["blocks"], s, h, at) : List{};
      return weight_of(row_of(q, b, h, i), row_of(k, b, h, j), times(s, drawn, at, j / s.block));
    };
  };
}
}  // namespace attnkit::test
