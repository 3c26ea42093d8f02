#include "hosts/cli/decode/results.hpp"

#include <algorithm>
#include <numeric>

#include "core/base/clock.hpp"
#include "core/base/roles.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {

size_t Results::tokens() const {
  return std::accumulate(all.begin(), all.end(), size_t{0}, [](size_t n, const Result& r) { return n + r.made; });
}

size_t Results::exact() const {
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const Result& r) { return r.exact; }));
}

uint64_t Results::beyond_target_length() const {
  return std::accumulate(all.begin(), all.end(), uint64_t{0},
                         [](uint64_t n, const Result& r) { return n + r.length.beyond; });
}

void run_inputs(const Model& model, Results& results, Outputs& outputs, const std::function<void(const Give&)>& work) {
  results.all.resize(results.inputs.size());
  const Clock::time_point start = Clock::now();
  work([&](size_t index, Result result) {
    outputs.add(results.inputs[index].line, result.text, result.made);
    results.all[index] = std::move(result);
  });
  results.seconds = seconds_since(start);
  results.description = Json::parse(model.describe());
  if (!results.have_references()) return;
  for (size_t i = 0; i < results.all.size(); ++i)
    results.all[i].exact = results.all[i].text == model.detokenize(Side::target, results.inputs[i].target);
}

void add_blocks(const Results& results, Json& to) {
  for (const Json& b : results.description["blocks"]) to["blocks"][b["block"].get<std::string>()] = b["mechanism"];
}

void add_results(const Results& results, Json& to, const std::function<void(size_t index, Json& entry)>& more) {
  to["results"] = Json::array();
  for (size_t i = 0; i < results.all.size(); ++i) {
    const Result& r = results.all[i];
    Json entry = {{"input", results.inputs[i].text}, {"output", r.text}, {"tokens", r.made}, {"finished", r.finished}};
    more(i, entry);
    to["results"].push_back(std::move(entry));
  }
}

void add_length(const Result& result, Json& to) {
  if (!result.length.length) return;
  to["target_length"] = *result.length.length;
  to["beyond_target_length"] = result.length.beyond;
}

std::string mechanisms_text(const Results& results) {
  std::vector<std::string> parts;
  for (const std::string role : role_names) {
    struct Span {
      std::string mechanism;
      int first, last;
    };
    std::vector<Span> spans;
    for (const Json& b : results.description["blocks"]) {
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
  return fmt::format("{}: {}\n", results.description["name"].get<std::string>(), joined(parts, "; "));
}

std::string remarks_text(const Results& results, const std::optional<SpeechTime>& time) {
  std::string out;
  if (time)
    out += fmt::format("{:.2f} s of speech, {} of computing: real-time factor {:.4f}\n", time->speech,
                       seconds_text(time->computing), time->real_time_factor());
  const std::vector<Result>& all = results.all;
  const std::string of_all = counted_text(all.size(), "output");
  const auto cut = std::count_if(all.begin(), all.end(), [](const Result& r) { return !r.finished; });
  if (cut > 0) out += fmt::format("{} of {} {} cut off at the limit\n", cut, of_all, cut == 1 ? "was" : "were");
  const auto beyond = std::count_if(all.begin(), all.end(), [](const Result& r) { return r.length.beyond > 0; });
  if (beyond > 0)
    out += fmt::format("{} of {} {} longer than the target length that mechanisms were told, by {} in all\n", beyond,
                       of_all, beyond == 1 ? "is" : "are", counted_text(results.beyond_target_length(), "token"));
  return out;
}

std::string exact_text(const Results& results) {
  const size_t exact = results.exact(), all = results.all.size();
  return fmt::format("exact match {} of {} ({:.1f} %)", exact, all,
                     100.0 * static_cast<double>(exact) / static_cast<double>(all));
}

}  // namespace attnkit::cli
