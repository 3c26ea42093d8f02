// Checks of a plugin's table: sizes, version window, functions, texts, options.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/plugin/linked.hpp"
#include "core/plugin/loader.hpp"

namespace attnkit::core {
namespace {

constexpr uint32_t oldest_plugin_minor = 0;
// Sizes at minor 0, which every plugin of this major has at least.
constexpr uint32_t first_plugin_size = offsetof(attn_plugin, backward) + sizeof(attn_plugin::backward);
constexpr uint32_t first_option_size = offsetof(attn_option, choices) + sizeof(attn_option::choices);
// Beyond these a number is garbage rather than a plugin's wish.
constexpr uint32_t max_options = 256, max_choices = 1024;
constexpr size_t max_name = 64;

template <class... Args>
[[noreturn]] void fail_broken(fmt::format_string<Args...> text, Args&&... args) {
  fail(ATTN_INVALID, "is broken: {}", fmt::format(text, std::forward<Args>(args)...));
}

void check_window(const attn_plugin& plugin, const attn_host& host) {
  if (plugin.oldest_host_minor > host.abi_minor)
    fail(ATTN_UNSUPPORTED, "needs minor {} of the plugin interface, this attnkit has {}; update attnkit",
         plugin.oldest_host_minor, host.abi_minor);
  if (plugin.abi_minor < host.oldest_plugin_minor)
    fail(ATTN_UNSUPPORTED,
         "is built for minor {} of the plugin interface, this attnkit accepts {} and newer; update "
         "the plugin",
         plugin.abi_minor, host.oldest_plugin_minor);
}

void check_functions(const attn_plugin& plugin) {
  const std::pair<const char*, bool> functions[] = {{"create", plugin.create},
                                                    {"destroy", plugin.destroy},
                                                    {"plan", plugin.plan},
                                                    {"plan_free", plugin.plan_free},
                                                    {"run", plugin.run}};
  for (const auto& [name, there] : functions)
    if (!there) fail_broken("its function {} is NULL", name);
}

void check_texts(const attn_plugin& plugin) {
  const std::pair<const char*, const char*> texts[] = {{"name", plugin.name},
                                                       {"summary", plugin.summary},
                                                       {"citation", plugin.citation},
                                                       {"state_revision", plugin.state_revision}};
  for (const auto& [name, text] : texts)
    if (!text) fail_broken("its {} is NULL", name);
  const std::string_view name(plugin.name, strnlen(plugin.name, max_name + 1));
  if (!is_name(name))
    fail_broken("its name \"{}\" is not of the form [a-z][a-z0-9_]* (at most {} bytes)", clean_line(name), max_name);
}

void check_choices(const attn_option& option) {
  if (option.n_choices == 0) return;
  if (option.fallback.type != ATTN_TEXT) fail_broken("option \"{}\" has choices but is no text", option.name);
  if (option.n_choices > max_choices || option.choices == nullptr)
    fail_broken("option \"{}\" states {} choices{}", option.name, option.n_choices,
                option.choices == nullptr ? " but lists none" : "");
  bool found = false;
  for (uint32_t i = 0; i < option.n_choices; ++i) {
    if (option.choices[i] == nullptr) fail_broken("a choice of option \"{}\" is NULL", option.name);
    found = found || std::strcmp(option.choices[i], option.fallback.s) == 0;
  }
  if (!found)
    fail_broken("the default \"{}\" of option \"{}\" is none of its choices",
                clean_line({option.fallback.s, strnlen(option.fallback.s, max_name)}), option.name);
}

void check_default(const attn_option& option) {
  const attn_value& value = option.fallback;
  const bool bounded = option.min != option.max;
  if (!std::isfinite(option.min) || !std::isfinite(option.max) || option.min > option.max)
    fail_broken("the bounds {} and {} of option \"{}\" allow nothing", option.min, option.max, option.name);
  if (value.type < ATTN_INT || value.type > ATTN_TEXT)
    fail_broken("option \"{}\" has the unknown type {}", option.name, value.type);
  if (value.type == ATTN_INT || value.type == ATTN_FLOAT) {
    const double number = value.type == ATTN_INT ? static_cast<double>(value.i) : value.f;
    if (!std::isfinite(number) || (bounded && (number < option.min || number > option.max)))
      fail_broken("the default {} of option \"{}\" is outside its bounds {} to {}", number, option.name, option.min,
                  option.max);
  }
  if (value.type == ATTN_BOOL && value.i != 0 && value.i != 1)
    fail_broken("the default {} of option \"{}\" is no boolean", value.i, option.name);
  if (value.type == ATTN_TEXT && !value.s) fail_broken("the default of option \"{}\" is NULL", option.name);
}

void check_options(const attn_plugin& plugin) {
  if (plugin.n_options == 0) return;
  if (plugin.n_options > max_options || plugin.options == nullptr)
    fail_broken("it states {} options{}", plugin.n_options,
                plugin.options == nullptr ? " but lists none" : fmt::format(", at most {} are possible", max_options));
  std::set<std::string_view> names;
  for (uint32_t i = 0; i < plugin.n_options; ++i) {
    const attn_option* option = plugin.options[i];
    if (option == nullptr || option->struct_size < first_option_size)
      fail_broken("its option {} is {}", i, option == nullptr ? "NULL" : "shorter than v1.0's");
    if (option->name == nullptr || !is_name({option->name, strnlen(option->name, max_name + 1)}))
      fail_broken("the name of its option {} is not of the form [a-z][a-z0-9_]*", i);
    // The manifest names the mechanism itself under this key.
    if (std::strcmp(option->name, "use") == 0) fail_broken("an option cannot be called \"use\"");
    if (option->doc == nullptr) fail_broken("option \"{}\" has no description", option->name);
    if (!names.insert(option->name).second) fail_broken("it has two options \"{}\"", option->name);
    check_default(*option);
    check_choices(*option);
  }
}

}  // namespace

attn_host this_host() noexcept { return {sizeof(attn_host), ATTN_ABI_MINOR, oldest_plugin_minor, 0}; }

bool is_name(std::string_view text) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text.size() <= max_name && text[0] >= 'a' && text[0] <= 'z' &&
         std::all_of(text.begin(), text.end(), good);
}

