#include "core/conformance/loader.hpp"

#include <dlfcn.h>

#include <cstring>
#include <mutex>

#include "core/base/error.hpp"
#include "core/conformance/runner.hpp"

namespace attnkit::core::conformance {

std::string message_of(const attn_error& error) {
  const size_t length = strnlen(error.message, sizeof error.message);
  if (length == sizeof error.message)
    throw Violation("its message has no NUL within the " + std::to_string(length) + " bytes of attn_error.message");
  return {error.message, length};
}

void expect_ok(int32_t code, const attn_error& error) {
  if (code != ATTN_OK) throw Refused(code, error.where, message_of(error));
}

Refused refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Refused& refused) {
    return refused;
  }
  return {ATTN_OK, -1, ""};
}

namespace {
thread_local Watch* watching = nullptr;
}

void set_watch(Watch* watch) { watching = watch; }

Watch* current_watch() { return watching; }

const attn_plugin& load(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, const attn_plugin*> loaded;
  const std::lock_guard lock(mutex);
  const attn_plugin*& plugin = loaded[path];
  if (plugin) return *plugin;
  void* library = boundary("loading", [&] { return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); });
  if (!library) throw std::runtime_error(dlerror());
  const auto main = reinterpret_cast<attn_plugin_main_fn>(dlsym(library, "attn_plugin_main_v1"));
  if (!main) throw std::runtime_error(dlerror());
  const attn_host host{sizeof host, ATTN_ABI_MINOR, 0, 0};
  attn_error error = empty_error();
  expect_ok(boundary("attn_plugin_main_v1", [&] { return main(&host, &plugin, &error); }), error);
  return *plugin;
}

namespace {

attn_value value_of(const attn_option& option, const Settings& settings) {
  attn_value value = option.fallback;
  const auto it = settings.find(option.name);
  if (it == settings.end()) return value;
  if (const auto* i = std::get_if<int64_t>(&it->second)) value.i = *i;
  if (const auto* f = std::get_if<double>(&it->second)) value.f = *f;
  if (const auto* b = std::get_if<bool>(&it->second)) value.i = *b;
  if (const auto* s = std::get_if<std::string>(&it->second)) value.s = s->c_str();
  return value;
}

}  // namespace

Mechanism::Mechanism(const attn_plugin& plugin, const attn_block& block, const Settings& settings, Copies* given)
    : plugin_(plugin), block_(block) {
  std::vector<attn_value> values;
  for (uint32_t i = 0; i < plugin.n_options; ++i) values.push_back(value_of(*plugin.options[i], settings));
  const attn_block* of_block = &block;
  const attn_value* of_values = values.data();
  if (given) {
    for (attn_value& v : values)
      if (v.type == ATTN_TEXT) v.s = given->add("a value's text of create", v.s, std::strlen(v.s) + 1, 1);
    of_block = given->add("the block of create", of_block, sizeof block, alignof(attn_block));
    of_values = given->add("the values of create", of_values, values.size() * sizeof(attn_value), alignof(attn_value));
  }
  attn_mech* mech = nullptr;
  const attn_port* const* ports = nullptr;
  uint32_t n_ports = 0;
  attn_error error = empty_error();
  expect_ok(boundary("create", [&] { return plugin.create(of_block, of_values, &mech, &ports, &n_ports, &error); }),
            error);
  mech_ = std::shared_ptr<attn_mech>(mech, freeing(plugin.destroy, "destroy"));
  ports_.assign(ports, ports + n_ports);
}

void Mechanism::fill(size_t port, uint64_t seed, const attn_tensor& tensor) const {
  attn_error error = empty_error();
  expect_ok(boundary("fill", [&] { return plugin_.fill(get(), static_cast<uint32_t>(port), seed, &tensor, &error); }),
            error);
}

int Mechanism::find(const std::string& name) const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (ports_[i]->name == name) return static_cast<int>(i);
  return -1;
}

uint32_t Mechanism::output() const {
  for (size_t i = 0; i < ports_.size(); ++i)
    if (ports_[i]->kind == ATTN_OUTPUT) return static_cast<uint32_t>(i);
  throw std::logic_error("a mechanism without OUTPUT");
}

attn_block make_block(uint32_t role, bool causal, uint32_t heads, int32_t width, int32_t value_width) {
  return {sizeof(attn_block), role, causal ? 1u : 0u, heads, static_cast<int32_t>(heads) * width, value_width, 0, 0};
}

}  // namespace attnkit::core::conformance
