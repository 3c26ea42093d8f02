// Reformer's float64 form as the paper and its Hugging Face code write it: padding, masks, all rounds in one sorted
// line.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/matrix.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

using Hashes = std::vector<std::vector<int64_t>>;  // [round][token]

struct Sizes {
  int64_t chunk, rounds = 2, buckets = 0, length = 0;
  double eps = 1e-6;
  Settings settings() const {
    return {{"chunk", chunk}, {"rounds", rounds}, {"buckets", buckets}, {"length", length}, {"eps", eps}};
  }
  int64_t padded(int64_t n) const { return length > 0 ? length : (n + chunk - 1) / chunk * chunk; }
  int64_t count(int64_t n) const {
    if (buckets > 0) return buckets;
    return int64_t{1} << static_cast<int64_t>(std::floor(std::log2(2.0 * std::floor(padded(n) / chunk))));
  }
};

inline attn_block encoder(int64_t heads, int64_t d, int64_t e) {
  return make_block(ATTN_ENCODER_SELF, false, static_cast<uint32_t>(heads), static_cast<int32_t>(d),
                    static_cast<int32_t>(e));
}

// rotations[round][f][k] of one head.
inline std::vector<Matrix> rotations_of(const Mechanism& mech, const Array& a, int64_t h) {
  const int64_t* shape = mech.ports()[static_cast<size_t>(mech.find("rotations"))]->shape;
  const auto at = [&](int64_t f, int64_t r, int64_t k) {
    return double{a.at(0, 0, ((h * shape[1] + f) * shape[2] + r) * shape[3] + k, 0)};
  };
  std::vector<Matrix> all;
  for (int64_t r = 0; r < shape[2]; ++r) {
    all.emplace_back();
    for (int64_t f = 0; f < shape[1]; ++f) {
      all.back().emplace_back();
      for (int64_t k = 0; k < shape[3]; ++k) all.back().back().push_back(at(f, r, k));
    }
  }
  return all;
}

// argmax [x R; -x R]; rotations[round][f][k].
inline Hashes hashes(const Matrix& x, const std::vector<Matrix>& rotations, int64_t count) {
  Hashes all;
  for (const Matrix& r : rotations) {
    all.emplace_back();
    for (const Row& token : x) {
      Row products;
      for (const double sign : {1.0, -1.0})
        for (size_t k = 0; k < static_cast<size_t>(count / 2); ++k) {
          double sum = 0;
          for (size_t f = 0; f < token.size(); ++f) sum += token[f] * r[f][k];
          products.push_back(sign * sum);
        }
      all.back().push_back(std::max_element(products.begin(), products.end()) - products.begin());
    }
  }
  return all;
}

// The sorted line: every round's tokens by bucket, padding (n and later) in a bucket behind the others.
inline std::vector<int64_t> line_of(const Sizes& s, int64_t n, const Hashes& buckets) {
  const int64_t padded = s.padded(n);
  std::vector<int64_t> line, keys;
  const auto most = static_cast<int64_t>(s.count(n) + 1);
  for (const auto& round : buckets)
    for (int64_t i = 0; i < padded; ++i)
      keys.push_back(static_cast<int64_t>(keys.size()) / padded * most +
                     (i < n ? round[static_cast<size_t>(i)] : most - 1));
  line.resize(keys.size());
  std::iota(line.begin(), line.end(), 0);
  std::stable_sort(line.begin(), line.end(), [&keys](int64_t a, int64_t b) {
    return keys[static_cast<size_t>(a)] < keys[static_cast<size_t>(b)];
  });
  for (int64_t& at : line) at %= padded;
  return line;
}

// The places that one place of the line sees: its chunk and the one before, around the circle.
inline std::vector<int64_t> seen_from(const Sizes& s, const std::vector<int64_t>& line, int64_t at) {
  const auto all = static_cast<int64_t>(line.size());
  if (all <= s.chunk) return line;
  const int64_t from = at / s.chunk * s.chunk - s.chunk;
  std::vector<int64_t> seen;
  for (int64_t j = from; j < from + 2 * s.chunk; ++j) seen.push_back(line[static_cast<size_t>((j + all) % all)]);
  return seen;
}

// The output of one round for token i, and its logsumexp.
struct Round {
  Row o;
  double log;
};

inline Round attend(const Matrix& x, const Matrix& keys, const Matrix& v, size_t i, const std::vector<int64_t>& seen) {
  Row scores;
  for (const int64_t j : seen) {
    const bool padding = j >= static_cast<int64_t>(x.size()), self = j == static_cast<int64_t>(i);
    scores.push_back(self ? -1e5 : padding ? -1e9 : dot(x[i], keys[static_cast<size_t>(j)]));
  }
  const Row p = softmax(scores);
  Row o(v[0].size());
  for (size_t t = 0; t < seen.size(); ++t)
    for (size_t c = 0; c < o.size() && seen[t] < static_cast<int64_t>(v.size()); ++c)
      o[c] += p[t] * v[static_cast<size_t>(seen[t])][c];
  return {o, log_sum(scores)};
}

// Outputs of the tokens of one head.
inline Matrix reformer(const Sizes& s, const Matrix& x, const Matrix& v, const Hashes& buckets) {
  const auto n = static_cast<int64_t>(x.size());
  Matrix keys = x;
  for (Row& k : keys) {
    const auto d = static_cast<double>(k.size());
    const double norm = std::sqrt(dot(k, k) / d + s.eps) * std::sqrt(d);
    for (double& y : k) y /= norm;
  }
  std::vector<int64_t> line(static_cast<size_t>(s.padded(n)));
  std::iota(line.begin(), line.end(), 0);
  if (s.padded(n) > s.chunk) line = line_of(s, n, buckets);
  std::vector<std::vector<Round>> rounds(x.size());
  for (size_t at = 0; at < line.size(); ++at)
    if (const auto i = static_cast<size_t>(line[at]); i < x.size())
      rounds[i].push_back(attend(x, keys, v, i, seen_from(s, line, static_cast<int64_t>(at))));
  Matrix out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    Row logs;
    for (const Round& r : rounds[i]) logs.push_back(r.log);
    const Row p = softmax(logs);
    out[i].resize(v[0].size());
    for (size_t r = 0; r < p.size(); ++r)
      for (size_t c = 0; c < out[i].size(); ++c) out[i][c] += p[r] * rounds[i][r].o[c];
  }
  return out;
}

}  // namespace attnkit::test
