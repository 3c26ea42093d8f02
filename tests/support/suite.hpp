// A plugin against its own float64 form in every situation: whole, causal, cross, prefix, padded, streamed.
#pragma once
#include "support/oracle.hpp"

namespace attnkit::test {

// The float64 weight of query i and key j, read from the inputs that the plugin gets.
using WeightOf = std::function<Weight(const Mechanism&, Inputs&, const Scene&, const Call&)>;

struct Situation {
  const char* name;
  attn_block block;
  int64_t batch, queries, keys;
  std::vector<int32_t> q_len, k_len;
  bool prefix, totals;
};

// Heads 2 to 3, odd and even widths, E unlike D, M unlike N, ragged lengths.
std::vector<Situation> situations();

// Runs every situation; returns the largest error, each of which is held to kGate (relative to what o would be if
// nothing cancelled when may_cancel).  prepare may change the inputs.
double check_situations(const attn_plugin& plugin, const Settings& settings, const WeightOf& weight,
                        const Denominator& denominator, const std::function<void(Inputs&)>& prepare = nullptr,
                        bool may_cancel = false);

}  // namespace attnkit::test
