// fails: refuses every block with the class of error that it is told, so that a program can be shown all of them.
//
//   cmake -S samples/failing_plugin -B failing && cmake --build failing
//   errors model.toml "half past three" $PWD/failing/lib/attnkit/1      # the sample in any language
#include <attnkit/plugin.hpp>

namespace {

struct Fails {
  static constexpr attnkit::About about{.name = "fails",
                                        .summary = "refuses every block with the error that it is told",
                                        .citation = "none, a sample of attnkit",
                                        .state_revision = "1"};
  struct Plan {};

  static attnkit::Options options() {
    return {attnkit::Option::integer("code", ATTN_INTERNAL, ATTN_INVALID, ATTN_INTERNAL, "what it answers")};
  }

  Fails(const attn_block&, const attnkit::Values& values, attnkit::Ports&) {
    const auto code = static_cast<int32_t>(values.integer("code"));
    throw attnkit::Refusal(code, attnkit::say("told to fail with code ", code));
  }

  Plan plan(const attnkit::Request&, attnkit::Info&) const { return {}; }
  void run(const Plan&, const attn_run&) const {}
};

}  // namespace

ATTNKIT_PLUGIN(Fails)
