#include "support/refusal.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace attnkit::test {

void expect_refused(const std::function<void()>& act, const std::string& words, int32_t where, int32_t code) {
  const Refused refused = refusal(act);
  EXPECT_EQ(code, refused.code) << words;
  EXPECT_EQ(where, refused.where) << words;
  EXPECT_NE(std::string::npos, std::string(refused.what()).find(words)) << words << "\nis not in\n" << refused.what();
}

void expect_refused(const attn_plugin& plugin, const attn_block& block, const Settings& settings,
                    const std::string& words, const std::string& option) {
  const auto* end = plugin.options + plugin.n_options;
  const auto* at = std::find_if(plugin.options, end, [&](const attn_option* o) { return o->name == option; });
  ASSERT_NE(end, at) << "no option " << option;
  expect_refused([&] { Mechanism(plugin, block, settings); }, words, static_cast<int32_t>(at - plugin.options),
                 ATTN_UNSUPPORTED);
}

void expect_refused(const Mechanism& mech, const attn_request& request, const std::string& words) {
  expect_refused([&] { Planned(mech, request); }, words, -1, ATTN_UNSUPPORTED);
}

}  // namespace attnkit::test
