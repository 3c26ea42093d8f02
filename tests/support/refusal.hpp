// The refusal of a plugin: the code, the words and the option or port that they are about.
#pragma once
#include <functional>

#include "support/runner.hpp"

namespace attnkit::test {

// Act must be refused with this code and with words that hold these, about this option or port (-1: about none).
void expect_refused(const std::function<void()>& act, const std::string& words, int32_t where, int32_t code);
// A mechanism of these settings, about this option.
void expect_refused(const attn_plugin& plugin, const attn_block& block, const Settings& settings,
                    const std::string& words, const std::string& option);
// A plan, about the mechanism as it is.
void expect_refused(const Mechanism& mech, const attn_request& request, const std::string& words);

}  // namespace attnkit::test
