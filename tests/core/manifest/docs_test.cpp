// docs/manifest.md says of every key and code what the code says; ATTNKIT_WRITE_DOCS=1 rewrites its tables.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "core/manifest/diagnostics.hpp"
#include "core/manifest/keys.hpp"

namespace attnkit::core {
namespace {

const char* const path = ATTNKIT_SOURCE_DIR "/docs/manifest.md";

std::string read_docs() {
  std::ifstream in(path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return text;
}

std::string title(std::string_view table) {
  if (table.empty()) return "The root";
  return table == "attention.override" ? "`[[attention.override]]`" : fmt::format("`[{}]`", table);
}

std::string key_tables() {
  std::vector<std::string_view> tables;
  for (const KeyRule& rule : manifest_keys())
    if (std::find(tables.begin(), tables.end(), rule.table) == tables.end()) tables.push_back(rule.table);
  std::string out;
  for (const std::string_view table : tables) {
    out += fmt::format("\n### {}\n\n| key | type | default | meaning |\n|---|---|---|---|\n", title(table));
    for (const KeyRule* rule : rules_of(table)) {
      const std::string key = std::string_view(rule->key).find('.') == std::string_view::npos
                                  ? rule->key
                                  : fmt::format("\"{}\"", rule->key);
      const std::string fallback = !rule->fallback   ? "required"
                                   : *rule->fallback ? fmt::format("`{}`", rule->fallback)
                                                     : "none";
      out += fmt::format("| `{}` | {} | {} | {} |\n", key, cell(type_text(*rule)), fallback, cell(rule->meaning));
    }
  }
  return out + "\n";
}

std::string code_table() {
  std::string out = "\n| code | severity | area | meaning |\n|---|---|---|---|\n";
  const char* const areas[] = {"", "manifest", "plugin", "weights", "data"};
  for (const CodeRule& rule : manifest_codes())
    out += fmt::format("| AK{} | {} | {} | {} |\n", rule.code, rule.severity == ATTNKIT_ERROR ? "error" : "warning",
                       areas[rule.area], rule.meaning);
  return out + "\n";
}

void expect_section(const std::string& name, const std::string& expected) {
  const std::string begin =
      fmt::format("<!-- {}: generated from core, see tests/core/manifest/docs_test.cpp -->\n", name);
  const std::string end = fmt::format("<!-- end of {} -->", name);
  std::string docs = read_docs();
  const size_t from = docs.find(begin), to = docs.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos && from < to) << begin;
  const size_t start = from + begin.size();
  if (std::getenv("ATTNKIT_WRITE_DOCS")) {
    std::ofstream(path) << docs.replace(start, to - start, expected);
    return;
  }
  EXPECT_EQ(docs.substr(start, to - start), expected);
}

TEST(ManifestDocs, ListEveryKey) { expect_section("keys", key_tables()); }

TEST(ManifestDocs, ListEveryCode) { expect_section("codes", code_table()); }

TEST(ManifestDocs, CodesAscend) {
  for (size_t i = 1; i < manifest_codes().size(); ++i)
    EXPECT_LT(manifest_codes()[i - 1].code, manifest_codes()[i].code);
}

}  // namespace
}  // namespace attnkit::core
