// The command line after parsing: typed access with one message for each wrong value.
#pragma once

#include <boost/program_options/variables_map.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace attnkit::cli {

enum class Progress { automatic, bar, plain, none };

struct Option {
  const char* name;       // "output,o": the latter the short one
  const char* value;      // what is its value; nullptr: it has none
  const char* meaning;    // for the help
  bool repeated = false;  // it may be given several times
};
using Options = std::vector<Option>;

class Arguments {
 public:
  // tokens: what follows the subcommand, global options included.  positional: the name of the one argument without
  // dashes ("" for none).  Throws Failure (usage) naming the nearest option for an unknown one.
  Arguments(const std::string& subcommand, const Options& own, const std::string& positional,
            const std::vector<std::string>& tokens);

  bool has(const std::string& name) const { return values_.count(name) > 0; }
  std::string text(const std::string& name, const std::string& fallback = "") const;
  std::vector<std::string> texts(const std::string& name) const;
  // Throws Failure (usage): no integer, or outside [min, max].
  int64_t integer(const std::string& name, int64_t fallback, int64_t min, int64_t max) const;
  // Throws Failure (usage): no number, or outside [min, max].
  double number(const std::string& name, double fallback, double min, double max) const;
  // "64,512,4096".
  std::vector<int64_t> integers(const std::string& name, std::vector<int64_t> fallback, int64_t min, int64_t max) const;
  // One of choices, by index.
  size_t choice(const std::string& name, size_t fallback, const std::vector<std::string>& choices) const;

  // The tokens after the subcommand, as they were given.
  const std::vector<std::string>& tokens() const { return tokens_; }

  bool json() const { return has("json"); }
  Progress progress() const;

 private:
  std::vector<std::string> tokens_;
  boost::program_options::variables_map values_;
};

// --plugin-dir, --threads, --device, --json, --progress, --help, --version.
extern const Options global_options;

// Whether a global option with this token takes the next token as its value.
bool takes_value(const std::string& token);

}  // namespace attnkit::cli
