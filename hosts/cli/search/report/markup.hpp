// HTML in small: escaping, and the style of a search's report.
#pragma once

#include <string>
#include <string_view>

namespace attnkit::cli {

// For text and for attributes in either quotes; control characters other than line feeds and tabs are dropped.
std::string escaped(std::string_view text);

// What stands between <style> tags, and between <script> tags: the latter only sorts tables by a click on a title.
std::string report_style();
std::string report_script();

}  // namespace attnkit::cli
