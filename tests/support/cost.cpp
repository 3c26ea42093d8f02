#include "support/cost.hpp"

#include <gtest/gtest.h>

namespace attnkit::test {

uint64_t bytes_of(Inputs& in, std::initializer_list<const char*> names) {
  uint64_t bytes = 0;
  for (const char* name : names) {
    const Array& a = in[name];
    bytes += static_cast<uint64_t>(a.batch * a.heads * a.rows * a.width) * sizeof(float);
  }
  return bytes;
}

uint64_t state_row(uint64_t bytes) { return (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN; }

void expect_cost(const Mechanism& mech, const attn_request& request, const Cost& cost) {
  const attn_info info = Planned(mech, request).info();
  const bool streams = (request.flags & ATTN_STREAM) != 0;
  const uint64_t state = streams ? static_cast<uint64_t>(request.batch) * cost.state_bytes : 0;
  EXPECT_EQ(cost.flops, info.flops);
  EXPECT_EQ(cost.bytes_read + state, info.bytes_read);
  EXPECT_EQ(cost.bytes_written + state, info.bytes_written);
  EXPECT_EQ(streams ? state_row(cost.state_bytes) : 0, info.state_bytes);
}

uint64_t linear_flops(int64_t heads, int64_t rows, int64_t features, int64_t values) {
  uint64_t adds = 0;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t f = 0; f < features; ++f)
        for (int64_t c = 0; c < values + 1; ++c) ++adds;
  return 2 * adds;
}

}  // namespace attnkit::test
