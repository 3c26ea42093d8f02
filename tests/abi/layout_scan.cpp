// Reads C headers and writes what layout.cpp compiles: one macro call for each public constant, type, field and
// function. Usage: layout_scan header... > table.inc
#include <cctype>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string one_space(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space) out += c;
    if (space && !out.empty() && out.back() != ' ') out += ' ';
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// Splits at `separator` outside of brackets.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(' || c == '{' || c == '[') - (c == ')' || c == '}' || c == ']');
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  for (auto& part : parts) part = one_space(part);
  return parts;
}

// "const int32_t* x" -> {"const int32_t*", "x"}; a lone type has no name.
std::pair<std::string, std::string> type_and_name(const std::string& declaration) {
  static const std::regex named(R"(^(.*?[\s*])\s*([A-Za-z_]\w*)((?:\[\d+\])*)$)");
  std::smatch match;
  if (!std::regex_match(declaration, match, named)) return {declaration, ""};
  return {std::regex_replace(one_space(match[1].str()), std::regex(R"(\s*\*)"), "*") + match[3].str(), match[2].str()};
}

// Names of parameters are no part of a type.
std::string parameters(const std::string& list) {
  std::string out;
  for (const auto& parameter : split(list, ',')) {
    out += (out.empty() ? "" : ", ") + type_and_name(parameter).first;
  }
  return out;
}

void field(const std::string& structure, const std::string& type, const std::string& name) {
  std::cout << "FIELD(" << structure << ", " << name << ", \"" << type << "\")\n";
}

void fields(const std::string& structure, const std::string& text) {
  static const std::regex function(R"(^(.+?)\s*\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)$)");
  std::smatch match;
  if (std::regex_match(text, match, function)) {
    return field(structure, match[1].str() + " (*)(" + parameters(match[3].str()) + ")", match[2].str());
  }
  const auto declarators = split(text, ',');
  const auto [first, name] = type_and_name(declarators[0]);
  field(structure, first, name);
  const std::string base = first.substr(0, first.find_first_of("*["));
  for (size_t i = 1; i < declarators.size(); ++i) {
    const auto [rest, other] = type_and_name(base + " " + declarators[i]);
    field(structure, rest, other);
  }
}

void structure(const std::string& name, const std::string& body) {
  const auto lines = split(body, ';');
  const bool grows = lines[0].starts_with("uint32_t struct_size");
  std::cout << "STRUCT(" << name << ", \"" << (grows ? "grows" : "frozen") << "\")\n";
  for (const auto& line : lines) {
    if (!line.empty()) fields(name, line);
  }
}

void item(const std::string& text) {
  static const std::regex a_struct(R"(^typedef struct (\w+) \{(.*)\} (\w+)$)"),
      a_callback(R"(^typedef (.+?) ?\(\*(\w+)\)\((.*)\)$)"), a_function(R"(^(?:ATTNKIT_API )?(.+?) ?(\w+)\((.*)\)$)");
  std::smatch match;
  if (std::regex_match(text, match, a_struct)) {
    structure(match[3].str(), match[2].str());
  } else if (std::regex_match(text, match, a_callback)) {
    std::cout << "ITEM(\"callback " << match[2] << " " << match[1] << " (*)(" << parameters(match[3]) << ")\")\n";
  } else if (text.starts_with("typedef struct ")) {
    // An opaque handle has no layout.
  } else if (std::regex_match(text, match, a_function)) {
    std::cout << "ITEM(\"function " << match[2] << " " << match[1] << "(" << parameters(match[3]) << ")\")\n";
  } else if (!text.empty()) {
    std::cout << "#error \"layout_scan does not understand: " << text << "\"\n";
  }
}

void header(const std::string& path) {
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (text.empty()) std::cout << "#error \"" << path << " is empty\"\n";
  for (size_t at; (at = text.find("/*")) != std::string::npos;) text.erase(at, text.find("*/", at) + 2 - at);
  std::string code;
  std::istringstream lines(text);
  static const std::regex constant(R"(^#define (\w+) (\d+)u?\s*$)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, constant)) {
      std::cout << "ITEM(\"constant " << match[1] << " " << match[2] << "\")\n";
    } else if (!line.starts_with("#") && line != "extern \"C\" {" && line != "}") {
      code += line + "\n";
    }
  }
  code = std::regex_replace(code, std::regex(R"(__attribute__\(\(visibility\("default"\)\)\))"), "");
  for (const auto& part : split(code, ';')) item(part);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) header(argv[i]);
}
