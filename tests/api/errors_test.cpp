// Every class of error in C++, of the plugin tests/abi/failing/fails.c.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>

namespace {

attnkit::Error failure_of(const std::string& options) {
  const attnkit::Runtime runtime(1, ATTNKIT_FAILING);
  try {
    const attnkit::Block block(runtime, "fails", {sizeof(attn_block), ATTN_ENCODER_SELF, 0, 1, 1, 1, 0, 0}, options);
    const attn_request request{sizeof request, 0, 1, 0, 2, 32, 1, 1, 1, 1, 1, 0};
    block.plan(request);
    float v = 1, out = 0;
    const attn_tensor ports[] = {attnkit::tensor(&v, {1, 1, 1, 1}), attnkit::tensor(&out, {1, 1, 1, 1})};
    attn_run run{};
    run.struct_size = sizeof run;
    run.batch = run.queries = run.keys = 1;
    run.ports = ports;
    block.run(request, run);
  } catch (const attnkit::Error& e) {
    return e;
  }
  return {ATTN_OK, "did not fail"};
}

TEST(Errors, OfEveryClass) {
  for (const std::string in : {"create", "plan", "run"}) {
    for (const int32_t code : {ATTN_INVALID, ATTN_UNSUPPORTED, ATTN_NO_MEMORY, ATTN_DEVICE, ATTN_INTERNAL}) {
      const attnkit::Error e = failure_of("code = " + std::to_string(code) + ", in = '" + in + "'");
      EXPECT_EQ(e.code(), code) << in;
      EXPECT_EQ(e.what(), "fails: told to fail in " + in);
    }
    const attnkit::Error e = failure_of("code = 77, in = '" + in + "'");
    EXPECT_EQ(e.code(), ATTN_INTERNAL);
    EXPECT_NE(std::string(e.what()).find("returned code 77"), std::string::npos);
  }
}

TEST(Errors, RowsThatShareTokens) {
  const attnkit::Model model(attnkit::Runtime(1), ATTNKIT_MODEL "/model.toml");
  const std::vector<int32_t> ids(6, 5);
  attn_tensor t = attnkit::tensor(ids.data(), {2, 3});
  std::vector<float> scores(static_cast<size_t>(6 * model.info().outputs));
  const attn_tensor out = attnkit::tensor(scores.data(), {2, 3, model.info().outputs});
  attn_error err{sizeof err, 0, -1, ""};
  EXPECT_EQ(attnkit_model_forward(model.get(), &t, nullptr, &t, nullptr, &out, &err), ATTN_OK) << err.message;
  t.stride[0] = 2;
  EXPECT_EQ(attnkit_model_forward(model.get(), &t, nullptr, &t, nullptr, &out, &err), ATTN_INVALID);
  EXPECT_STREQ(err.message, "source: shape 2x3 with row stride 2 is impossible");
}

TEST(Errors, MemoryThatThereIsNot) {
  const attnkit::Error e = failure_of("in = 'scratch'");
  EXPECT_EQ(e.code(), ATTN_NO_MEMORY);
  EXPECT_NE(std::string(e.what()).find("2305843009213693952 bytes of scratch"), std::string::npos) << e.what();
}

}  // namespace
