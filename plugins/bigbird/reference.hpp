// BigBird in float64 as the paper draws it: the weight of every pair, by how often the picture of blocks has it.
#pragma once
#include <cmath>
#include <cstring>

#include "support/suite.hpp"

namespace attnkit::test {

using List = std::vector<int64_t>;

struct Sizes {
  int64_t block, random, length;
  bool repeats = false;
  int64_t blocks() const { return length / block; }
  Settings settings() const { return {{"block", block}, {"random", random}, {"length", length}, {"repeats", repeats}}; }
};

// Returns how often block i counts block t: the paper's matrix of blocks with its border, band and dots.
inline int64_t times(const Sizes& s, const List& drawn, int64_t i, int64_t t) {
  const int64_t last = s.blocks() - 1;
  if (i == 0 || i == last) return 1;
  const int64_t fixed = t == 0 || t == last || std::abs(t - i) <= 1 ? 1 : 0;
  const int64_t random = std::count(drawn.begin(), drawn.end(), t);
  return s.repeats ? fixed + random : std::min<int64_t>(1, fixed + random);
}

// The weights of one head, not yet divided by their sum: times e^(D^-1/2 q_i . k_j).  drawn: the table, by block.
inline Matrix bigbird(const Sizes& s, const Matrix& q, const Matrix& k, const std::vector<List>& drawn) {
  Matrix w(q.size());
  for (size_t i = 0; i < q.size(); ++i)
    for (size_t j = 0; j < k.size(); ++j) {
      const int64_t at = static_cast<int64_t>(i) / s.block, to = static_cast<int64_t>(j) / s.block;
      w[i].push_back(static_cast<double>(times(s, drawn[static_cast<size_t>(at)], at, to)) *
                     std::exp(dot(q[i], k[j]) / std::sqrt(static_cast<double>(q[i].size()))));
    }
  return w;
}

// The table as tests read and write it.

inline List table_row(const Array& table, const Sizes& s, int64_t h, int64_t i) {
  List row;
  for (int64_t r = 0; r < s.random; ++r) {
    int32_t t;
    std::memcpy(&t, &table.data()[static_cast<size_t>((h * (s.blocks() - 2) + i - 1) * s.random + r)], sizeof t);
    row.push_back(t);
  }
  return row;
}

inline std::vector<List> table_of(const Array& table, const Sizes& s, int64_t h) {
  std::vector<List> rows(static_cast<size_t>(s.blocks()));
  for (int64_t i = 1; i < s.blocks() - 1; ++i) rows[static_cast<size_t>(i)] = table_row(table, s, h, i);
  return rows;
}

inline void set_row(Array& table, const Sizes& s, int64_t h, int64_t i, const List& row) {
  for (size_t r = 0; r < row.size(); ++r) {
    const auto t = static_cast<int32_t>(row[r]);
    std::memcpy(&table.data()[static_cast<size_t>((h * (s.blocks() - 2) + i - 1) * s.random) + r], &t, sizeof t);
  }
}

}  // namespace attnkit::test
