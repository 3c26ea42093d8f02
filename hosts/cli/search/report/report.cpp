#include "hosts/cli/search/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "hosts/cli/failure.hpp"
#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/report/figure.hpp"
#include "hosts/cli/search/report/figures.hpp"
#include "hosts/cli/search/report/html.hpp"
#include "hosts/cli/search/report/tables.hpp"
#include "report_style.hpp"

namespace attnkit::cli {

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

std::string digest_html(const Json& object, const char* key) {
  const std::string sha = text_in(object, key);
  return sha.empty() ? "" : fmt::format("SHA-256 <code>{}</code>", escaped(sha));
}

std::string count_of(int64_t n, const char* noun) { return lists_text(n) + " " + noun + (n == 1 ? "" : "s"); }

std::string data_html(const Json& result, const char* split) {
  const Json& settings = member(result, "settings");
  const std::string name = text_in(settings, split);
  const int64_t lists = integer_in(member(settings, "lists"), split);
  if (name.empty()) return "";
  return listed({escaped(name), lists > 0 ? count_of(lists, "example") : "",
                 digest_html(member(result, "model"), (std::string(split) + "_sha256").c_str())});
}

std::string strategy_text(const SearchView& view, const Json& settings) {
  return listed({text_in(settings, "strategy"), text_in(settings, "sampler"),
                 view.effort.empty() ? "" : view.effort + " effort",
                 view.per_layer ? "layer by layer" : "one mechanism per role",
                 counted_text(view.trials.size(), "placement"), view.rank.empty() ? "" : "ranked by " + view.rank,
                 with_number("at {} tokens", view.length), counted_in(settings, "jobs", "job")});
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

std::string model_html(const SearchView& view, const Json& model) {
  return escaped(listed({text_in(model, "manifest"), view.kind,
                         with_number("{} encoder layers", integer_in(model, "encoder_layers")),
                         with_number("{} decoder layers", integer_in(model, "decoder_layers"))}));
}

std::string share_text(std::optional<double> share, const char* format) {
  return share ? fmt::format(fmt::runtime(format), 100 * *share) : "";
}

// Says how quiet the machine was.
std::string noise_html(const Json& noise) {
  const Estimate floor{1, number_in(noise, "ratio_low"), number_in(noise, "ratio_high")};
  const std::string times =
      floor.has_interval()
          ? fmt::format("noise floor: the baseline timed against itself {:.3f} to {:.3f} times as fast{}", *floor.low,
                        *floor.high, with_number(", from {} repetitions", integer_in(noise, "repetitions")))
          : "";
  const std::optional<double> load = number_in(noise, "load");
  return listed({times,
                 share_text(number_in(noise, "drift"),
                            "drift of the baseline\u2019s speed over the timing blocks up to {:.1f} %"),
                 load ? fmt::format("load {:.2f} at the start", *load) : ""},
                "; ");
}

double exponent_in(const Json& settings, const char* key) {
  return number_in(member(settings, "exponents"), key).value_or(1);
}

std::string rcp_note(const SearchView& view, const Json& settings) {
  std::string out = fmt::format(
      "LeaPformer\u2019s relative composite performance, Equation 11: RCP = (<i>T<sub>e</sub></i> / "
      "<i>T<sub>b</sub></i>)"
      "<sup><i>a</i></sup> / (1 + <i>w</i> (<i>Q<sub>b</sub></i> \u2212 <i>Q<sub>e</sub></i>) / <i>s</i>)"
      "<sup><i>b</i></sup>, with the throughput <i>T</i> and the quality <i>Q</i> of the placement <i>e</i> and of the "
      "baseline <i>b</i>, both on the same {} examples. The paper\u2019s baseline is softmax attention, its quality an "
      "average of accuracies; it allows the exponents, the weight <i>w</i> is ours. The baseline has 1; more is "
      "better. ",
      "<i>n</i>");
  out += fmt::format(
      "<span class=\"constants\">Here <i>s</i> = {}, <i>a</i> = {}, <i>b</i> = {}, <i>c</i> = {}, "
      "<i>w</i> = {}.</span>",
      view.std_bench ? fmt::format("{:.6g}", *view.std_bench) : "n/a", exponent_in(settings, "throughput"),
      exponent_in(settings, "quality"), exponent_in(settings, "memory"),
      number_in(settings, "quality_weight").value_or(1));
  if (view.lower_is_better) out += " Perplexity is better when lower: <i>Q</i> is minus its natural logarithm.";
  return out;
}

std::string rcp_mem_note() {
  return "Equation 12, with the peak memory <i>M</i> and both weights 1/2: RCP<sub>mem</sub> = (1/2 "
         "(<i>T<sub>e</sub></i> / "
         "<i>T<sub>b</sub></i>)<sup><i>a</i></sup> + 1/2 (<i>M<sub>b</sub></i> / "
         "<i>M<sub>e</sub></i>)<sup><i>c</i></sup>) / "
         "(1 + <i>w</i> (<i>Q<sub>b</sub></i> \u2212 <i>Q<sub>e</sub></i>) / <i>s</i>)<sup><i>b</i></sup>. It also "
         "rewards "
         "placements that need less memory. In the table \u201c\u00d7 peak\u201d is <i>M<sub>e</sub></i> / "
         "<i>M<sub>b</sub></i>.";
}

std::string missing_note(const SearchView& view) {
  const auto lacks = [](const Trial& t) { return (t.status == "ranked" || t.status == "limited") && !t.rcp.value; };
  if (std::ranges::none_of(view.trials, lacks)) return "";
  if (!view.weighs_quality)
    return "RCP is n/a where throughput was not measured. Other values are n/a where nothing was measured.";
  return "RCP is n/a where its denominator is not positive, which happens when the quality is better than the "
         "baseline\u2019s by more than std_bench allows; where quality or throughput was not measured; and, when "
         "std_bench is unknown or zero, where the quality is not the baseline\u2019s. Other values are n/a where "
         "nothing was measured.";
}

std::string bench_note(const Json& result) {
  const Json& list = list_in(result, "homogeneous");
  const std::string count =
      list.empty() ? "the placements" : fmt::format("the {}", counted_text(list.size(), "placement"));
  return fmt::format(
      "<i>s</i> of both equations: the sample standard deviation of the quality of {} with the same mechanism "
      "everywhere, as the paper\u2019s is of the averages in its Table 1. It makes differences of quality "
      "comparable between data sets.",
      count);
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

std::string footer_html(const SearchView& view, const Json& result) {
  const Json &settings = member(result, "settings"), &machine = member(result, "machine"),
             &model = member(result, "model"), &training = member(result, "training");
  const std::optional<double> seconds = number_in(result, "seconds");
  const std::string command = text_in(result, "command"), version = text_in(result, "version"),
                    commit = text_in(machine, "commit"), compiler = text_in(machine, "compiler");
  return "<footer>\n<h2>What was run</h2>\n<dl>\n" + entry("model", model_html(view, model)) +
         entry("weights", digest_html(model, "weights_sha256")) + entry("dev", data_html(result, "data")) +
         entry("test", data_html(result, "test")) +
         entry("machine", escaped(listed({text_in(machine, "cpu"), counted_in(machine, "processors", "processor"),
                                          counted_in(machine, "threads", "thread")}))) +
         entry("noise", noise_html(member(result, "noise"))) +
         entry("attnkit", escaped(listed({version, commit.empty() ? "" : "commit " + commit,
                                          compiler.empty() ? "" : "compiled by " + compiler}))) +
         entry("date", escaped(listed({text_in(result, "date"), seconds ? "took " + seconds_text(*seconds) : ""}))) +
         entry("search", escaped(strategy_text(view, settings))) +
         entry("seed", number_in(settings, "seed") ? std::to_string(integer_in(settings, "seed")) : "") +
         entry("limits", escaped(limits_text(member(settings, "limits")))) +
         entry("training", escaped(listed({text_in(training, "from"), text_in(training, "options")}))) +
         entry("command", command.empty() ? "" : "<pre>" + command_html(command) + "</pre>") + "</dl>\n</footer>\n";
}

std::string notes_html(const SearchView& view, const Json& result) {
  const Json& settings = member(result, "settings");
  std::string out = "<div class=\"notes\"><dl>\n";
  out += entry("RCP", rcp_note(view, settings));
  out += entry("RCP<sub>mem</sub>", rcp_mem_note());
  out += entry("std_bench", bench_note(result));
  out += entry("n/a", missing_note(view));
  out += entry(
      "n",
      "So many examples of dev a placement was measured on. Its quality, and the difference from the baseline\u2019s, "
      "which was measured on the same ones, are of these examples alone.");
  out += entry("intervals", fmt::format("{} Those of differences are of pairs: the same examples, one by one. Those of "
                                        "throughput come from the spread "
                                        "between timing blocks, those of RCP and RCP<sub>mem</sub> from both.",
                                        *quality_unit(view) ? "All are 95 % intervals; of a share Wilson\u2019s."
                                                            : "All are 95 % intervals."));
  out += entry(
      "rank",
      "In brackets the ranks that a placement could have: above it stand those whose interval lies wholly above its "
      "own, below it those whose interval lies wholly below.");
  if (!view.tied().empty())
    out += entry(
        "tied",
        fmt::format(
            "In the top group: not worse than the winner with {} confidence, corrected for how many were compared.",
            percent_text(view.confidence)));
  if (std::ranges::any_of(view.trials, &Trial::screened))
    out += entry("screened",
                 "\u25cb, hollow in the figure: measured on fewer examples than the others, because the race dropped "
                 "it. By luck its quality may look better than it is.");
  out += entry("timing",
               "Each placement is timed in turn with the baseline, so that both meet the same state of the machine. A "
               "ratio is the median of these pairs; speeds and latencies are medians.");
  out += entry(
      "Pareto front",
      "\u25cf: of those measured on all examples no other one beats it in one respect without losing in another.");
  if (view.count("limited") > 0)
    out += entry("limited", "Measured, but outside the limits below, and so without a rank.");
  return out + "</dl></div>\n";
}

std::string section(const std::string& title, const std::string& content) {
  return content.empty() ? "" : fmt::format("<section>\n<h2>{}</h2>\n{}</section>\n", title, content);
}

// A figure that cannot be drawn leaves a line that says why; the page's tables have the numbers.
std::string figure(std::string (*draw)(const SearchView&, Width), const SearchView& view, const std::string& caption,
                   const std::string& without) {
  std::string wide, narrow;
  try {
    wide = draw(view, Width::wide);
    if (!wide.empty()) narrow = draw(view, Width::narrow);
  } catch (const Failure& e) {
    if (e.exit() == Exit::interrupted) throw;
    const bool missing = e.help().find("gnuplot-nox") != std::string::npos;
    return fmt::format("<p class=\"notice\">No figure: {}{}</p>\n", escaped(e.what()),
                       missing ? ". Install the package gnuplot-nox and run \u201cattnkit report\u201d again." : "");
  }
  if (wide.empty()) return without.empty() ? "" : fmt::format("<p class=\"quiet\">{}</p>\n", without);
  return fmt::format(
      "<figure><div class=\"on-wide\">{}</div><div class=\"on-narrow\">{}</div>\n"
      "<figcaption>{}</figcaption></figure>\n",
      wide, narrow, caption);
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
    const std::optional<double> bytes = name == "state" ? t.cost.state_bytes : t.peak_bytes;
    if (!is_drawn(t) || !bytes) continue;
    low = std::min(low, *bytes), high = std::max(high, *bytes);
  }
  if (high == 0) return "";
  return fmt::format("The area of a disc is its {}, {} to {}. ", name, memory_text(low), memory_text(high));
}

std::string quality_section(const SearchView& view) {
  const bool alike =
      std::ranges::any_of(view.trials, [](const Trial& t) { return t.homogeneous && !t.winner && !t.baseline; });
  const bool hollow = std::ranges::any_of(view.trials, &Trial::screened);
  std::string caption = key("winner", "winner, ");
  if (!view.tied().empty()) caption += "in the same colour with their ranks what is tied with it, ";
  caption += key("baseline", "baseline, ") +
             (alike ? key("line1", "and others with a name: one mechanism everywhere, ") : "") +
             key("other", "other placements. ");
  if (hollow) caption += "Hollow: screened, on fewer examples than the others. ";
  caption += std::ranges::any_of(view.trials, &Trial::comparable)
                 ? "The line is the Pareto front of those measured on all examples. "
                 : "No Pareto front: nothing was measured on all examples. ";
  caption += area_text(view);
  caption +=
      "Thin bars are 95 % intervals, drawn where there is a name or a number. Dotted lines lead to labels. Up and to "
      "the right is better.";
  const auto hidden = std::ranges::count_if(
      view.trials, [](const Trial& t) { return t.quality.own.value && t.throughput.value && !is_drawn(t); });
  if (hidden > 0)
    caption +=
        fmt::format(" Outside the limits and not drawn: {}.", counted_text(static_cast<size_t>(hidden), "placement"));
  return section("Quality against speed",
                 figure(quality_figure, view, caption, "No placement has both a quality and a cost."));
}

std::string block_section(const SearchView& view) {
  const std::string part = view.per_layer ? "layer, or all layers of one role," : "role", table = block_table(view);
  if (table.empty())
    return section(
        "Quality by block",
        fmt::format("<p class=\"quiet\">No measured placement differs from the baseline in one {} alone.</p>\n", part));
  return section(
      "Quality by block",
      fmt::format(
          "<p class=\"quiet\">Difference in {} (dev) from the baseline{} where one {} alone has another mechanism, "
          "and its 95 % interval. Blue is better, orange is worse; without a colour the interval holds 0, and nothing "
          "is decided. Empty: not measured.</p>\n",
          escaped(metric_name(view)), *quality_unit(view) ? ", in points," : "", part) +
          table);
}

std::string test_section(const SearchView& view) {
  const std::string table = test_table(view);
  if (table.empty()) return "";
  const std::string bias =
      "The winner on dev is the best of many there and so looks better than it is: selection bias. ";
  const std::string read =
      view.chosen_by_test ? "The test set here is the data of the race: these numbers are not free of it."
      : std::ranges::any_of(view.trials, &Trial::top)
          ? "These numbers are free of it, because the test set was read once, after the race, by the top "
            "group and the baseline alone, and nothing was chosen by it."
          : "These numbers are free of it, because nothing was chosen by the test set.";
  return section("The test set", "<p class=\"quiet\">" + bias + read + "</p>\n" + table);
}

// Describes one stage in words.
std::string stage_text(const SearchView& view, size_t i) {
  const Stage& s = view.stages[i];
  const std::string who =
      i == 0 ? fmt::format("All {} were measured on",
                           counted_text(static_cast<size_t>(std::max<int64_t>(0, s.raced)), "placement"))
             : fmt::format("{} went on to", s.raced);
  return fmt::format(
      "{} {} and {}; {} dropped. ", who, count_of(s.examples, "example"), count_of(s.blocks, "timing block"),
      s.raced == s.kept ? "none was" : fmt::format("{} {}", s.raced - s.kept, s.raced - s.kept == 1 ? "was" : "were"));
}

// The names of what was dropped at each stage.
std::string dropped_html(const SearchView& view) {
  std::string out;
  for (const Stage& s : view.stages) {
    std::vector<std::string> names;
    for (const Trial& t : view.trials)
      if (t.rank > 0 && !t.top && !t.baseline && t.quality.lists == s.examples) names.push_back(escaped(short_name(t)));
    if (!names.empty() && !view.is_screening())
      out += fmt::format("<details><summary>Dropped after {}</summary>\n<p>{}</p></details>\n",
                         count_of(s.examples, "example"), joined(names, "; "));
  }
  return out;
}

std::string race_section(const SearchView& view) {
  const std::string table = race_table(view);
  if (table.empty()) return "";
  std::string text;
  for (size_t i = 0; i < view.stages.size(); ++i) text += stage_text(view, i);
  const size_t tied = view.tied().size();
  text += view.is_screening() ? "A screening ends there."
          : view.decided      ? "The winner alone was left."
          : tied > 0          ? fmt::format("At the end {} are tied with the winner.", counted_text(tied, "placement"))
                              : "";
  const bool weighs = !view.weighs_quality || view.std_bench.value_or(0) > 0 || !view.rank.starts_with("rcp");
  text += fmt::format(
      "</p><p class=\"quiet\">A placement is dropped when its {} is worse than the leader\u2019s with {} confidence, "
      "corrected for the number of placements raced and of stages. Comparisons are of pairs, on the same examples.{}",
      weighs ? rank_html(view) : escaped(metric_name(view)), percent_text(view.confidence),
      weighs ? "" : " Without std_bench nothing can be weighed against quality, so that it decides alone.");
  return section("The race", "<p>" + text + "</p>\n" + table + dropped_html(view));
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
                 fmt::format("<p class=\"quiet\">By the length of the input: {} (dev), with 95 % intervals.</p>\n",
                             escaped(metric_title(view))) +
                     table);
}

// Of a search on several machines: what each did, and which of them timed the top group.
std::string hosts_section(const Json& result) {
  const Json& hosts = list_in(member(result, "machine"), "hosts");
  if (hosts.empty()) return "";
  std::map<std::string, int64_t> timed;
  std::string placements, body;
  for (const Json& p : list_in(result, "placements")) {
    const Json& by_host = member(member(p, "throughput"), "hosts");
    if (!by_host.is_object()) continue;
    std::vector<std::string> parts;
    for (const auto& [host, blocks] : by_host.items()) {
      timed[host] += integer_in(by_host, host.c_str());
      parts.push_back(fmt::format("{} \u00d7 {}", integer_in(by_host, host.c_str()), escaped(host)));
    }
    if (member(p, "top") == true || member(p, "baseline") == true)
      placements += fmt::format("<tr><td class=\"wide\">{}</td><td class=\"wide\">{}</td></tr>\n",
                                escaped(text_in(p, "id")), joined(parts, "<br>"));
  }
  for (const Json& h : hosts) {
    const std::string name = text_in(h, "launch"), out = text_in(h, "left_out"), trouble = text_in(h, "trouble");
    body += fmt::format("<tr><td class=\"wide\">{}</td><td>{}</td><td class=\"wide\">{}</td>{}{}{}", escaped(name),
                        escaped(text_in(h, "host")), escaped(text_in(h, "cpu")),
                        number_cell(std::to_string(integer_in(h, "trials"))), number_cell(std::to_string(timed[name])),
                        number_cell(std::to_string(integer_in(h, "run_elsewhere"))));
    body += fmt::format("<td class=\"wide\">{}</td></tr>\n", escaped(out.empty() ? trouble : "left out: " + out));
  }
  const std::string head = head_cell("host") + head_cell("name") + head_cell("processor") + head_cell("trials", true) +
                           head_cell("timing blocks", true) + head_cell("run elsewhere", true) + head_cell("trouble");
  const std::string timings =
      placements.empty() ? ""
                         : scrolled("Timings", table_html(head_cell("placement") + head_cell("timed on"), placements));
  return section("Hosts",
                 "<p class=\"quiet\">A placement is timed in turn with the baseline on one host, and its speed is the "
                 "ratio to the baseline there; only hosts with one kind of processor are timed. Trials are those of "
                 "the last run of the search; those that failed on a host and ended well on another are run "
                 "elsewhere.</p>\n" +
                     scrolled("Hosts", table_html(head, body)) + timings);
}

std::string ranking_section(const SearchView& view) {
  const std::string table = ranking_table(view);
  if (table.empty()) return section("All placements", "<p class=\"quiet\">No placement was measured.</p>\n");
  return section("All placements",
                 fmt::format("<p class=\"quiet\">{} ranked{}, by {}. Quality is of dev, on the first n examples; small "
                             "numbers are 95 % intervals. "
                             "\u25cf marks the Pareto front, \u25cb what was screened; a mechanism in grey is the "
                             "baseline\u2019s. The titles sort.</p>\n",
                             view.count("ranked"),
                             view.count("limited") ? fmt::format(", {} outside the limits", view.count("limited")) : "",
                             rank_html(view)) +
                     table);
}

std::string screening_html(const SearchView& view) {
  if (!view.is_screening()) return "";
  const std::string examples =
      view.stages.empty() ? ""
                          : fmt::format(" on the first {} alone", count_of(view.stages.front().examples, "example"));
  return fmt::format(
      "<p class=\"notice\">This is a screening: every placement was measured{}. Without --quick the search goes "
      "on until the winner is decided.</p>\n",
      examples);
}

// The names of what cannot be distinguished from the winner.
std::string tied_html(const SearchView& view) {
  constexpr size_t most = 8;
  const std::vector<const Trial*> tied = view.tied();
  if (tied.empty()) return view.winner() && view.winner()->top ? "<p>Nothing is tied with it.</p>\n" : "";
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(most, tied.size()); ++i) names.push_back(escaped(short_name(*tied[i])));
  const std::string more = tied.size() > most ? fmt::format("; and {} more", tied.size() - most) : "";
  return fmt::format("<p>Tied with it: {}{}. <span class=\"quiet\">(The mechanisms of {}.)</span></p>\n",
                     joined(names, "; "), more, escaped(joined(view.roles, ", ")));
}

