// What a benchmark of many sessions says.
#include <fmt/format.h>

#include "hosts/cli/bench/sessions.hpp"
#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

double speed_of(const SessionsBench& s, const SessionsTiming& t) {
  return static_cast<double>(s.sessions * s.length) / t.median;
}

// Beside the same way on one thread.
double scaling_of(const SessionsResult& result, const SessionsTiming& t) {
  for (const SessionsTiming& other : result.timings)
    if (other.together == t.together && other.threads == 1) return other.median / t.median;
  return 1;
}

std::string memory_text(const SessionMemory& m) {
  std::string out = fmt::format("state of a session: {} planned for max_length, {} at this length\n",
                                bytes_text(m.planned), bytes_text(m.declared));
  if (m.resident)
    out += fmt::format(
        "resident memory of a session, all that belongs to it: {}, {:.3f} of the plan, {:.3f} of this length's\n",
        bytes_text(static_cast<uint64_t>(std::max(0.0, *m.resident))), *m.resident / static_cast<double>(m.planned),
        *m.resident / static_cast<double>(m.declared));
  return out;
}

}  // namespace

Json json_of(const std::string& manifest, const SessionsBench& s, const SessionsResult& result) {
  const SessionMemory& m = result.memory;
  Json memory = {{"planned_state_bytes", m.planned}, {"state_bytes", m.declared}};
  if (m.resident) {
    memory["resident_bytes"] = *m.resident;
    memory["resident_to_planned"] = *m.resident / static_cast<double>(m.planned);
    memory["resident_to_state"] = *m.resident / static_cast<double>(m.declared);
  }
  Json json = {{"schema", "attnkit.bench/1"},  {"part", "sessions"},      {"manifest", manifest},
               {"sessions", s.sessions},       {"length", s.length},      {"threads", s.threads},
               {"memory_per_session", memory}, {"results", Json::array()}};
  for (const SessionsTiming& t : result.timings)
    json["results"].push_back({{"calls", t.together ? "one per step" : "one per session"},
                               {"threads", t.threads},
                               {"median_seconds", t.median},
                               {"first_quartile_seconds", t.first_quartile},
                               {"third_quartile_seconds", t.third_quartile},
                               {"repetitions", t.repetitions},
                               {"tokens_per_second", speed_of(s, t)},
                               {"scaling", scaling_of(result, t)},
                               {"processor_seconds_per_token", t.processor},
                               {"waiting", t.waiting},
                               {"waits_per_1000_tokens", t.waits}});
  return json;
}

std::string text_of(const std::string& manifest, const SessionsBench& s, const SessionsResult& result) {
  std::string out = fmt::format("{}: {} sessions, each takes {} in and writes {} more\n", manifest,
                                grouped_text(static_cast<uint64_t>(s.sessions)),
                                counted_text(static_cast<size_t>(s.length), "token"), s.length);
  out += memory_text(result.memory);
  Table table({"calls", ">threads", ">median", ">quartiles", ">tokens/s", ">scaling", ">processor/token", ">waiting",
               ">waits/1,000 tokens"});
  for (const SessionsTiming& t : result.timings)
    table.add({t.together ? "one per step" : "one per session", std::to_string(t.threads), seconds_text(t.median),
               seconds_text(t.first_quartile) + " .. " + seconds_text(t.third_quartile),
               grouped_text(static_cast<uint64_t>(speed_of(s, t))), fmt::format("{:.2f}x", scaling_of(result, t)),
               seconds_text(t.processor), fmt::format("{:.2f} %", 100 * t.waiting), fmt::format("{:.2f}", t.waits)});
  return out + table.text();
}

}  // namespace attnkit::cli
