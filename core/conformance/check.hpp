// The checks that any plugin is held to: each has a name and a law, and makes a verdict of a file, a seed and a number
// of draws.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/conformance/array.hpp"
#include "core/conformance/loader.hpp"

namespace attnkit::core::conformance {

enum class Verdict {
  passed,
  refused,  // in words, wherever the law was tried
  failed,
  not_applicable,
};
const char* name_of(Verdict verdict);

struct Finding {
  Verdict verdict = Verdict::not_applicable;
  std::string reason;                           // one line; of what was refused or failed the place it was tried in
  std::map<std::string, std::string> measured;  // by name, for reports
};

// The input of a check: a file, and the random blocks, options and numbers that follow from the seed.
struct Trial {
  std::string file;
  uint64_t seed = 1;
  int draws = 0;        // random places, beside one of each role with the default options
  double gate = kGate;  // of f32 results; wider where a bridge was told to make them in 16 bits
};

class Law;

// The roles that a law is about.  kCausalEncoder: beside kDecoder; the random places of that are of either.
enum : uint32_t { kEncoder = 1, kDecoder = 2, kCross = 4, kAnywhere = 7, kCausalEncoder = 8 };

// The differences between the random places of a check; one: a single one, with the fixed widths and other options.
enum class Draws { none, one, blocks, options };

struct Check {
  const char *group, *name;  // "stream", "chunks": the check stream.chunks
  const char* law;           // what holds, one sentence
  // Of a file: throws Violation.  Of a place: see Law.  One of them is NULL.
  void (*of_file)(const Trial& trial);
  void (*of_place)(Law& law);
  uint32_t roles = kAnywhere;
  Draws draws = Draws::options;
  bool gates = false;     // where it fails, those after it say nothing and are not tried
  bool must_run = false;  // refused wherever it was tried, it fails

  std::string id() const { return std::string(group) + "." + name; }
};

// Thrown by a check that holds and has something to say all the same.
struct Remark {
  std::string words;
};

// In the order in which they should be tried.
std::span<const Check> checks();

// The state of one row after 20 in a fixed place of that role, for stream.other_process.  Throws as checks do.
std::string state_of(const std::string& file, uint32_t role);

// Never throws for what a plugin does; one that crashes, hangs or ends the process takes this process with it.
Finding perform(const Check& check, const Trial& trial);

// Throws Violation unless `kept`.
template <class... Args>
void hold(bool kept, fmt::format_string<Args...> broken, Args&&... args) {
  if (!kept) throw Violation(fmt::format(broken, std::forward<Args>(args)...));
}

// Each group in a file of its name.
extern const std::span<const Check> file_checks, load_checks, plan_checks, table_checks, memory_checks, process_checks,
    whole_checks, refusal_checks, locality_checks, stream_checks, gradient_checks;

}  // namespace attnkit::core::conformance
