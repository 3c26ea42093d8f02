// The golden cases of one kind, from golden/<kind>.json, and how a plugin is held against one.
#pragma once
#include <nlohmann/json.hpp>

#include "support/matrix.hpp"
#include "support/oracle.hpp"

namespace attnkit::test {

struct Golden {
  std::string name;
  nlohmann::json params, in, out;
  Matrix q, k, v, o;  // Q, K, V and O of one head, where the case has them; what kmask hides is left out
  bool causal = false;
  std::vector<int32_t> visible;  // wait-k cases

  // The way a plugin runs it: as cross attention unless causal, for that form allows any lengths.
  uint32_t role = ATTN_DECODER_CROSS;
  std::string q_port = "q", k_port = "k";

  Scene scene() const;
  std::vector<int64_t> seen() const;  // keys that each query sees
  attn_block block() const;
};

// Throws std::runtime_error when the file is missing or empty.
std::vector<Golden> golden(const std::string& kind);

// A weight of one head from rows of q and k.
using RowWeight =
    std::function<double(const std::vector<double>& q, const std::vector<double>& k, int64_t i, int64_t j)>;

// Of a head's weights, a row for each query.
inline RowWeight weight_in(Matrix weights) {
  return [weights = std::move(weights)](const Row&, const Row&, int64_t i, int64_t j) {
    return weights[static_cast<size_t>(i)][static_cast<size_t>(j)];
  };
}

// The quadratic form of a case on its own numbers, or on those rounded to f32.
Truth truth_of(const Golden& g, bool rounds, const RowWeight& weight, const Denominator& denominator);
// One head's output.
Matrix rows_of(const Truth& truth);

// The oracle on the exact inputs must reproduce the golden output to 1e-12; then the plugin, fed the inputs rounded to
// f32, is held against the oracle on those same rounded inputs.  prepare sets what is not q, k or v.  Returns the
// plugin's error, relative to what o would be if nothing cancelled when may_cancel.
double check_golden(const attn_plugin& plugin, const Golden& g, const Settings& settings, const RowWeight& weight,
                    const RowWeight& rounded_weight, const Denominator& denominator, Call call,
                    const std::function<void(Inputs&)>& prepare = nullptr, bool may_cancel = false);

}  // namespace attnkit::test
