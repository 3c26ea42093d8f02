#include "hosts/cli/stream/report.hpp"

#include <algorithm>
#include <numeric>

#include "core/search/bleu.hpp"
#include "hosts/cli/decode/report.hpp"
#include "hosts/cli/io/table.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

struct Latencies {
  std::optional<stream::Latency> source, computation;
};

Latencies latencies_of(const StreamReport& report) {
  std::vector<std::optional<stream::Latency>> source, computation;
  for (const Streamed& r : report.results) {
    source.push_back(stream::latency(r.log));
    computation.push_back(stream::computation_aware_latency(r.log));
  }
  return {stream::mean(source), stream::mean(computation)};
}

template <class Field>
auto sum_of(const StreamReport& report, Field field) {
  return std::accumulate(report.results.begin(), report.results.end(), decltype(field(report.results[0])){},
                         [&](auto sum, const Streamed& r) { return sum + field(r); });
}

BeyondLength beyond_of(const StreamReport& report) {
  BeyondLength beyond;
  for (const Streamed& r : report.results) beyond.add(r.length);
  return beyond;
}

size_t exact_of(const StreamReport& report) {
  return static_cast<size_t>(std::count(report.exact.begin(), report.exact.end(), true));
}

Json json_of(const std::optional<stream::Latency>& latency) {
  return latency ? Json{{"al", latency->al}, {"laal", latency->laal}, {"dal", latency->dal}} : Json();
}

Json result_json(const StreamReport& report, size_t i) {
  const Input& input = report.inputs[i];
  const Streamed& r = report.results[i];
  Json json = {{"input", input.text},
               {"output", r.output},
               {"tokens", r.made},
               {"finished", r.finished},
               {"source_length", r.log.source_length},
               {"delays", r.log.delays},
               {"elapsed", r.log.elapsed},
               {"seconds", r.seconds},
               {"latency", json_of(stream::latency(r.log))},
               {"computation_aware", json_of(stream::computation_aware_latency(r.log))}};
  add_length(r.length, json);
  if (report.speech) json["real_time_factor"] = r.seconds * 1000 / r.log.source_length;
  if (!input.reference) return json;
  json["reference"] = *input.reference;
  json["reference_length"] = *r.log.reference_length;
  json["exact"] = static_cast<bool>(report.exact[i]);
  return json;
}

std::string number(double value) { return fmt::format("{:.3f}", value); }

// Of the source, and of computing: nothing without speech.
std::optional<std::pair<double, double>> speech_and_computing(const StreamReport& report) {
  if (!report.speech || report.results.empty()) return {};
  return std::pair{sum_of(report, [](const Streamed& r) { return r.log.source_length / 1000; }),
                   sum_of(report, [](const Streamed& r) { return r.seconds; })};
}

std::string unit_name(const StreamReport& report) {
  if (report.speech) return report.setup.chunk_ms > 0 ? "chunk" : "row";
  return report.setup.unit == stream::Unit::word ? "word" : "token";
}

std::string latency_table(const Latencies& all, const StreamReport& report) {
  Table table({report.speech ? "latency in ms" : "latency in source words", ">AL", ">LAAL", ">DAL"});
  const auto row = [&](const char* name, const std::optional<stream::Latency>& l) {
    if (l) table.add({name, number(l->al), number(l->laal), number(l->dal)});
  };
  row("read", all.source);
  row("and computed", all.computation);
  return table.text() + (!report.exact.empty() ? "" : "without references, AL goes by the outputs' own lengths\n");
}

}  // namespace

void score(const Model& model, StreamReport& report) {
  if (report.inputs.empty() || !report.inputs.front().reference) return;
  search::BleuStats corpus;
  for (size_t i = 0; i < report.inputs.size(); ++i) {
    const std::string reference = model.detokenize(Side::target, report.inputs[i].target);
    report.exact.push_back(report.results[i].output == reference);
    corpus += search::bleu_stats(report.results[i].output, reference);
  }
  report.bleu = search::bleu(corpus);
}

