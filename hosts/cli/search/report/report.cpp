#include "hosts/cli/search/report/report.hpp"

#include <algorithm>
#include <cmath>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figure.hpp"
#include "hosts/cli/search/report/figures.hpp"
#include "hosts/cli/search/report/tables.hpp"
#include "report_style.hpp"

namespace attnkit::cli {

std::string escaped(std::string_view text) {
  constexpr std::string_view special = "&<>\"'";
  constexpr const char* entities[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) continue;
    const size_t at = special.find(c);
    out += at == special.npos ? std::string(1, c) : entities[at];
  }
  return out;
}

namespace {

// Those that are not empty.
std::string listed(std::vector<std::string> parts, std::string_view between = ", ") {
  std::erase(parts, "");
  return joined(parts, between);
}

std::string entry(const std::string& term, const std::string& html) {
  return html.empty() ? "" : fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, html);
}

std::string counted_in(const Json& object, const char* key, std::string_view noun) {
  const int64_t n = integer_in(object, key);
  return n > 0 ? counted_text(static_cast<size_t>(n), noun) : "";
}

// "" without a number above 0.
std::string with_number(fmt::format_string<int64_t&> text, int64_t n) { return n > 0 ? fmt::format(text, n) : ""; }

std::string data_text(const Json& settings, const char* split) {
  const std::string name = text_in(settings, split);
  const int64_t lists = integer_in(member(settings, "lists"), split);
  if (name.empty() || lists <= 0) return name;
  return fmt::format("{}, {} lists", name, grouped_text(static_cast<uint64_t>(lists)));
}

std::string strategy_text(const SearchView& view, const Json& settings) {
  return listed({text_in(settings, "strategy"), view.per_layer ? "layer by layer" : "one mechanism per role",
                 counted_text(view.trials.size(), "placement"), view.rank.empty() ? "" : "ranked by " + view.rank,
                 with_number("at {} tokens", view.length), counted_in(settings, "jobs", "job"),
                 number_in(settings, "seed") ? fmt::format("seed {}", integer_in(settings, "seed")) : ""});
}

std::string limits_text(const Json& limits) {
  std::vector<std::string> parts;
  if (!limits.is_object()) return "";
  for (const auto& [name, limit] : limits.items())
    if (const std::optional<double> value = number_in(limits, name.c_str()))
      parts.push_back(name + " " +
                      (name == "max_state"     ? memory_text(*value)
                       : name == "max_latency" ? latency_text(*value)
                                               : fmt::format("{}", *value)));
  return joined(parts, ", ");
}

std::string model_text(const SearchView& view, const Json& model) {
  const std::string sha = text_in(model, "manifest_sha256");
  return listed({text_in(model, "manifest"), view.kind,
                 with_number("{} encoder layers", integer_in(model, "encoder_layers")),
                 with_number("{} decoder layers", integer_in(model, "decoder_layers")),
                 sha.empty() ? "" : "SHA-256 " + sha.substr(0, 12)});
}

std::string power(double exponent) { return exponent == 1 ? "" : fmt::format("<sup>{}</sup>", exponent); }

double exponent_in(const Json& settings, const char* key) {
  return number_in(member(settings, "exponents"), key).value_or(1);
}

std::string rcp_note(const SearchView& view, const Json& settings) {
  const double w = number_in(settings, "quality_weight").value_or(1);
  std::string out = fmt::format(
      "Relative cost performance, LeaPformer\u2019s Equation 11: (<i>T</i> / <i>T<sub>b</sub></i>){} / (1 + "
      "{}(<i>Q<sub>b"
      "</sub></i> \u2212 <i>Q</i>) / <i>s</i>){}. <i>T</i> is the throughput, <i>Q</i> the quality, <i>b</i> the "
      "baseline, <i>s</i> is std_bench. The baseline has 1; more is better.",
      power(exponent_in(settings, "throughput")), w == 1 ? "" : fmt::format("{} ", w),
      power(exponent_in(settings, "quality")));
  if (view.lower_is_better) out += " Perplexity is better when lower, so its difference counts with the other sign.";
  return out;
}

std::string missing_note(const SearchView& view) {
  const auto lacks = [](const Trial& t) { return (t.status == "ranked" || t.status == "limited") && !t.rcp; };
  if (std::ranges::none_of(view.trials, lacks)) return "";
  return "RCP is n/a where its denominator is not positive, which happens when the quality is better than the "
         "baseline\u2019s by more than std_bench allows; where quality or throughput was not measured; and everywhere "
         "when std_bench is unknown or zero. Other values are n/a where nothing was measured.";
}

