// A plugin against its own float64 form in every situation: whole, causal, cross, prefix, padded, streamed.
#pragma once
#include "support/matrix.hpp"
#include "support/oracle.hpp"

namespace attnkit::test {

// The float64 weight of query i and key j, read from the inputs that the plugin gets.
using WeightOf = std::function<Weight(const Mechanism&, Inputs&, const Scene&, const Call&)>;

// The weights of one head, a row for each query, of which query i sees the first seen[i] keys.
using HeadWeights = std::function<Matrix(Inputs&, int64_t b, int64_t h, const std::vector<int64_t>& seen)>;
WeightOf by_head(const HeadWeights& form);

struct Situation {
  const char* name;
  attn_block block;
  int64_t batch, queries, keys;
  std::vector<int32_t> q_len, k_len;
  bool prefix, totals;
  Call call() const;
  Scene scene() const;
};

// Heads 2 to 3, odd and even widths, E unlike D, M unlike N, ragged lengths.
std::vector<Situation> situations();
// The same in a few rows and columns, for what is done element by element.
std::vector<Situation> small_situations();

// The inputs of `in` with a head of keys for each head of queries, as the float64 forms read them.
Inputs with_repeated_keys(const Inputs& in);

// Shared heads of keys give the bits of repeated ones, whole and streamed, with any number of workers, and a state as
// many times smaller.
void check_shared_keys(const attn_plugin& plugin, const Settings& settings = {}, bool causal = true);

// Whole sequences of one head and n rows have the same bits with any number of workers.  Returns the number of pieces
// that each loop of a run offers two workers.
std::vector<int64_t> check_pieces(const Mechanism& mech, int64_t n);

// Runs every situation; returns the largest error, each of which is held to kGate (relative to what o would be if
// nothing cancelled when may_cancel).  prepare may change the inputs; situations that the mechanism refuses are not
// among those allowed.
double check_situations(const attn_plugin& plugin, const Settings& settings, const WeightOf& weight,
                        const Denominator& denominator, const std::function<void(Inputs&)>& prepare = nullptr,
                        bool may_cancel = false, const std::function<bool(const Situation&)>& allowed = nullptr);

// The largest of a test's errors, one for each situation that is allowed.
double worst_situation(const std::function<bool(const Situation&)>& allowed,
                       const std::function<double(const Situation&)>& error);

// Padded keys of zeros take weight; where their length says that they are padding, the run equals one without them.
void check_zero_keys_take_weight(const Mechanism& mech);

// A plan's bounds do not change the bits of a row of n.
void check_larger_bounds(const Mechanism& mech, int64_t n, int64_t bounds);

}  // namespace attnkit::test
