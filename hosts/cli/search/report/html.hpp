// Text and numbers of a search's report as HTML.
#pragma once

#include <string>
#include <string_view>

#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {

// For text and for attributes in either quotes; control characters other than line feeds and tabs are dropped.
std::string escaped(std::string_view text);

// "98.75", and its interval in small letters where there is one.
std::string quality_html(const SearchView& view, const Estimate& quality);
std::string difference_html(const SearchView& view, const Estimate& difference);  // of two qualities
std::string fixed_html(const Estimate& estimate, int digits);

std::string lists_text(int64_t lists);          // "2,000"
std::string rank_html(const SearchView& view);  // what placements are ranked by

std::string head_cell(const std::string& text, bool number = false);
std::string number_cell(const std::string& html);
// `attributes` begin with a space.
std::string table_html(const std::string& head, const std::string& body, const std::string& caption = "",
                       const char* attributes = "");
// Scrolls by itself where the page is too narrow for it.
std::string scrolled(const std::string& name, const std::string& table);

}  // namespace attnkit::cli