std::string head_of(const SearchView& view, const Json& result) {
  std::string out = fmt::format("<header>\n<h1>{}</h1>\n{}", escaped(view.model), screening_html(view));
  out += fmt::format("<p class=\"answer\">{}</p>\n",
                     escaped(view.answer.empty() ? "The search gave no answer." : view.answer));
  out += tied_html(view);
  if (text_in(result, "status") == "interrupted")
    out += "<p class=\"notice\">The search was interrupted: this is what it had measured by then.</p>\n";
  const std::string tables = placement_table(view) + comparison_table(view);
  if (!tables.empty())
    out += "<div class=\"top\" role=\"region\" tabindex=\"0\" aria-label=\"The winner\">\n" + tables + "</div>\n";
  return out + "</header>\n";
}

}  // namespace

std::string search_html(const Json& result) {
  const SearchView view = view_of(result);
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += fmt::format("<title>{}: attnkit search</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
                     escaped(view.model), colour_style() + report_style);
  out +=
      head_of(view, result) + quality_section(view) + test_section(view) + block_section(view) + length_section(view);
  out += bucket_section(view) + ranking_section(view) + section("Not ranked", reasons_table(view)) + race_section(view);
  out += hosts_section(result);
  out += section("How to read this", notes_html(view, result)) + "</main>\n" + footer_html(view, result);
  return out + fmt::format("<script>{}</script>\n</body>\n</html>\n", report_script);
}

}  // namespace attnkit::cli
