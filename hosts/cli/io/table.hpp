// Columns of text: the first and those named are flush left, numbers flush right.
#pragma once

#include <string>
#include <vector>

namespace attnkit::cli {

class Table {
 public:
  // A title that begins with '>' makes its column flush right.
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> row);  // as many cells as titles
  std::string text() const;                // with a line feed after every row

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace attnkit::cli
