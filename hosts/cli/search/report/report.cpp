#include "hosts/cli/search/report/report.hpp"

#include <algorithm>
#include <cmath>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/search/report/markup.hpp"
#include "hosts/cli/search/report/notes.hpp"
#include "hosts/cli/search/report/plots.hpp"
#include "hosts/cli/search/report/sections.hpp"
#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

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

// What the discs' sizes stand for, from the smallest to the largest.
std::string area_text(const SearchView& view) {
  const std::string name = area_name(view);
  if (name.empty()) return "";
  double least = INFINITY, most = 0;
  for (const Trial& t : view.trials) {
    const std::optional<double> bytes = name == "state" ? t.cost.state_bytes : t.cost.peak_bytes;
    if (!is_drawn(t) || !bytes) continue;
    least = std::min(least, *bytes), most = std::max(most, *bytes);
  }
  if (most == 0) return "";
  return fmt::format("The area of a disc is its {}, {} to {}. ", name, memory_text(least), memory_text(most));
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
  return out + facts_of(view, result) + "</header>\n";
}

}  // namespace

std::string search_html(const Json& result) {
  const SearchView view = view_of(result);
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>{}: attnkit search</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
                     escaped(view.model), report_style());
  out += head_of(view, result) + quality_section(view) + ablation_section(view) + length_section(view);
  out += bucket_section(view) + ranking_section(view) + section("Not ranked", reasons_table(view));
  out += section("How to read this", notes_of(view, result)) + section("Run it again", rerun_of(result));
  return out + fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", report_script());
}

}  // namespace attnkit::cli
