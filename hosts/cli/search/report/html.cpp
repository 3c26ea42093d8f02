#include "hosts/cli/search/report/html.hpp"

#include "hosts/cli/io/text.hpp"

namespace attnkit::cli {
namespace {

template <class Text>
std::string estimate_html(const Estimate& e, Text text, const char* between = "\u2013") {
  if (!e.has_interval()) return text(e.value);
  return fmt::format("{} <small>{}{}{}</small>", text(e.value), text(e.low), between, text(e.high));
}

}  // namespace

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

std::string quality_html(const SearchView& view, const Estimate& e) {
  return estimate_html(e, [&](std::optional<double> value) { return quality_text(view, value); });
}

std::string difference_html(const SearchView& view, const Estimate& e) {
  return estimate_html(
      e, [&](std::optional<double> value) { return difference_text(view, value); }, " to ");
}

std::string fixed_html(const Estimate& e, int digits) {
  return estimate_html(e, [=](std::optional<double> value) { return fixed_text(value, digits); });
}

std::string lists_text(int64_t lists) { return lists > 0 ? grouped_text(static_cast<uint64_t>(lists)) : "n/a"; }

std::string rank_html(const SearchView& view) {
  return rank_name(view) == "RCP_mem" ? "RCP<sub>mem</sub>" : escaped(rank_name(view));
}

std::string head_cell(const std::string& text, bool number) {
  return fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "", escaped(text));
}

std::string number_cell(const std::string& html) { return fmt::format("<td class=\"n\">{}</td>", html); }

std::string table_html(const std::string& head, const std::string& body, const std::string& caption,
                       const char* attributes) {
  return fmt::format("<table{}>{}<thead><tr>{}</tr></thead><tbody>\n{}</tbody></table>", attributes,
                     caption.empty() ? "" : "<caption>" + caption + "</caption>", head, body);
}

// The keyboard scrolls what has the focus.
std::string scrolled(const std::string& name, const std::string& table) {
  return fmt::format("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">{}</div>\n", escaped(name),
                     table);
}

}  // namespace attnkit::cli
