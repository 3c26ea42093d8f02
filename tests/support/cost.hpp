// Compares the costs that a plan declares with those that a test counts.
#pragma once
#include <initializer_list>

#include "support/runner.hpp"

namespace attnkit::test {

// The floats of these inputs, four bytes each.
uint64_t bytes_of(Inputs& in, std::initializer_list<const char*> names);

// Bytes of a state row are whole cache lines.
uint64_t state_row(uint64_t bytes);

// Of a whole run: no state.  Of a stream: the bytes of one row's state, all of which a run reads and writes.
struct Cost {
  uint64_t flops, bytes_read, bytes_written, state_bytes = 0;
};

// The plan of this request must declare this cost, and no state unless it is for a stream.
void expect_cost(const Mechanism& mech, const attn_request& request, const Cost& cost);

// 2 (E + 1) flops for each of these feature rows: into S and z, or out of them.
uint64_t linear_flops(int64_t heads, int64_t rows, int64_t features, int64_t values);

}  // namespace attnkit::test
