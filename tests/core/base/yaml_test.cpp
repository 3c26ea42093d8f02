// Marian's YAML becomes JSON, and what is none is one line that names the file and the line.
#include "core/base/formats/yaml.hpp"

#include <gtest/gtest.h>

#include "core/base/error.hpp"

namespace attnkit::core {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_yaml(text, "x.yml");
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  return "";
}

TEST(Yaml, IsJson) {
  const nlohmann::json expected = {{"type", "transformer"},
                                   {"dim", 512},
                                   {"rate", 0.1},
                                   {"tied", true},
                                   {"pre", ""},
                                   {"post", "5"},
                                   {"none", nullptr},
                                   {"sizes", {1, 2}},
                                   {"layers", nlohmann::json::array()},
                                   {"version", "v1.9 65bf82f 10:29"}};
  EXPECT_EQ(
      parse_yaml("type: transformer\ndim: 512\nrate: 0.1\ntied: true\npre: \"\"\npost: '5'\nnone:\nsizes:\n  - 1\n"
                 "  - 2\nlayers:\n  []\nversion: v1.9 65bf82f 10:29\n",
                 "x.yml"),
      expected);
}

TEST(Yaml, KeysAreTokens) {
  EXPECT_EQ(parse_yaml("</s>: 0\n\"\\x22\": 1\n'''': 2\n? \"?\"\n: 3\n1: 4\ntrue: 5\n\u2581the: 6\n", "x.yml"),
            (nlohmann::json{{"</s>", 0}, {"\"", 1}, {"'", 2}, {"?", 3}, {"1", 4}, {"true", 5}, {"\u2581the", 6}}));
}

TEST(Yaml, MistakesAreNamed) {
  std::string bomb = "a0: &a0 [x, x, x]\n";
  for (int i = 1; i < 16; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb +=
        "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before + ", " + before + ", " + before + "]\n";
  }
  for (const auto& [text, message] : std::initializer_list<std::pair<std::string, const char*>>{
           {"a: [b\n", "x.yml:2: is no YAML: "},
           {"a: 1\nb: \"\xff\"\n", "x.yml:2: has a text that is no UTF-8"},
           {"a: 1\n[b]: 2\n", "x.yml:2: has a key that is no text"},
           {bomb, "has more than 2097152 values"},
           {std::string(20, '[') + std::string(20, ']'), "x.yml:1: is nested more than 16 deep"},
           {std::string(100000, '['), "x.yml:"}})
    EXPECT_NE(refusal(text).find(message), std::string::npos) << refusal(text);
}

}  // namespace
}  // namespace attnkit::core
