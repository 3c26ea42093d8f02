#include "support/gradient.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace attnkit::test {

double check_gradients(Inputs& in, uint32_t flags, const Call& call, bool every_element, double gate) {
  const conformance::Differences found = conformance::differences(in, flags, call, every_element, gate);
  for (const std::string& problem : found.problems) ADD_FAILURE() << problem;
  return found.worst;
}

double check_gradients(const attn_plugin& plugin, const Settings& settings, const GradientCheck& check) {
  double worst = 0;
  int checked = 0;
  for (const bool small : {true, false})
    for (const Situation& s : small ? small_situations() : situations()) {
      if (check.allowed && !check.allowed(s)) continue;
      SCOPED_TRACE(s.name);
      std::optional<Mechanism> mech;
      Call call = s.call();
      const uint32_t flags = s.prefix ? ATTN_PREFIX : 0;
      try {
        mech.emplace(plugin, s.block, settings);
        Inputs in(*mech, s.batch, s.queries, s.keys, 3);
        Planned(*mech, whole_request(in, flags, call, 1));
      } catch (const Refused& refused) {
        if (refused.code != ATTN_UNSUPPORTED) throw;
        continue;
      }
      Inputs in(*mech, s.batch, s.queries, s.keys, 3);
      if (check.prepare) check.prepare(in);
      const bool aux = std::any_of(mech->ports().begin(), mech->ports().end(),
                                   [](const attn_port* port) { return port->kind == ATTN_AUX_IN; });
      for (const bool without_aux : aux ? std::vector{false, true} : std::vector{false}) {
        call.without_aux = without_aux;
        worst = worse(worst, check_gradients(in, flags, call, small, check.gate));
        ++checked;
      }
    }
  EXPECT_GT(checked, 0) << "no situation is one that the mechanism takes";
  return worst;
}

namespace {

template <class Real>
void fill(BasicInputs<Real>& in, const ByPort& numbers) {
  for (const auto& [name, rows] : numbers) {
    const uint32_t kind = in.mech->ports()[static_cast<size_t>(in.mech->find(name))]->kind;
    kind == ATTN_LEARNED || kind == ATTN_TABLE ? put(flat(rows), in[name]) : put(rows, in[name]);
  }
}

}  // namespace

double check_golden_gradients(const Mechanism& mech, const Call& call, const ByPort& inputs, const Matrix& given,
                              const ByPort& gradients) {
  const auto rows = [&](uint32_t kind) {
    for (const auto& [name, numbers] : inputs)
      if (mech.ports()[static_cast<size_t>(mech.find(name))]->kind == kind) return static_cast<int64_t>(numbers.size());
    return static_cast<int64_t>(given.size());
  };
  const uint32_t flags = call.visible.empty() ? 0 : ATTN_PREFIX;
  Inputs in(mech, 1, static_cast<int64_t>(given.size()), rows(ATTN_KEY), 1);
  fill(in, inputs);
  Inputs64 exact(in);
  fill(exact, inputs);
  Training<double> training(exact, flags, call);
  Gradients<double> before = training.gradients();
  for (size_t p = 0; p < before.size(); ++p)
    if (is_given(*mech.ports()[p])) before[p].set([](auto...) { return 0; });
  put(given, before[mech.output()]);
  Gradients<double> grads = before;
  training.backward(grads);
  const std::vector<Array64> got = conformance::made(mech, before, grads);
  double worst = 0, largest = 0;
  for (const Array64& gradient : got) largest = std::max(largest, conformance::largest_of(gradient));
  for (const auto& [name, numbers] : gradients) {
    const auto p = static_cast<size_t>(mech.find(name));
    Array64 want = got[p];
    mech.ports()[p]->kind == ATTN_LEARNED ? put(flat(numbers), want) : put(numbers, want);
    double off = 0;
    for (int64_t b = 0; b < want.batch; ++b)
      for (int64_t h = 0; h < want.heads; ++h)
        for (int64_t i = 0; i < want.rows; ++i)
          for (int64_t c = 0; c < want.width; ++c)
            off = worse(off, std::abs(got[p].at(b, h, i, c) - want.at(b, h, i, c)));
    const double error = off / std::max(conformance::largest_of(want), largest * conformance::kMinGradient);
    EXPECT_LE(error, 1e-12) << "gradient of " << name;
    worst = worse(worst, error);
  }
  check_gradients(in, flags, call, true);
  return worst;
}

}  // namespace attnkit::test
