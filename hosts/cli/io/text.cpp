#include "hosts/cli/io/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attnkit::cli {
namespace {

constexpr size_t max_quote = 80;

std::string scaled(double value, double base, std::initializer_list<const char*> units) {
  const char* const* unit = units.begin();
  for (; unit + 1 != units.end() && value >= base * 0.9995; ++unit) value /= base;
  const int digits = unit == units.begin() && value == static_cast<int64_t>(value) ? 0 : value < 9.995 ? 2 : 1;
  return fmt::format("{:.{}f}{}{}", value, digits, **unit ? " " : "", *unit);
}

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (out.size() > max_quote && (byte & 0xc0) != 0x80) {
      out += "...";
      break;
    }
    out += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return out + '"';
}

std::string shell_word(std::string_view text) {
  constexpr std::string_view safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=+@%";
  if (!text.empty() && text.find_first_not_of(safe) == std::string_view::npos) return std::string(text);
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bytes_text(uint64_t bytes) {
  return scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string count_text(double count) { return scaled(count, 1000, {"", "k", "M", "G", "T"}); }

std::string seconds_text(double seconds) { return scaled(seconds * 1e9, 1000, {"ns", "\u00b5s", "ms", "s"}); }

std::string grouped_text(uint64_t count) { return fmt::format("{}", fmt::group_digits(count)); }

std::string counted_text(size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string joined(const std::vector<std::string>& parts, std::string_view between) {
  return fmt::format("{}", fmt::join(parts, between));
}

size_t width_of(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

Table::Table(std::vector<std::string> titles) {
  for (std::string& title : titles) {
    right_.push_back(title.starts_with('>'));
    if (right_.back()) title.erase(0, 1);
  }
  rows_.push_back(std::move(titles));
}

void Table::add(std::vector<std::string> row) {
  row.resize(right_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<size_t> widths(right_.size());
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - width_of(row[c]), ' ');
      line += (c ? "  " : "") + (right_[c] ? pad + row[c] : row[c] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

}  // namespace attnkit::cli
