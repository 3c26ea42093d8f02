// Laws of being loaded: once, without a trace, by hosts of any minor.
#include <dlfcn.h>

#include <filesystem>

#include "core/base/error.hpp"
#include "core/conformance/law.hpp"
#include "core/conformance/process_state.hpp"
#include "core/plugin/loader.hpp"

namespace attnkit::core::conformance {

namespace {

std::string stem(const std::string& file) { return std::filesystem::path(file).stem().string(); }

void works(const Trial& trial) { load_plugin(read_plugin_file(trial.file)); }

void name(const Trial& trial) {
  const attn_plugin table = load_plugin(read_plugin_file(trial.file));
  const std::string want = table.name + std::string(table.device_type == 2 ? "-cuda" : "");
  hold(stem(trial.file) == want, "it holds mechanism \"{}\", so its file must be {}.so", table.name, want);
}

void on_cpu(const Trial& trial) {
  const attn_plugin table = load_plugin(read_plugin_file(trial.file));
  if (table.device_type != 1) throw Violation("it computes on CUDA, where nothing is checked here");
}

void unchanged(const Trial& trial, uint32_t kinds) {
  StateWatch watch(kinds);
  load(trial.file);
  watch.check();
}

void quiet(const Trial& trial) { unchanged(trial, ProcessState::kOutput); }

void traceless(const Trial& trial) {
  unchanged(trial, ProcessState::kSignals | ProcessState::kThreads | ProcessState::kFiles | ProcessState::kSettings);
}

void float_modes(const Trial& trial) { unchanged(trial, ProcessState::kFloat); }

// A host of a later minor, whose structs are longer, is served by a plugin of this one.
void later_host(const Trial& trial) {
  void* const library = dlopen(trial.file.c_str(), RTLD_NOW | RTLD_LOCAL);
  hold(library != nullptr, "it cannot be loaded");
  const auto entry = reinterpret_cast<attn_plugin_main_fn>(dlsym(library, "attn_plugin_main_v1"));
  struct {
    attn_host host;
    uint64_t unknown;
  } later{{sizeof later, ATTN_ABI_MINOR + 7, 0, 0}, ~uint64_t{0}};
  const attn_plugin* table = nullptr;
  attn_error error = empty_error();
  const int32_t code = boundary("attn_plugin_main_v1", [&] { return entry(&later.host, &table, &error); });
  hold(code == ATTN_OK && table != nullptr,
       "it refuses a host of minor {} that accepts plugins of minor 0, with code {}: {}", later.host.abi_minor, code,
       error.message);
}

constexpr Check all[] = {
    {"load", "works", "it can be loaded and gives a table as plugin.h has it", works, nullptr, kAnywhere, Draws::none,
     true},
    {"load", "device", "it computes on the CPU", on_cpu, nullptr, kAnywhere, Draws::none, true},
    {"load", "quiet", "loading it prints nothing", quiet, nullptr, kAnywhere, Draws::none, true},
    {"load", "name", "its file has its name", name, nullptr},
    {"load", "float_modes", "loading it leaves the floating-point modes as they were", float_modes, nullptr},
    {"load", "traceless", "loading it leaves signals, threads, files, environment and locale as they were", traceless,
     nullptr},
    {"load", "later_host", "a host of a later minor can use it", later_host, nullptr},
};

}  // namespace

const std::span<const Check> load_checks = all;

}  // namespace attnkit::core::conformance