std::string bench_note(const SearchView& view, const Json& result) {
  const Json& list = member(result, "homogeneous");
  const std::string value = view.std_bench ? fmt::format(", here {:.4g}", *view.std_bench) : ", here unknown";
  const std::string count = list.is_array() && !list.empty()
                                ? fmt::format("the {}", counted_text(list.size(), "placement"))
                                : "the placements";
  return fmt::format(
      "The standard deviation of the quality over {} with the same mechanism everywhere{}. It makes "
      "differences of quality comparable between data sets.",
      count, value);
}

// Lines break between words, never at the hyphens of an option.
std::string command_html(const std::string& command) {
  std::string out;
  for (size_t at = 0; at < command.size();) {
    const size_t end = std::min(command.find(' ', at), command.size());
    if (at > 0) out += " ";  // each one counts within quotes
    if (end > at) out += "<span>" + escaped(command.substr(at, end - at)) + "</span>";
    at = end + 1;
  }
  return out;
}

std::string facts_html(const SearchView& view, const Json& result) {
  const Json &settings = member(result, "settings"), &machine = member(result, "machine");
  const std::optional<double> seconds = number_in(result, "seconds");
  const std::string command = text_in(result, "command"), version = text_in(result, "version");
  const std::string date = listed({text_in(result, "date"), seconds ? "took " + seconds_text(*seconds) : "",
                                   version.empty() ? "" : "attnkit " + version});
  return "<dl>\n" + entry("model", escaped(model_text(view, member(result, "model")))) +
         entry("machine", escaped(listed({text_in(machine, "cpu"), counted_in(machine, "processors", "processor"),
                                          counted_in(machine, "threads", "thread")}))) +
         entry("date", escaped(date)) +
         entry("data", escaped(listed({data_text(settings, "data"), data_text(settings, "test")}, "; "))) +
         entry("search", escaped(strategy_text(view, settings))) +
         entry("limits", escaped(limits_text(member(settings, "limits")))) +
         entry("command", command.empty() ? "" : "<code>" + command_html(command) + "</code>") + "</dl>\n";
}

std::string notes_html(const SearchView& view, const Json& result) {
  const Json& settings = member(result, "settings");
  std::string out = "<div class=\"notes\"><dl>\n";
  out += entry("RCP", rcp_note(view, settings));
  out += entry("RCP<sub>mem</sub>",
               fmt::format("Equation 12: the mean of (<i>T</i> / <i>T<sub>b</sub></i>){} and (<i>M<sub>b</sub></i> / "
                           "<i>M</i>){} over the denominator of RCP, with the peak memory <i>M</i>. It also rewards "
                           "placements that need less memory.",
                           power(exponent_in(settings, "throughput")), power(exponent_in(settings, "memory"))));
  out += entry("std_bench", bench_note(view, result));
  out += entry("n/a", missing_note(view));
  out += entry("intervals", fmt::format("{} Placements whose intervals overlap much may well be equally good.",
                                        *quality_unit(view) ? "Wilson\u2019s 95 % intervals of a share."
                                                            : "95 % intervals of the quality."));
  out += entry("timing",
               "Each placement is timed in turn with the baseline, so that both meet the same state of the machine. A "
               "ratio is the median of these pairs; speeds and latencies are medians.");
  out += entry("Pareto front", "Those placements that no other one beats in one respect without losing in another.");
  if (view.count("limited") > 0)
    out += entry("limited", "Measured, but outside the limits above, and so without a rank.");
  return out + "</dl></div>\n";
}

std::string section(const std::string& title, const std::string& content) {
  return content.empty() ? "" : fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", title, content);
}

// A figure that cannot be drawn leaves a line that says why; the page's tables have the numbers.
std::string figure(std::string (*draw)(const SearchView&), const SearchView& view, const std::string& caption,
                   const std::string& without) {
  std::string svg;
  try {
    svg = draw(view);
  } catch (const Failure& e) {
    if (e.exit() == Exit::interrupted) throw;
    const bool missing = e.help().find("gnuplot-nox") != std::string::npos;
    return fmt::format("<p class=\"notice\">No figure: {}{}</p>\n", escaped(e.what()),
                       missing ? ". Install the package gnuplot-nox and run \u201cattnkit report\u201d again." : "");
  }
  if (svg.empty()) return without.empty() ? "" : fmt::format("<p class=\"quiet\">{}</p>\n", without);
  return fmt::format("<figure><div class=\"scroll\">{}</div>\n<figcaption>{}</figcaption></figure>\n", svg, caption);
}

std::string key(const std::string& hue, const std::string& text) {
  return fmt::format("<span class=\"key\" style=\"background:var(--{})\"></span>{}", hue, text);
}

