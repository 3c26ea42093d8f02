// The weight of Efficient Attention and of Latte: sum_f softmax_f(q)_f softmax_j(k_.f)_j, over the keys that i sees.
#pragma once
#include "support/golden.hpp"
#include "support/suite.hpp"

namespace attnkit::test {

// Of these ports; scaled: both times (d_model / heads)^-1/2.
WeightOf double_softmax(const std::string& q_port, const std::string& k_port, bool scaled = false);

// Of a golden case's own keys, or of those rounded to f32.
RowWeight double_softmax(const Golden& g, bool rounds);

}  // namespace attnkit::test
