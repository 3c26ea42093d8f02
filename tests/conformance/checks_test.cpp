// Every check of core/conformance on every plugin: a suite for each check, a case for each plugin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "conformance/plugin_files.hpp"
#include "core/conformance/check.hpp"
#include "core/conformance/halves.hpp"
#include "core/conformance/process/counted_malloc.hpp"

namespace attnkit::test {
namespace {

using conformance::Check;
using conformance::Finding;
using conformance::Verdict;

// attnkit's own, and those of them that refuse a law in words wherever it is tried; "": all.  Another refusal is
// something that was lost.  A new mechanism may refuse what it likes until it is named here.
constexpr std::string_view known =
    "bigbird cosformer efficient latte leap linear linformer local luna nystromformer performer reformer relative_bias "
    "relu rope_linear s4d skyformer softmax ssru";
struct Refusing {
  std::string_view checks, mechanisms;
};
constexpr Refusing refusing[] = {
    {"plan.state_grows", "bigbird nystromformer reformer skyformer"},
    {"table.fill", "nystromformer rope_linear"},
    {"whole.long", "bigbird"},
    {"whole.halves", ""},
    {"whole.no_keys", "bigbird latte local nystromformer reformer relative_bias s4d skyformer ssru"},
    {"whole.some_queries", "bigbird efficient linformer nystromformer reformer skyformer"},
    {"refusal.bidirectional", "ssru"},
    {"locality.future", "bigbird efficient linformer nystromformer reformer skyformer"},
    {"locality.visible", "bigbird luna nystromformer reformer s4d skyformer ssru"},
    {"stream.", "bigbird nystromformer reformer skyformer"},
    {"stream.long", "linformer"},
    {"stream.apart", "efficient linformer"},
    {"stream.rewinds", "efficient latte linformer rope_linear s4d ssru"},
    {"stream.shared_slots", "latte local relative_bias s4d ssru"},
    {"stream.growing_source", "latte local luna relative_bias rope_linear s4d ssru"},
    {"gradient.adds", "bigbird efficient latte local nystromformer reformer rope_linear skyformer"},
    {"gradient.visible", "bigbird luna nystromformer reformer s4d skyformer ssru"},
    {"gradient.prefixes", "bigbird luna nystromformer reformer s4d skyformer ssru"},
    {"gradient.shared_keys", "bigbird latte linformer nystromformer reformer relative_bias s4d skyformer ssru"},
};

bool may_refuse(const std::string& check, const std::string& mechanism) {
  const auto is_among = [&](std::string_view names) { return std::ranges::count(split(names, ' '), mechanism) > 0; };
  if (!named_files().empty() || !is_among(known)) return true;
  return std::ranges::any_of(refusing, [&](const Refusing& r) {
    return check.starts_with(r.checks) && (r.mechanisms.empty() || is_among(r.mechanisms));
  });
}

// Of f32, or of the type that a bridge of tests/cuda was told to compute in.
double gate() {
  const char* type = std::getenv("ATTNKIT_CUDA_TYPE");
  for (const conformance::Half& half : conformance::all_halves())
    if (type && std::string_view(type) == half.name) return half.gate;
  return conformance::kGate;
}

// Of a file, with the places of one random draw.
class Checked : public testing::Test {
 public:
  Checked(const Check& check, std::string file) : check_(check), file_(std::move(file)) {}
  void TestBody() override {
    const Finding found = conformance::perform(check_, {file_, 1, 1, gate()});
    for (const auto& [name, number] : found.measured) RecordProperty(name, number);
    if (found.verdict == Verdict::failed) {
      ADD_FAILURE() << check_.law << "\n" << found.reason;
    } else if (found.verdict == Verdict::refused && !may_refuse(check_.id(), stem(file_))) {
      ADD_FAILURE() << "refused, and not listed above: " << check_.law << "\n" << found.reason;
    } else if (found.verdict != Verdict::passed) {
      GTEST_SKIP() << name_of(found.verdict) << ": " << found.reason;
    }
  }

 private:
  const Check& check_;
  std::string file_;
};

void add_checks() {
  for (const Check& check : conformance::checks())
    for (const std::string& file : plugin_files()) {
      const std::string suite = std::string(check.group) + "_" + check.name, name = stem(file);
      testing::RegisterTest(suite.c_str(), name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [&check, file]() -> Checked* { return new Checked(check, file); });
    }
}

}  // namespace
}  // namespace attnkit::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using namespace attnkit::core::conformance;
  set_allocator(counted_malloc(), failing_malloc());
  attnkit::test::add_checks();
  return RUN_ALL_TESTS();
}
