#include "hosts/cli/decode/report.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/roles.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

struct Totals {
  Score score;
  size_t exact = 0;
};

std::optional<Totals> totals_of(const Report& report) {
  Totals totals;
  for (const Result& r : report.results) {
    if (!r.score) return {};
    totals.score.nll += r.score->nll;
    totals.score.tokens += r.score->tokens;
    totals.exact += r.exact;
  }
  return report.results.empty() ? std::nullopt : std::optional(totals);
}

Json result_json(const Input& input, const Result& result) {
  Json json = {{"input", input.text}, {"output", result.text}, {"tokens", result.made}, {"finished", result.finished}};
  if (result.label && !result.label->scores.empty()) {
    json["class"] = result.label->best;
    json["scores"] = result.label->scores;
  }
  add_length(result.length, json);
  if (input.reference) json["reference"] = *input.reference;
  if (result.score) {
    json["exact"] = result.exact;
    json["nll"] = result.score->nll;
    json["perplexity"] = result.score->perplexity();
    json["reference_tokens"] = result.score->tokens;
  }
  return json;
}

BeyondLength beyond_of(const Report& report) {
  BeyondLength beyond;
  for (const Result& r : report.results) beyond.add(r.length);
  return beyond;
}

double rate_of(const Report& report) { return static_cast<double>(report.tokens) / std::max(report.seconds, 1e-9); }

}  // namespace

std::string real_time_text(double speech_seconds, double computing_seconds) {
  return fmt::format("{:.2f} s of speech, {} of computing: real-time factor {:.4f}\n", speech_seconds,
                     seconds_text(computing_seconds), computing_seconds / speech_seconds);
}

std::string mechanisms_text(const Json& description) {
  std::vector<std::string> parts;
  for (const std::string role : role_names) {
    struct Span {
      std::string mechanism;
      int first, last;
    };
    std::vector<Span> spans;
    for (const Json& b : description["blocks"]) {
      if (b["role"] != role) continue;
      if (!spans.empty() && spans.back().mechanism == b["mechanism"])
        spans.back().last = b["layer"];
      else
        spans.push_back({b["mechanism"], b["layer"], b["layer"]});
    }
    if (spans.empty()) continue;
    std::vector<std::string> names;
    for (const Span& s : spans)
      names.push_back(spans.size() == 1   ? s.mechanism
                      : s.first == s.last ? fmt::format("{} {}", s.mechanism, s.first)
                                          : fmt::format("{} {}..{}", s.mechanism, s.first, s.last));
    parts.push_back(role + " " + joined(names, ", "));
  }
  return joined(parts, "; ");
}

void add_length(const LengthUse& length, Json& to) {
  if (!length.told) return;
  to["target_length"] = *length.told;
  to["beyond_target_length"] = length.beyond;
}

std::string BeyondLength::text(size_t all) const {
  if (outputs == 0) return "";
  return fmt::format("{} of {} {} longer than the target length that mechanisms were told, by {} in all\n", outputs,
                     counted_text(all, "output"), outputs == 1 ? "is" : "are", counted_text(tokens, "token"));
}

Json report_json(const Report& report, const Json& description) {
  Json json = {{"schema", "attnkit.run/1"}, {"model", description["name"]}, {"kind", description["kind"]}};
  for (const Json& b : description["blocks"]) json["blocks"][b["block"].get<std::string>()] = b["mechanism"];
  json["results"] = Json::array();
  for (size_t i = 0; i < report.results.size(); ++i)
    json["results"].push_back(result_json(report.inputs[i], report.results[i]));
  Json summary = {{"inputs", report.inputs.size()},
                  {"tokens", report.tokens},
                  {"seconds", report.seconds},
                  {"tokens_per_second", rate_of(report)}};
  if (report.speech_seconds) {
    summary["speech_seconds"] = *report.speech_seconds;
    summary["real_time_factor"] = report.seconds / *report.speech_seconds;
  }
  if (report.decoder) {
    summary["beams"] = report.beams;
    summary["state_bytes_per_session"] = report.largest.state_bytes;
    summary["beyond_target_length"] = beyond_of(report).tokens;
  }
  if (const auto totals = totals_of(report)) {
    summary["perplexity"] = totals->score.perplexity();
    summary["reference_tokens"] = totals->score.tokens;
    summary["exact_match"] = static_cast<double>(totals->exact) / static_cast<double>(report.results.size());
  }
  json["summary"] = summary;
  return json;
}

std::string report_text(const Report& report, const Json& description) {
  std::string out = fmt::format("{}: {}\n", description["name"].get<std::string>(), mechanisms_text(description));
  out += fmt::format("{}, {} in {}, {:.0f} tokens/s", counted_text(report.inputs.size(), "input"),
                     counted_text(report.tokens, "token"), seconds_text(report.seconds), rate_of(report));
  if (report.decoder && report.largest.tokens > 0)
    out += fmt::format(", state {} per session (the largest)", bytes_text(report.largest.state_bytes));
  out += "\n";
  if (report.speech_seconds) out += real_time_text(*report.speech_seconds, report.seconds);
  const auto cut =
      std::count_if(report.results.begin(), report.results.end(), [](const Result& r) { return !r.finished; });
  if (cut > 0)
    out += fmt::format("{} of {} {} cut off at the limit\n", cut, counted_text(report.results.size(), "output"),
                       cut == 1 ? "was" : "were");
  out += beyond_of(report).text(report.results.size());
  if (const auto totals = totals_of(report))
    out += fmt::format("perplexity {:.4f} over {}, exact match {} of {} ({:.1f} %)\n", totals->score.perplexity(),
                       counted_text(totals->score.tokens, "token"), totals->exact, report.results.size(),
                       100.0 * static_cast<double>(totals->exact) / static_cast<double>(report.results.size()));
  return out;
}

}  // namespace attnkit::cli
