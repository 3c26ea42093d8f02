#include "hosts/cli/bundle/readme.hpp"

#include <algorithm>
#include <set>

#include "hosts/cli/io/text.hpp"
#include "hosts/cli/search/view.hpp"

namespace attnkit::cli {
namespace {

// A line of a table: cells that hold no '|' of their own.
std::string row(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (std::string cell : cells) {
    for (size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) cell.replace(at, 1, "\\|");
    out += " " + cell + " |";
  }
  return out + "\n";
}

std::string head(const std::vector<std::string>& titles) {
  return row(titles) + row(std::vector<std::string>(titles.size(), "---"));
}

std::vector<std::string> mechanisms_of(const Json& description) {
  std::set<std::string> names;
  for (const Json& block : description["blocks"]) names.insert(block["mechanism"].get<std::string>());
  return {names.begin(), names.end()};
}

std::string grid_text(const Json& description) {
  std::string out = head({"block", "layer", "mechanism"});
  for (const Json& block : description["blocks"])
    out += row({block["role"], std::to_string(block["layer"].get<int>()), block["given"]["label"]});
  return out;
}

std::string number_text(std::optional<double> value, int digits, const std::string& unit) {
  return value ? fmt::format("{:.{}f}{}", *value, digits, unit) : "";
}

// "98.1 to 99.2 %"; empty: there is none.
std::string range_text(const Json& json, const char* low, const char* high, int digits, const std::string& unit) {
  const auto a = number_in(json, low), b = number_in(json, high);
  return a && b ? fmt::format("{:.{}f} to {:.{}f}{}", *a, digits, *b, digits, unit) : "";
}

// The figures of one placement, beside the baseline's.
class Figures {
 public:
  Figures(const Json& result, const std::string& placement) : result_(result) {
    for (const Json& p : member(result, "placements")) {
      if (text_in(p, "id") == placement) own_ = &p;
      if (text_in(p, "id") == text_in(settings(), "baseline")) baseline_ = &p;
    }
  }

  std::string text() const {
    const std::string answer = is_winner() ? text_in(member(result_, "answer"), "text") : "";
    std::string out = answer.empty() ? "" : "> " + answer + "\n\n";
    out += head({"", "this model", "95 % interval", "baseline"});
    add_quality(out);
    add_costs(out);
    for (const char* rank : {"rcp", "rcp_mem"})
      if (const auto value = number_in(*own_, rank))
        out +=
            row({rank, number_text(value, 3, ""),
                 range_text(*own_, (std::string(rank) + "_low").c_str(), (std::string(rank) + "_high").c_str(), 3, ""),
                 number_text(number_in(*baseline_, rank), 3, "")});
    return out + circumstances();
  }

 private:
  const Json& settings() const { return member(result_, "settings"); }

  void add_quality(std::string& out) const {
    const std::string metric = text_in(settings(), "metric");
    const bool percent = metric == "exact" || metric == "accuracy";
    const int digits = metric == "perplexity" ? 3 : metric == "cosine" ? 4 : percent ? 1 : 2;
    const std::string unit = percent ? " %" : "";
    const auto add = [&](const char* set, const Json& own, std::optional<double> baseline) {
      if (const auto value = number_in(own, "value"))
        out += row({fmt::format("{}, {} set, {} examples", metric, set, integer_in(own, "lists")),
                    number_text(value, digits, unit), range_text(own, "low", "high", digits, unit),
                    number_text(baseline, digits, unit)});
    };
    const Json& dev = member(*own_, "quality");
    const auto paired = number_in(dev, "baseline");
    add("development", dev, paired ? paired : number_in(member(*baseline_, "quality"), "value"));
    const Json& test = member(*own_, "test");
    add("test", test, number_in(test, "baseline"));
  }

  void add_costs(std::string& out) const {
    const int64_t length = integer_in(settings(), "length");
    const Json &own = at(*own_, length), &baseline = at(*baseline_, length);
    const auto add = [&](const std::string& what, const std::string& value, const std::string& range,
                         const std::string& other) {
      if (!value.empty()) out += row({fmt::format("{} at {} tokens", what, length), value, range, other});
    };
    const Json& throughput = member(*own_, "throughput");
    add("throughput over the baseline's", number_text(number_in(throughput, "value"), 2, ""),
        range_text(throughput, "low", "high", 2, ""), "1");
    const auto time = [](const Json& cost) {
      const auto seconds = number_in(cost, "latency");
      return seconds && *seconds > 0 ? seconds_text(*seconds) : "";
    };
    add("one more token", time(own), "", time(baseline));
    const auto bytes = [](const Json& json, const char* key) {
      const int64_t n = integer_in(json, key);
      return n > 0 ? bytes_text(static_cast<uint64_t>(n)) : "";
    };
    const Json& memory = member(*own_, "memory");
    add("peak memory of a session", bytes(memory, "peak_bytes"), "", bytes(memory, "baseline_peak_bytes"));
    add("state of a session", bytes(own, "state_bytes"), "", bytes(baseline, "state_bytes"));
  }

  static const Json& at(const Json& placement, int64_t length) {
    static const Json none;
    for (const Json& cost : member(member(placement, "cost"), "at"))
      if (integer_in(cost, "length") == length) return cost;
    return none;
  }

  std::string circumstances() const {
    const Json& machine = member(result_, "machine");
    const int64_t threads = std::max<int64_t>(1, integer_in(machine, "threads"));
    return fmt::format("\nThe baseline is `{}`. Measured by attnkit {} on {}, with {} on {}, by\n\n    {}\n",
                       text_in(settings(), "baseline"), text_in(result_, "version"), text_in(result_, "date"),
                       counted_text(static_cast<size_t>(threads), "thread"), text_in(machine, "cpu"),
                       text_in(result_, "command"));
  }

  bool is_winner() const { return text_in(member(result_, "answer"), "placement") == text_in(*own_, "id"); }

  const Json& result_;
  const Json none_;
  const Json *own_ = &none_, *baseline_ = &none_;
};

std::string licence_text(const BundleFacts& facts) {
  if (facts.licensed) return "";
  return fmt::format(
      "\nNo licence came with the model: there was no LICENSE, COPYING or NOTICE in {}. Ask who made it before you "
      "pass it "
      "on.\n",
      joined(facts.lookup, " or "));
}

}  // namespace

std::string readme_text(const BundleFacts& facts) {
  const Json& d = facts.description;
  std::string out = fmt::format("# {}\n\n    attnkit run model.toml {}\n\n", d["name"].get<std::string>(),
                                d["speech"].is_null() ? "--text TEXT" : "--audio FILE");
  out += fmt::format(
      "runs it, wherever this folder lies, on a machine that has attnkit {} or later and its plugins {}. They are not "
      "in\nthe "
      "folder, since they are built for each machine. Kind {}, {} parameters.\n\n## Mechanisms\n\n",
      attnkit_version(), joined(mechanisms_of(d), ", "), d["kind"].get<std::string>(), grouped_text(d["parameters"]));
  out += grid_text(d) + "\n## Figures\n\n";
  out += facts.result.is_null()
             ? "None: this placement was not measured by a search whose result lay beside its manifest.\n"
             : Figures(facts.result, facts.placement).text();
  out += "\n## Files\n\n" + head({"file", "bytes", "what"});
  for (const BundledFile& f : facts.files) out += row({"`" + f.name + "`", grouped_text(f.bytes), f.what});
  return out + licence_text(facts);
}

}  // namespace attnkit::cli
