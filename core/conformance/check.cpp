#include "core/conformance/check.hpp"

#include <string_view>
#include <vector>

#include "core/base/text.hpp"
#include "core/conformance/law.hpp"

namespace attnkit::core::conformance {

namespace {

// The plugin does not answer for a driver's acts in the process, nor for the bridge's allocations.
void see(const Check& check, const Trial& trial) {
  if (std::string_view(check.group) == "process" && load(trial.file).device_type != 1)
    throw NotApplicable{"it computes on CUDA, whose driver is a part of the process"};
}

// The text of a violation, on one line.
std::string reason_of(const std::exception& e) {
  const auto* refused = dynamic_cast<const Refused*>(&e);
  if (refused == nullptr) return clean_line(e.what());
  return clean_line(
      fmt::format("it refuses, with code {}, what it planned before or must take: {}", refused->code, refused->what()));
}

Finding try_file(const Check& check, const Trial& trial) {
  try {
    see(check, trial);
    check.of_file(trial);
    return {Verdict::passed, {}, {}};
  } catch (const Remark& remark) {
    return {Verdict::passed, clean_line(remark.words), {}};
  } catch (const NotApplicable& none) {
    return {Verdict::not_applicable, none.reason, {}};
  } catch (const RefusedInWords& refused) {
    return {Verdict::refused, clean_line(refused.words), {}};
  } catch (const std::exception& e) {
    return {Verdict::failed, reason_of(e), {}};
  }
}

Finding try_place(const Check& check, const Place& place) {
  try {
    Law law(place);
    check.of_place(law);
    return {Verdict::passed, law.remark.empty() ? "" : place.text() + ": " + law.remark, law.measured};
  } catch (const NotApplicable& none) {
    return {Verdict::not_applicable, none.reason, {}};
  } catch (const RefusedInWords& refused) {
    return {Verdict::refused, place.text() + ": " + clean_line(refused.words), {}};
  } catch (const std::exception& e) {
    return {Verdict::failed, place.text() + ": " + reason_of(e), {}};
  }
}

}  // namespace

const char* name_of(Verdict verdict) {
  constexpr const char* names[] = {"passed", "refused", "failed", "not applicable"};
  return names[static_cast<int>(verdict)];
}

std::span<const Check> checks() {
  static const std::vector<Check> all = [] {
    std::vector<Check> joined;
    for (const auto& group : {file_checks, load_checks, plan_checks, table_checks, memory_checks, process_checks,
                              whole_checks, refusal_checks, locality_checks, stream_checks, gradient_checks})
      joined.insert(joined.end(), group.begin(), group.end());
    return joined;
  }();
  return all;
}

Finding perform(const Check& check, const Trial& trial) {
  if (check.of_file != nullptr) return try_file(check, trial);
  std::vector<Place> places;
  try {
    see(check, trial);
    places = places_of(trial, check.id(), check.roles, check.draws);
  } catch (const NotApplicable& none) {
    return {Verdict::not_applicable, none.reason, {}};
  } catch (const std::exception& e) {
    return {Verdict::failed, reason_of(e), {}};
  }
  // A place where it failed counts most, then one where it held, and of these one with a remark;
  // one that was refused says least.
  constexpr int weight[] = {2, 0, 3, 1};
  Finding found{places.empty() ? Verdict::not_applicable : Verdict::refused, "", {}};
  std::map<std::string, std::string> measured;
  for (const Place& place : places) {
    Finding here = try_place(check, place);
    for (const Place& other : instead_of(place)) {
      if (here.verdict != Verdict::refused) break;
      Finding again = try_place(check, other);
      if (again.verdict != Verdict::refused) here = std::move(again);
    }
    if (here.verdict == Verdict::failed) return here;
    for (const auto& [name, number] : here.measured) measured[fmt::format("{}.{}", name_of(place.seat), name)] = number;
    const bool remarked = here.verdict == Verdict::passed && here.verdict == found.verdict && !found.reason.empty();
    if (weight[static_cast<int>(here.verdict)] >= weight[static_cast<int>(found.verdict)] && !remarked)
      found = std::move(here);
  }
  if (check.must_run && found.verdict == Verdict::refused)
    found = {Verdict::failed, "it refuses every run that was tried: " + found.reason, {}};
  found.measured = std::move(measured);
  return found;
}

}  // namespace attnkit::core::conformance