attn_plugin check_table(const attn_plugin* given, const attn_host& host) {
  if (given == nullptr) fail_broken("attn_plugin_main_v1 succeeded but returned no table");
  const uint32_t size = given->struct_size;
  if (size < first_plugin_size)
    fail_broken("its table has {} bytes, the shortest one of v1 has {}; build it against plugin.h", size,
                first_plugin_size);
  attn_plugin plugin{};
  std::memcpy(&plugin, given, std::min<size_t>(size, sizeof(plugin)));
  plugin.struct_size = sizeof(plugin);
  check_window(plugin, host);
  if (plugin.device_type != 1 && plugin.device_type != 2)
    fail(ATTN_UNSUPPORTED, "computes on device type {}, this attnkit knows 1 (CPU) and 2 (CUDA)", plugin.device_type);
  check_texts(plugin);
  check_functions(plugin);
  check_options(plugin);
  return plugin;
}

attn_plugin ask_plugin(attn_plugin_main_fn main) {
  const attn_host host = this_host();
  const attn_plugin* table = nullptr;
  attn_error err = empty_error();
  int32_t code = ATTN_OK;
  try {
    code = main(&host, &table, &err);
  } catch (const std::exception& e) {
    fail(ATTN_INTERNAL, "is broken: attn_plugin_main_v1 threw an exception: {}", clean_line(e.what()));
  } catch (...) {
    fail(ATTN_INTERNAL, "is broken: attn_plugin_main_v1 threw an exception");
  }
  check_plugin(code, err, "does not start");
  return check_table(table, host);
}

}  // namespace attnkit::core
