// attnkit-plugin-process: loads one plugin's file, which may do what it likes here, and says on descriptor 3 what came
// of it.  For libattnkit and "attnkit validate-plugin", which watch it from outside.
//
//   probe FILE                 loads it, and creates it with its default options in every role
//   check FILE ID SEED DRAWS   performs one check
//   state FILE ROLE            gives the bytes of a state, for the check that moves one
//   list                       names the checks
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/descriptor.hpp"
#include "core/base/error.hpp"
#include "core/base/roles.hpp"
#include "core/base/text.hpp"
#include "core/conformance/check.hpp"
#include "core/conformance/process/counted_malloc.hpp"
#include "core/conformance/process_state.hpp"
#include "core/plugin/loader.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/plugin/probe.hpp"

namespace {

using namespace attnkit::core;
using Json = nlohmann::ordered_json;

constexpr int reply_file = 3;

void say_line(const std::string& line) { write_all(reply_file, line + "\n"); }

void say(const Json& document) { say_line(document.dump(-1, ' ', false, Json::error_handler_t::replace)); }

void limit_harm() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none = {0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  rlimit files = {};
  ::getrlimit(RLIMIT_FSIZE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_cur, rlim_t{64} << 20);
  ::setrlimit(RLIMIT_FSIZE, &files);
}

// The table of the plugin that is tried, and the exception that left it, which a host would report as any other
// failure.
attn_plugin tried;
struct Thrown {
  const char* when;
  std::string what;
};
std::optional<Thrown> thrown;

template <class Call>
auto noting(const char* when, Call&& call) {
  const auto note = [&](const std::string& what) {
    if (!thrown) thrown = Thrown{when, what};
  };
  try {
    return call();
  } catch (const std::exception& e) {
    note(clean_line(e.what()));
    throw;
  } catch (...) {
    note("of no known type");
    throw;
  }
}

int32_t noting_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                      const attn_port* const** ports, uint32_t* n_ports, attn_error* error) {
  return noting("created", [&] { return tried.create(block, values, mech, ports, n_ports, error); });
}

void noting_destroy(attn_mech* mech) {
  noting("destroyed", [&] { tried.destroy(mech); });
}

// Says what it is about to do, so that whoever finds the process dead knows where it died.
void probe(const std::string& path) {
  try {
    say_line("was loaded");
    const conformance::ProcessState before;
    tried = load_plugin(read_plugin_file(path));
    // A host that prints nothing, or is ended by a signal, does not know why.
    const std::string change =
        before.changes_to({}, conformance::ProcessState::kStreams | conformance::ProcessState::kTimers);
    if (!change.empty()) return say_line(change + " when it was loaded");
    attn_plugin table = tried;
    table.create = noting_create;
    table.destroy = noting_destroy;
    const Plugin plugin{table.name, path, table};
    for (const auto& [role, causal] :
         {std::pair(ATTN_ENCODER_SELF, 0u), std::pair(ATTN_DECODER_SELF, 1u), std::pair(ATTN_DECODER_CROSS, 0u)}) {
      say_line(fmt::format("was created in {}", role_name(role)));
      try {
        Mechanism::create(plugin, {sizeof(attn_block), role, causal, 4, 128, 32, 4, 0}, default_options(plugin));
      } catch (const Error&) {
        // A host hears it where it matters.
      }
      if (thrown)
        return say_line(
            fmt::format("threw an exception when it was {} in {}: {}", thrown->when, role_name(role), thrown->what));
    }
    // All that a host asks before it runs.  What plan throws is caught there, and costs that place alone.
    say_line("was planned");
    attnkit::core::probe(plugin);
  } catch (const Error&) {
    // A fault without a crash is found again, and reported, by the process that loads it.
  }
  say_line("was unloaded");
}

void list() {
  Json all = Json::array();
  for (const conformance::Check& check : conformance::checks())
    all.push_back({{"name", check.id()}, {"law", check.law}, {"gates", check.gates}});
  say(all);
}

// Keeps what was freed: else each of thousands of runs takes its scratch from the system and gives it back.  Trials of
// fences and of memory that runs out do not depend on it.
void keep_memory() {
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MMAP_THRESHOLD, 1 << 25);
}

bool check(const std::string& file, const std::string& id, const std::string& seed, const std::string& draws) {
  keep_memory();
  conformance::set_allocator(conformance::counted_malloc(), conformance::failing_malloc());
  for (const conformance::Check& check : conformance::checks()) {
    if (check.id() != id) continue;
    const conformance::Trial trial = {file, std::strtoull(seed.c_str(), nullptr, 10), std::atoi(draws.c_str())};
    conformance::Finding found;
    try {
      read_plugin_file(file);  // the linker waits for who writes to a pipe
      found = conformance::perform(check, trial);
    } catch (const Error& e) {
      found = {conformance::Verdict::failed, clean_line(e.what()), {}};
    }
    say(Json{{"verdict", name_of(found.verdict)}, {"reason", found.reason}, {"measured", found.measured}});
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  limit_harm();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  if (what == "probe" && arguments.size() == 2) return probe(arguments[1]), 0;
  if (what == "state" && arguments.size() == 3)
    return write_all(reply_file, conformance::state_of(arguments[1], static_cast<uint32_t>(std::stoul(arguments[2])))),
           0;
  if (what == "list" && arguments.size() == 1) return list(), 0;
  if (what == "check" && arguments.size() == 5 && check(arguments[1], arguments[2], arguments[3], arguments[4]))
    return 0;
  return 2;
}
