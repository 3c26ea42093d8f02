// Every check of core/conformance on every plugin: a suite for each check, a case for each plugin.
#include <gtest/gtest.h>

#include "conformance/plugin_files.hpp"
#include "core/conformance/check.hpp"
#include "core/conformance/process/counted_malloc.hpp"

namespace attnkit::test {
namespace {

using conformance::Check;
using conformance::Finding;
using conformance::Verdict;

// Of a file, with the places of one random draw.
class Checked : public testing::Test {
 public:
  Checked(const Check& check, std::string file) : check_(check), file_(std::move(file)) {}
  void TestBody() override {
    const Finding found = conformance::perform(check_, {file_, 1, 1});
    for (const auto& [name, number] : found.measured) RecordProperty(name, number);
    if (found.verdict == Verdict::failed) {
      ADD_FAILURE() << check_.law << "\n" << found.reason;
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
