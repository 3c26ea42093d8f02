// Text for people: quotes, units and tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text.hpp"

namespace attnkit::cli {

using namespace core;

// In double quotes, on one line, control characters escaped, cut after about 80 bytes.
std::string quote(std::string_view text);

// As a POSIX shell reads it back: bare where that is safe, else in single quotes.
std::string shell_word(std::string_view text);

std::string bytes_text(uint64_t bytes);    // "33.0 KiB"
std::string count_text(double count);      // "1.04 M"
std::string seconds_text(double seconds);  // "3.21 \u00b5s"
std::string grouped_text(uint64_t count);  // "1,043,456"

// "1 token", "2 tokens".
std::string counted_text(size_t count, std::string_view noun);

std::string joined(const std::vector<std::string>& parts, std::string_view between);

// Characters of UTF-8 text, for column widths.
size_t width_of(std::string_view text);

// Columns of text: flush left, or flush right where the title begins with '>'.
class Table {
 public:
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> row);  // as many cells as titles
  std::string text() const;                // with a line feed after every row

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace attnkit::cli
