// Laws of being loaded: once, without a trace, by hosts of any minor.
#include <dlfcn.h>

#include <chrono>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/conformance/law.hpp"
#include "core/conformance/process_state.hpp"
#include "core/plugin/loader.hpp"

namespace attnkit::core::conformance {

namespace {

std::string stem(const std::string& file) { return std::filesystem::path(file).stem().string(); }

// A host loads all that it finds before it does anything else.
void works(const Trial& trial) {
  const auto start = std::chrono::steady_clock::now();
  load_plugin(read_plugin_file(trial.file));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  if (took.count() > 100)
    throw Remark{fmt::format("loading it took {:.0f} ms: so long each host that finds it waits", took.count())};
}

void name(const Trial& trial) {
  const attn_plugin table = load_plugin(read_plugin_file(trial.file));
  const std::string want = table.name + std::string(table.device_type == 2 ? "-cuda" : "");
  hold(stem(trial.file) == want, "it holds mechanism \"{}\", so its file must be {}.so", table.name, want);
}

void device(const Trial& trial) { load_here(trial.file); }

void unchanged(const Trial& trial, uint32_t kinds) {
  StateWatch watch(kinds);
  load(trial.file);
  watch.check();
}

void traceless(const Trial& trial) {
  unchanged(trial, ProcessState::kSignals | ProcessState::kTimers | ProcessState::kThreads | ProcessState::kFiles |
                       ProcessState::kSettings);
}

void float_modes(const Trial& trial) { unchanged(trial, ProcessState::kFloat); }

attn_plugin_main_fn entry_of(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  hold(library != nullptr, "it cannot be loaded");
  return reinterpret_cast<attn_plugin_main_fn>(dlsym(library, "attn_plugin_main_v1"));
}

// A host of a later minor, whose structs are longer, is served by a plugin of this one.
void later_host(const Trial& trial) {
  const auto entry = entry_of(trial.file);
  const Later later(attn_host{sizeof(attn_host), ATTN_ABI_MINOR + 7, 0, 0});
  const attn_plugin* table = nullptr;
  attn_error error = empty_error();
  const int32_t code = boundary("attn_plugin_main_v1", [&] { return entry(&later.known, &table, &error); });
  hold(code == ATTN_OK && table != nullptr,
       "it refuses a host of minor {} that accepts plugins of minor 0, with code {}: {}", later.known.abi_minor, code,
       message_of(error));
}

// A host of minor 0, whose structs are those of its time, is served or hears in words that it is too old.
void earlier_host(const Trial& trial) {
  const uint32_t oldest = load_plugin(read_plugin_file(trial.file)).oldest_host_minor;
  const auto entry = entry_of(trial.file);
  const attn_host earlier{sizeof earlier, 0, 0, 0};
  const attn_plugin* table = nullptr;
  attn_error error = empty_error();
  const int32_t code = boundary("attn_plugin_main_v1", [&] { return entry(&earlier, &table, &error); });
  if (code == ATTN_OK) return hold(table != nullptr, "it takes a host of minor 0 and gives no table");
  hold(oldest > 0 && code == ATTN_UNSUPPORTED,
       "it says that it serves hosts of minor {} and later, and refuses one of minor 0 with code {}: {}", oldest, code,
       message_of(error));
  throw RefusedInWords{message_of(error)};
}

constexpr Check all[] = {
    {"load", "works", "it can be loaded and gives a table as plugin.h has it", works, nullptr, kAnywhere, Draws::none,
     true},
    {"load", "name", "its file has its name", name, nullptr},
    {"load", "float_modes", "loading it leaves the floating-point modes as they were", float_modes, nullptr},
    {"load", "traceless", "loading it leaves signals, timers, threads, files, environment and locale as they were",
     traceless, nullptr},
    {"load", "later_host", "a host of a later minor can use it", later_host, nullptr},
    {"load", "earlier_host", "a host of minor 0 can use it, or is refused in words", earlier_host, nullptr},
    {"load", "device", "it computes on the CPU, or on a CUDA device that is there", device, nullptr, kAnywhere,
     Draws::none, true},
};

}  // namespace

const std::span<const Check> load_checks = all;

}  // namespace attnkit::core::conformance
