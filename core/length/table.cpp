#include "core/length/table.hpp"

#include <charconv>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"

namespace attnkit {
namespace {

constexpr uint64_t largest_file = uint64_t{64} << 20;
constexpr std::string_view byte_order_mark = "\ufeff";

class TableFile {
 public:
  TableFile(const std::string& path, const Vocabulary& vocabulary) : path_(path) {
    for (int32_t id = 0; id < vocabulary.size(); ++id) ids_.emplace(vocabulary.token(id), id);
    table_.means.assign(static_cast<size_t>(vocabulary.size()), NAN);
    lines_.resize(table_.means.size());
  }

  LengthTable read() {
    const std::vector<std::byte> bytes = read_file(path_, largest_file);
    std::string_view rest(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (rest.starts_with(byte_order_mark)) rest.remove_prefix(byte_order_mark.size());
    while (!rest.empty()) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++line_;
      take(line);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (table_.listed == 0)
      fail(ATTN_INVALID, "{}:1: the file is empty; every line is a token, a TAB, a number", path_);
    table_.mean = sum_ / static_cast<double>(table_.listed);
    for (double& mean : table_.means)
      if (std::isnan(mean)) mean = table_.mean;
    return std::move(table_);
  }

 private:
  void take(std::string_view line) {
    if (const size_t n = valid_utf8(line); n < line.size())
      fail(ATTN_INVALID, "{}:{}:{}: is not UTF-8", path_, line_, n + 1);
    const size_t tab = line.rfind('\t');
    if (tab == std::string_view::npos)
      fail(ATTN_INVALID, "{}:{}: has no TAB; every line is a token, a TAB, a number", path_, line_);
    const std::string token(line.substr(0, tab));
    const auto id = ids_.find(token);
    if (id == ids_.end())
      fail(ATTN_INVALID, "{}:{}: token {} is not in the source vocabulary", path_, line_, quote(token));
    int& first = lines_[static_cast<size_t>(id->second)];
    if (first > 0) fail(ATTN_INVALID, "{}:{}: token {} is on line {} already", path_, line_, quote(token), first);
    first = line_;
    const double mean = number(line.substr(tab + 1), token);
    table_.means[static_cast<size_t>(id->second)] = mean;
    sum_ += mean;
    ++table_.listed;
  }

  double number(std::string_view text, const std::string& token) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
      fail(ATTN_INVALID, "{}:{}: the mean of {} is {}; it must be a number from 0", path_, line_, quote(token),
           quote(text));
    return value;
  }

  const std::string& path_;
  std::unordered_map<std::string, int32_t> ids_;
  LengthTable table_;
  std::vector<int> lines_;  // where each token stood; 0: not yet
  int line_ = 0;
  double sum_ = 0;
};

}  // namespace

LengthTable read_length_table(const std::string& path, const Vocabulary& vocabulary) {
  return TableFile(path, vocabulary).read();
}

}  // namespace attnkit