Json stream_json(const StreamReport& report, const Json& description) {
  Json json = {{"schema", "attnkit.stream/1"},
               {"model", description["name"]},
               {"policy", report.setup.policy->name()},
               {"unit", unit_name(report)}};
  if (!report.speech) json["word_ms"] = report.setup.word_seconds * 1000;
  if (report.setup.chunk_ms > 0) json["chunk_ms"] = report.setup.chunk_ms;
  for (const Json& b : description["blocks"]) json["blocks"][b["block"].get<std::string>()] = b["mechanism"];
  json["results"] = Json::array();
  for (size_t i = 0; i < report.results.size(); ++i) json["results"].push_back(result_json(report, i));
  const Latencies latencies = latencies_of(report);
  Json summary = {{"inputs", report.results.size()},
                  {"reads", sum_of(report, [](const Streamed& r) { return r.reads; })},
                  {"tokens", sum_of(report, [](const Streamed& r) { return r.made; })},
                  {"seconds", report.seconds},
                  {"tokens_encoded_again", sum_of(report, [](const Streamed& r) { return r.encoded_again; })},
                  {"tokens_predicted_again", sum_of(report, [](const Streamed& r) { return r.predicted_again; })},
                  {"beyond_target_length", beyond_of(report).tokens},
                  {"keys_replayed", sum_of(report, [](const Streamed& r) { return r.keys_replayed; })},
                  {"latency", json_of(latencies.source)},
                  {"computation_aware", json_of(latencies.computation)}};
  if (const auto speech = speech_and_computing(report))
    summary.update({{"speech_seconds", speech->first},
                    {"computing_seconds", speech->second},
                    {"real_time_factor", speech->second / speech->first}});
  if (!report.exact.empty()) {
    summary["exact_match"] = static_cast<double>(exact_of(report)) / static_cast<double>(report.exact.size());
    summary["bleu"] = report.bleu;
  }
  json["summary"] = summary;
  return json;
}

std::string stream_text(const StreamReport& report, const Json& description) {
  const size_t tokens = sum_of(report, [](const Streamed& r) { return r.made; });
  std::string out = fmt::format("{}: {}\n", description["name"].get<std::string>(), mechanisms_text(description));
  out += fmt::format("{}, {} in {} {}, {} in {}\n", report.setup.policy->name(),
                     counted_text(report.results.size(), "input"),
                     sum_of(report, [](const Streamed& r) { return r.reads; }), unit_name(report) + "s",
                     counted_text(tokens, "token") + " out", seconds_text(report.seconds));
  const uint64_t again = sum_of(report, [](const Streamed&r) { return r.encoded_again; }),
                 replayed = sum_of(report, [](const Streamed&r) { return r.keys_replayed; }),
                 predicted = sum_of(report, [](const Streamed&r) { return r.predicted_again; });
  if (again + replayed + predicted > 0)
    out += fmt::format(
        "run anew because the source grew: {} in the encoder, {} in cross attention{}\n",
        counted_text(again, report.speech ? "row" : "token"), counted_text(replayed, "key"),
        predicted > 0 ? fmt::format(", {} in the prediction of lengths", counted_text(predicted, "row")) : "");
  if (const auto speech = speech_and_computing(report)) out += real_time_text(speech->first, speech->second);
  const auto cut =
      std::count_if(report.results.begin(), report.results.end(), [](const Streamed& r) { return !r.finished; });
  if (cut > 0)
    out += fmt::format("{} of {} {} cut off at the limit\n", cut, counted_text(report.results.size(), "output"),
                       cut == 1 ? "was" : "were");
  out += beyond_of(report).text(report.results.size());
  if (!report.exact.empty())
    out += fmt::format("exact match {} of {} ({:.1f} %), BLEU {:.2f}\n", exact_of(report), report.exact.size(),
                       100.0 * static_cast<double>(exact_of(report)) / static_cast<double>(report.exact.size()),
                       report.bleu);
  const Latencies latencies = latencies_of(report);
  return latencies.source ? out + latency_table(latencies, report) : out;
}

}  // namespace attnkit::cli