// The meaning of the discs' sizes, from the smallest to the largest.
std::string area_text(const SearchView& view) {
  const std::string name = area_name(view);
  if (name.empty()) return "";
  double low = INFINITY, high = 0;
  for (const Trial& t : view.trials) {
    const std::optional<double> bytes = name == "state" ? t.cost.state_bytes : t.cost.peak_bytes;
    if (!is_drawn(t) || !bytes) continue;
    low = std::min(low, *bytes), high = std::max(high, *bytes);
  }
  if (high == 0) return "";
  return fmt::format("The area of a disc is its {}, {} to {}. ", name, memory_text(low), memory_text(high));
}

std::string quality_section(const SearchView& view) {
  const bool alike = std::any_of(view.trials.begin(), view.trials.end(),
                                 [](const Trial& t) { return t.homogeneous && !t.winner && !t.baseline; });
  std::string caption = key("winner", "winner, ") + key("baseline", "baseline, ") +
                        (alike ? key("line1", "and others with a label: one mechanism everywhere, ") : "") +
                        key("front", "Pareto front, ") + key("other", "other placements. ");
  caption += area_text(view);
  caption +=
      "Thin bars are 95 % intervals of the quality, drawn where there is a label. Up and to the right is better.";
  const auto hidden = std::count_if(view.trials.begin(), view.trials.end(),
                                    [](const Trial& t) { return t.quality.value && t.cost.ratio && !is_drawn(t); });
  if (hidden > 0)
    caption +=
        fmt::format(" Outside the limits and not drawn: {}.", counted_text(static_cast<size_t>(hidden), "placement"));
  return section("Quality against speed",
                 figure(quality_figure, view, caption, "No placement has both a quality and a cost."));
}

std::string ablation_section(const SearchView& view) {
  const std::string rows = view.per_layer ? "layer" : "role";
  const std::string caption = fmt::format(
      "Difference in {} from the baseline{}, when one {} alone takes another mechanism. Blue is better, orange is "
      "worse, the largest difference darkest. Empty: not measured.",
      escaped(metric_name(view)), *quality_unit(view) ? ", in points" : "", rows);
  return section("Quality by block and mechanism",
                 figure(ablation_figure, view, caption,
                        "No measured placement differs from the baseline in one " + rows + " alone."));
}

std::string length_section(const SearchView& view) {
  return section(
      "Speed against length",
      figure(length_figure, view,
             "The axis of lengths is logarithmic, that of speeds too where they differ more than eightfold. Medians.",
             "Costs were not measured at several lengths.") +
          untimed_table(view));
}

std::string bucket_section(const SearchView& view) {
  const std::string table = bucket_table(view);
  if (table.empty()) return "";
  return section("Quality against length",
                 fmt::format("<p class=\"quiet\">By the length of the input: {}, with 95 % intervals.</p>\n",
                             escaped(metric_title(view))) +
                     table);
}

std::string ranking_section(const SearchView& view) {
  const std::string table = ranking_table(view);
  if (table.empty()) return section("All placements", "<p class=\"quiet\">No placement was measured.</p>\n");
  return section(
      "All placements",
      fmt::format("<p class=\"quiet\">{} ranked{}. \u25cf marks the Pareto front; a "
                  "mechanism in grey is the baseline\u2019s. A click on a title sorts.</p>\n",
                  view.count("ranked"),
                  view.count("limited") ? fmt::format(", {} outside the limits", view.count("limited")) : "") +
          table);
}

std::string head_of(const SearchView& view, const Json& result) {
  std::string out = fmt::format("<header>\n<h1>{}</h1>\n", escaped(view.model));
  out += fmt::format("<p class=\"answer\">{}</p>\n",
                     escaped(view.answer.empty() ? "The search gave no answer." : view.answer));
  if (text_in(result, "status") == "interrupted")
    out += "<p class=\"notice\">The search was interrupted: this is what it had measured by then.</p>\n";
  const std::string tables = placement_table(view) + comparison_table(view);
  if (!tables.empty()) out += "<div class=\"top\">\n" + tables + "</div>\n";
  return out + facts_html(view, result) + "</header>\n";
}

}  // namespace

std::string search_html(const Json& result) {
  const SearchView view = view_of(result);
  const std::string command = text_in(result, "command");
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>{}: attnkit search</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
                     escaped(view.model), colour_style() + report_style);
  out += head_of(view, result) + quality_section(view) + ablation_section(view) + length_section(view);
  out += bucket_section(view) + ranking_section(view) + section("Not ranked", reasons_table(view));
  out += section("How to read this", notes_html(view, result)) +
         section("Run it again", command.empty() ? "" : "<pre>" + command_html(command) + "</pre>\n");
  return out + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", report_script);
}

}  // namespace attnkit::cli
