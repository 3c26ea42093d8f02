// Runs of luna held against its float64 form.
#pragma once
#include <gtest/gtest.h>

#include "oracle.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

inline const attn_plugin& plugin() { return load(ATTNKIT_PLUGIN_FILE); }

using Aux = std::map<std::string, Array>;

// Rows [0, count) of all heads of one batch row, heads beside each other.
inline Matrix rows_of(const Array& a, int64_t b, int64_t count) {
  Matrix rows(static_cast<size_t>(count));
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t i = 0; i < count; ++i)
      for (const double x : row_of(a, b, h, i)) rows[static_cast<size_t>(i)].push_back(x);
  return rows;
}

inline Row vector_of(Inputs& in, const char* name) {
  const auto& all = in[name].data();
  return {all.begin(), all.begin() + in[name].rows};
}

// y = x W + b of a stored W [out][in].
inline Affine affine(Inputs& in, const std::string& name, int64_t width) {
  Affine f{Matrix(static_cast<size_t>(width)), vector_of(in, (name + "_bias").c_str())};
  const Array& w = in[name + "_weight"];
  for (int64_t i = 0; i < width; ++i)
    for (int64_t o = 0; o < static_cast<int64_t>(f.b.size()); ++o)
      f.w[static_cast<size_t>(i)].push_back(w.at(0, 0, o * width + i, 0));
  return f;
}

struct Options {
  bool tied = true, contextual = true, dynamic = true, without_aux = false;
  int64_t pheads = 0;
  std::string activation = "log2";
  Settings settings() const {
    return {{"tied", tied},
            {"contextual", contextual},
            {"dynamic", dynamic},
            {"pheads", pheads},
            {"activation", activation}};
  }
};

// The rows of P that batch row b starts from; keys: of the row.
inline Matrix start(Inputs& in, const Options& options, int64_t b, int64_t keys) {
  const Array& learned = in["p_start"];
  const int64_t width = in.mech->block().d_model, l = learned.rows / width;
  const bool causal = in.mech->block().causal != 0;
  const int64_t count = keys == 0 ? 0 : options.dynamic && !causal ? std::min(l, keys) : l;
  if (options.contextual && !options.without_aux) return rows_of(in["p"], b, count);
  Matrix p;
  for (int64_t i = 0; i < count; ++i) {
    p.emplace_back();
    for (int64_t c = 0; c < width; ++c) p.back().push_back(learned.at(0, 0, i * width + c, 0));
  }
  return p;
}

inline Packed truth_of(Inputs& in, const Options& options, int64_t b, int64_t queries, int64_t keys) {
  const attn_block& block = in.mech->block();
  const int64_t width = block.d_model;
  const Matrix p = start(in, options, b, keys), q = rows_of(in["q"], b, queries), pk = rows_of(in["pk"], b, keys);
  Weights weights{affine(in, "pq", width), {}, {}, {}, {}};
  if (block.causal) {
    Packed result{Matrix(static_cast<size_t>(queries)), {}, {}};
    const Matrix pq = project(p, weights.pq);
    for (int64_t h = 0; h < block.heads && queries > 0; ++h) {
      Matrix own;
      const int64_t d = width / block.heads;
      for (const auto& row : pq) own.emplace_back(row.begin() + h * d, row.begin() + (h + 1) * d);
      const Matrix o =
          causal(own, rows_of(in["q"], b, h, queries), rows_of(in["k"], b, h, keys),
                 rows_of(in[options.tied ? "k" : "v"], b, h, keys), rows_of(in["pk"], b, h, keys), options.activation);
      for (size_t i = 0; i < o.size(); ++i) result.o[i].insert(result.o[i].end(), o[i].begin(), o[i].end());
    }
    return result;
  }
  weights.k = affine(in, "k", width);
  weights.v = options.tied ? weights.k : affine(in, "v", width);
  if (options.contextual) weights.scale = vector_of(in, "norm_weight"), weights.shift = vector_of(in, "norm_bias");
  return packed(p, q, pk, options.tied ? pk : rows_of(in["pv"], b, keys), weights, block.heads,
                static_cast<size_t>(options.pheads ? options.pheads : block.heads));
}

inline int64_t length_of(const std::vector<int32_t>& lengths, int64_t b, int64_t all) {
  return lengths.empty() ? all : lengths[static_cast<size_t>(b)];
}

// Of the numbers that `want` has, and zeros behind its rows.
inline void add_error(const Array& got, int64_t b, const Matrix& want, double& error, double& size) {
  for (int64_t i = 0; i < got.rows; ++i)
    for (int64_t h = 0; h < got.heads; ++h)
      for (int64_t c = 0; c < got.width; ++c) {
        const auto row = static_cast<size_t>(i);
        const double w =
            row < want.size() && !want[row].empty() ? want[row][static_cast<size_t>(h * got.width + c)] : 0;
        error += std::pow(got.at(b, h, i, c) - w, 2);
        size += w * w;
      }
}

// Holds one whole run, and P' where it gives one, against the float64 form.
inline double check(Inputs& in, const Options& options, Call call = {}) {
  Aux aux;
  call.without_aux = options.without_aux;
  const Array got = run_whole(in, 0, call, 1, &aux);
  double error = 0, size = 0, p_error = 0, p_size = 0;
  for (int64_t b = 0; b < got.batch; ++b) {
    const Packed want =
        truth_of(in, options, b, length_of(call.q_len, b, got.rows), length_of(call.k_len, b, in["pk"].rows));
    add_error(got, b, want.o, error, size);
    if (aux.contains("p")) add_error(aux.at("p"), b, want.p, p_error, p_size);
  }
  const double worst = std::max(std::sqrt(error / size), p_size == 0 ? 0 : std::sqrt(p_error / p_size));
  EXPECT_LE(worst, kGate);
  EXPECT_EQ(aux.contains("p"), options.contextual && !in.mech->block().causal);
  return worst;
}

inline double check(const Options& options, const std::function<void(Inputs&)>& prepare = nullptr) {
  const auto allowed = [&](const Situation& s) { return !s.prefix && !(s.block.causal && options.pheads); };
  return worst_situation(allowed, [&](const Situation& s) {
    const Mechanism mech(plugin(), s.block, options.settings());
    Inputs in(mech, s.batch, s.queries, s.keys, 3);
    if (in.mech->find("norm_weight") >= 0) {
      in["norm_weight"].randomize(8);
      in["norm_bias"].randomize(9);
    }
    if (prepare) prepare(in);
    Call call;
    call.q_len = s.q_len;
    call.k_len = s.k_len;
    return check(in, options, call);
  });
}

}  // namespace attnkit::test
