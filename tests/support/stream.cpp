#include "support/stream.hpp"

#include <gtest/gtest.h>

namespace attnkit::test {

void check_any_split(const Mechanism& mech, int64_t n, int64_t batch) {
  Inputs in(mech, batch, n, n, 1);
  const Array whole = run_whole(in, 0, {});
  for (const int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{7}, int64_t{16}, int64_t{40}, int64_t{64}, n - 1, n})
    EXPECT_TRUE(same_bits(whole, streamed(in, {chunks_of(n, chunk)}))) << n << " rows by " << chunk;
  EXPECT_TRUE(same_bits(whole, streamed(in, {{7, n - 9, 1, 1}}))) << n << " rows, by 1 after many";
}

void check_newest_row_again(const Mechanism& mech) {
  const int32_t n = 9;
  Inputs in(mech, 1, n, n, 1);
  const Array whole = run_whole(in, 0, {});
  const Planned plan(mech, make_request(1, n, n, ATTN_STREAM, n));
  const Arena arena(plan.info().state_bytes, 1);
  Call call;
  call.arena = &arena;
  call.queries = 0;
  call.keys = n;
  call.q_pos = call.k_pos = {0};
  plan.run(in, call);
  call.queries = 1;
  call.keys = 0;
  call.q_pos = {n - 1};
  call.k_pos = {n};
  for (int time = 0; time < 2; ++time) {
    const Array again = plan.run(in, call);
    for (int64_t h = 0; h < whole.heads; ++h)
      for (int64_t c = 0; c < whole.width; ++c) EXPECT_EQ(whole.at(0, h, n - 1, c), again.at(0, h, 0, c));
  }
}

}  // namespace attnkit::test
