// The refusals of attnkit/plugin.hpp beyond those it must make: plugin.h asks no plugin
// to look at what the host must not do.
#include <cmath>
#include <cstring>

#include "conformance/plugin_files.hpp"
#include "core/conformance/law.hpp"
#include "support/runner.hpp"

namespace attnkit::test {
namespace {

using conformance::Law;
using conformance::Place;

std::vector<Place> places() {
  std::vector<Place> all;
  if (named_files().empty())
    for (const std::string& file : plugin_files())
      for (const Place& place : conformance::places_of({file}, "guard", conformance::kAnywhere)) all.push_back(place);
  return all;
}

class Guarded : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    try {
      law_.emplace(GetParam());
      mech = &law_->mech();
      law_->may_refuse([&] { Planned(*mech, request()); });
    } catch (const conformance::RefusedInWords& refused) {
      GTEST_SKIP() << refused.words;
    }
  }
  attn_request request() const {
    return make_request(2, 8, law_->keys_for(8), ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL);
  }
  // plan must refuse with this code and touch nothing but the error.
  void expect_refused(const attn_request& r, int32_t code) const {
    attn_info info, before;
    std::memset(&info, 0x5A, sizeof info);
    info.struct_size = sizeof info;
    before = info;
    attn_plan* plan = nullptr;
    attn_error error = empty_error();
    EXPECT_EQ(code, mech->plugin().plan(mech->get(), &r, &info, &plan, &error)) << error.message;
    EXPECT_EQ(nullptr, plan);
    EXPECT_EQ(0, std::memcmp(&before, &info, sizeof info));
    EXPECT_EQ(code, error.code);
    EXPECT_EQ(-1, error.where);
    const std::string message = error.message;
    EXPECT_GT(message.size(), 20u) << message;
    EXPECT_EQ(std::string::npos, message.find('\n'));
    EXPECT_EQ(code, mech->plugin().plan(mech->get(), &r, &info, nullptr, nullptr)) << "plan and error may be null";
  }
  // run must refuse and leave the output as it was.
  void expect_run_refused(const std::function<void(attn_run&, attn_exec&, std::vector<attn_tensor>&)>& spoil) const {
    const Planned plan(*mech, request());
    Inputs in = law_->inputs(2, 8);
    Array out(2, in.arrays[mech->output()].heads, 8, in.arrays[mech->output()].width);
    std::vector<attn_tensor> tensors;
    for (size_t i = 0; i < in.arrays.size(); ++i)
      tensors.push_back(i == mech->output() ? out.tensor() : in.arrays[i].tensor());
    const Bytes scratch(plan.info().scratch_bytes + ATTN_ALIGN, 0);
    attn_exec exec{sizeof exec, 1, scratch.data(), plan.info().scratch_bytes, 0, 0, nullptr};
    const std::vector<double> totals = {8, 8};
    attn_run run{};
    run.struct_size = sizeof run;
    run.exec = &exec;
    run.batch = 2;
    run.queries = 8;
    run.keys = law_->keys_for(8);
    run.ports = tensors.data();
    run.q_total = run.k_total = totals.data();
    spoil(run, exec, tensors);
    attn_error error = empty_error();
    EXPECT_EQ(ATTN_INVALID, mech->plugin().run(plan.get(), &run, &error));
    EXPECT_EQ(ATTN_INVALID, error.code);
    EXPECT_GT(std::strlen(error.message), 20u);
    for (const float x : out.data()) EXPECT_TRUE(std::isnan(x));
  }

 private:
  std::optional<Law> law_;

 protected:
  const Mechanism* mech = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Conformance, Guarded, testing::ValuesIn(places()), [](const auto& info) {
  return stem(info.param.file) + "_" + conformance::name_of(info.param.seat);
});
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Guarded);

TEST_P(Guarded, TrainingWithState) {
  attn_request r = request();
  r.flags |= ATTN_TRAIN | ATTN_STREAM;
  expect_refused(r, ATTN_UNSUPPORTED);
}

TEST_P(Guarded, OtherDevices) {
  attn_request r = request();
  r.device_type = 2;
  expect_refused(r, ATTN_UNSUPPORTED);
}

TEST_P(Guarded, ImpossibleRequests) {
  attn_request r = request();
  r.flags |= ATTN_STREAM | ATTN_PREFIX;
  expect_refused(r, ATTN_INVALID);
  r = request();
  r.workers = 0;
  expect_refused(r, ATTN_INVALID);
  r = request();
  r.keys = -1;
  expect_refused(r, ATTN_INVALID);
  r = request();
  r.struct_size = 8;
  expect_refused(r, ATTN_INVALID);
}

TEST_P(Guarded, RunsBeyondTheirPlan) {
  expect_run_refused([](attn_run& run, attn_exec&, auto&) { run.batch = 3; });
  expect_run_refused([](attn_run& run, attn_exec&, auto&) { run.queries = 9; });
  expect_run_refused([](attn_run& run, attn_exec&, auto&) { run.keys = 1000; });
  expect_run_refused([](attn_run&, attn_exec& exec, auto&) { exec.workers = 2; });
  expect_run_refused([](attn_run& run, attn_exec&, auto&) { run.q_total = nullptr; });
  expect_run_refused([](attn_run& run, attn_exec& exec, auto&) {
    run.state = exec.scratch;
    run.state_stride = ATTN_ALIGN;
  });
  expect_run_refused([](attn_run& run, attn_exec&, auto&) {
    static const int32_t visible[16] = {};
    run.visible = visible;
  });
}

TEST_P(Guarded, ScratchThatIsShort) {
  if (Planned(*mech, request()).info().scratch_bytes == 0) return;
  expect_run_refused([](attn_run&, attn_exec& exec, auto&) { exec.scratch_bytes -= 1; });
  expect_run_refused([](attn_run&, attn_exec& exec, auto&) { exec.scratch = static_cast<char*>(exec.scratch) + 4; });
}

TEST_P(Guarded, TensorsThatDifferFromTheirPort) {
  for (size_t p = 0; p < mech->ports().size(); ++p) {
    expect_run_refused([p](attn_run&, attn_exec&, auto& t) { t[p].shape[t[p].ndim - 1] += 1; });
    expect_run_refused([p](attn_run&, attn_exec&, auto& t) { t[p].dtype_bits = 16; });
    if (mech->ports()[p]->kind != ATTN_AUX_IN)  // there may be no value yet
      expect_run_refused([p](attn_run&, attn_exec&, auto& t) { t[p].data = nullptr; });
    expect_run_refused([p](attn_run&, attn_exec&, auto& t) { t[p].device_type = 2; });
    expect_run_refused([p](attn_run&, attn_exec&, auto& t) { t[p].ndim = t[p].ndim == 4 ? 3 : 4; });
  }
}

}  // namespace
}  // namespace attnkit::test
