// Checks of a plugin's table: sizes, version window, functions, texts, options.
#include "core/plugin/table.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "core/base/error.hpp"

namespace attnkit {
namespace {

constexpr uint32_t oldest_plugin_minor = 0;
// Sizes at minor 0, the least that a plugin of this major can have.
constexpr uint32_t first_plugin_size = offsetof(attn_plugin, backward) + sizeof(attn_plugin::backward);
constexpr uint32_t first_option_size = offsetof(attn_option, choices) + sizeof(attn_option::choices);
// Beyond these a number is garbage rather than a plugin's wish.
constexpr uint32_t most_options = 256, most_choices = 1024;
constexpr size_t longest_name = 64;

void check_window(const attn_plugin& plugin, const attn_host& host) {
  if (plugin.oldest_host_minor > host.abi_minor) {
    fail(ATTN_UNSUPPORTED, "needs minor {} of the plugin interface, this attnkit has {}; update attnkit",
         plugin.oldest_host_minor, host.abi_minor);
  }
  if (plugin.abi_minor < host.oldest_plugin_minor) {
    fail(ATTN_UNSUPPORTED,
         "is built for minor {} of the plugin interface, this attnkit accepts {} and newer; update "
         "the plugin",
         plugin.abi_minor, host.oldest_plugin_minor);
  }
}

void check_functions(const attn_plugin& plugin) {
  const struct {
    const char* name;
    bool there;
  } functions[] = {{"create", plugin.create != nullptr},
                   {"destroy", plugin.destroy != nullptr},
                   {"plan", plugin.plan != nullptr},
                   {"plan_free", plugin.plan_free != nullptr},
                   {"run", plugin.run != nullptr}};
  for (const auto& function : functions) {
    if (!function.there) fail(ATTN_INVALID, "is broken: its function {} is NULL", function.name);
  }
}

void check_texts(const attn_plugin& plugin) {
  const struct {
    const char *name, *text;
  } texts[] = {{"name", plugin.name},
               {"summary", plugin.summary},
               {"citation", plugin.citation},
               {"state_revision", plugin.state_revision}};
  for (const auto& text : texts) {
    if (text.text == nullptr) fail(ATTN_INVALID, "is broken: its {} is NULL", text.name);
  }
  const std::string_view name(plugin.name, strnlen(plugin.name, longest_name + 1));
  if (!is_name(name)) {
    fail(ATTN_INVALID, "is broken: its name \"{}\" is not of the form [a-z][a-z0-9_]* (at most {} bytes)", name,
         longest_name);
  }
}

void check_choices(const attn_option& option) {
  if (option.n_choices == 0) return;
  if (option.fallback.type != ATTN_TEXT) {
    fail(ATTN_INVALID, "is broken: option \"{}\" has choices but is no text", option.name);
  }
  if (option.n_choices > most_choices || option.choices == nullptr) {
    fail(ATTN_INVALID, "is broken: option \"{}\" states {} choices{}", option.name, option.n_choices,
         option.choices == nullptr ? " but lists none" : "");
  }
  bool found = false;
  for (uint32_t i = 0; i < option.n_choices; ++i) {
    if (option.choices[i] == nullptr) fail(ATTN_INVALID, "is broken: a choice of option \"{}\" is NULL", option.name);
    found = found || std::strcmp(option.choices[i], option.fallback.s) == 0;
  }
  if (!found) {
    fail(ATTN_INVALID, "is broken: the default \"{}\" of option \"{}\" is none of its choices", option.fallback.s,
         option.name);
  }
}

void check_default(const attn_option& option) {
  const attn_value& value = option.fallback;
  const bool bounded = option.min != option.max;
  if (!std::isfinite(option.min) || !std::isfinite(option.max) || option.min > option.max) {
    fail(ATTN_INVALID, "is broken: the bounds {} and {} of option \"{}\" allow nothing", option.min, option.max,
         option.name);
  }
  switch (value.type) {
    case ATTN_INT:
    case ATTN_FLOAT: {
      const double number = value.type == ATTN_INT ? static_cast<double>(value.i) : value.f;
      if (!std::isfinite(number) || (bounded && (number < option.min || number > option.max))) {
        fail(ATTN_INVALID, "is broken: the default {} of option \"{}\" is outside its bounds {} to {}", number,
             option.name, option.min, option.max);
      }
      break;
    }
    case ATTN_BOOL:
      if (value.i != 0 && value.i != 1) {
        fail(ATTN_INVALID, "is broken: the default {} of option \"{}\" is no boolean", value.i, option.name);
      }
      break;
    case ATTN_TEXT:
      if (value.s == nullptr) fail(ATTN_INVALID, "is broken: the default of option \"{}\" is NULL", option.name);
      break;
    default:
      fail(ATTN_INVALID, "is broken: option \"{}\" has the unknown type {}", option.name, value.type);
  }
}

void check_options(const attn_plugin& plugin) {
  if (plugin.n_options == 0) return;
  if (plugin.n_options > most_options || plugin.options == nullptr) {
    fail(ATTN_INVALID, "is broken: it states {} options{}", plugin.n_options,
         plugin.options == nullptr ? " but lists none" : fmt::format(", at most {} are possible", most_options));
  }
  std::set<std::string_view> names;
  for (uint32_t i = 0; i < plugin.n_options; ++i) {
    const attn_option* option = plugin.options[i];
    if (option == nullptr || option->struct_size < first_option_size) {
      fail(ATTN_INVALID, "is broken: its option {} is {}", i, option == nullptr ? "NULL" : "shorter than v1.0's");
    }
    if (option->name == nullptr || !is_name({option->name, strnlen(option->name, longest_name + 1)})) {
      fail(ATTN_INVALID, "is broken: the name of its option {} is not of the form [a-z][a-z0-9_]*", i);
    }
    // The manifest names the mechanism itself under this key.
    if (std::strcmp(option->name, "use") == 0) fail(ATTN_INVALID, "is broken: an option cannot be called \"use\"");
    if (option->doc == nullptr) fail(ATTN_INVALID, "is broken: option \"{}\" has no description", option->name);
    if (!names.insert(option->name).second) fail(ATTN_INVALID, "is broken: it has two options \"{}\"", option->name);
    check_default(*option);
    check_choices(*option);
  }
}

}  // namespace

attn_host this_host() noexcept { return {sizeof(attn_host), ATTN_ABI_MINOR, oldest_plugin_minor, 0}; }

bool is_name(std::string_view text) {
  const auto good = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text.size() <= longest_name && text[0] >= 'a' && text[0] <= 'z' &&
         std::all_of(text.begin(), text.end(), good);
}

attn_plugin check_table(const attn_plugin* given, const attn_host& host) {
  if (given == nullptr) fail(ATTN_INVALID, "is broken: attn_plugin_main_v1 succeeded but returned no table");
  const uint32_t size = given->struct_size;
  if (size < first_plugin_size) {
    fail(ATTN_INVALID, "is broken: its table has {} bytes, the shortest one of v1 has {}; build it against plugin.h",
         size, first_plugin_size);
  }
  attn_plugin plugin{};
  std::memcpy(&plugin, given, std::min<size_t>(size, sizeof(plugin)));
  plugin.struct_size = sizeof(plugin);
  check_window(plugin, host);
  if (plugin.device_type != 1 && plugin.device_type != 2) {
    fail(ATTN_UNSUPPORTED, "computes on device type {}, this attnkit knows 1 (CPU) and 2 (CUDA)", plugin.device_type);
  }
  check_texts(plugin);
  check_functions(plugin);
  check_options(plugin);
  return plugin;
}

}  // namespace attnkit
