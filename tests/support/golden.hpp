// The golden cases of one kind, from golden/<kind>.json, and how a plugin is held against one.
#pragma once
#include <nlohmann/json.hpp>

#include "support/oracle.hpp"

namespace attnkit::test {

using Matrix = std::vector<std::vector<double>>;

struct Golden {
  std::string name;
  nlohmann::json params, in;
  Matrix q, k, v, o;  // one head; keys and values that kmask hides are left out
  bool causal = false;
  std::vector<int32_t> visible;  // wait-k cases

  Scene scene() const;
  // Cross attention unless causal: it is the form that allows any lengths.
  attn_block block() const;
};

// Throws std::runtime_error when the file is missing or empty.
std::vector<Golden> golden(const std::string& kind);

// A weight of one head from rows of q and k.
using RowWeight =
    std::function<double(const std::vector<double>& q, const std::vector<double>& k, int64_t i, int64_t j)>;

// The oracle on the exact inputs must reproduce the golden output to 1e-12; then the plugin, fed the inputs rounded to
// f32, is held against the oracle on those same rounded inputs.  prepare sets what is not q, k or v.  Returns the
// plugin's error, relative to what o would be if nothing cancelled when may_cancel.
double check_golden(const attn_plugin& plugin, const Golden& g, const Settings& settings, const RowWeight& weight,
                    const RowWeight& rounded_weight, const Denominator& denominator, Call call,
                    const std::function<void(Inputs&)>& prepare = nullptr, bool may_cancel = false);

}  // namespace attnkit::test
