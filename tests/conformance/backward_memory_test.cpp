// A backward pass of a plugin whose streams keep a state of one size, whatever their length, has scratch of one size as
// well.  plugin.h asks this of nobody: it is a promise of those here.
#include <gtest/gtest.h>

#include <map>

#include "conformance/plugin_files.hpp"
#include "support/runner.hpp"

namespace attnkit::test {
namespace {

const std::map<std::string, const char*> growing{
    {"local", "one number of each query, as softmax has"},
    {"luna", "weights of each query in causal blocks and their gradients"},
    {"ssru", "gradients of x W and x W_f, which all workers need"},
};

// 0: the mechanism refuses the request.
uint64_t bytes(const Mechanism& mech, const attn_request& request, uint64_t attn_info::*of) {
  try {
    return Planned(mech, request).info().*of;
  } catch (const Refused&) {
    return 0;
  }
}

TEST(BackwardMemory, DoesNotGrowWhereStatesDoNot) {
  int held = 0;
  for (const std::string& file : named_files().empty() ? plugin_files() : std::vector<std::string>{}) {
    std::vector<Mechanism> seats;
    for (const auto& [role, causal] :
         {std::pair{ATTN_ENCODER_SELF, false}, {ATTN_DECODER_SELF, true}, {ATTN_DECODER_CROSS, false}})
      try {
        seats.emplace_back(load(file), make_block(role, causal, 2, 32, 32));
      } catch (const Refused&) {
      }
    const uint32_t totals = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
    const auto state = [&](const Mechanism& mech, int64_t n) {
      return bytes(mech, make_request(1, 1, 1, ATTN_STREAM | totals, n), &attn_info::state_bytes);
    };
    const auto scratch = [&](const Mechanism& mech, int64_t n) {
      return bytes(mech, make_request(1, n, n, ATTN_TRAIN | totals), &attn_info::backward_scratch_bytes);
    };
    const int64_t n = 1 << 15;
    bool constant = false, grows = false;
    for (const Mechanism& mech : seats) constant |= state(mech, n) > 0 && state(mech, n) == state(mech, 4 * n);
    for (const Mechanism& mech : seats) grows |= scratch(mech, 4 * n) > scratch(mech, n);
    if (!constant) continue;
    EXPECT_EQ(growing.contains(stem(file)), grows) << stem(file);
    ++held;
  }
  EXPECT_TRUE(held > 10 || !named_files().empty());
}

}  // namespace
}  // namespace attnkit::test
