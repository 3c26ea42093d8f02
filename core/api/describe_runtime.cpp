#include "core/api/describe_runtime.hpp"

#include <nlohmann/json.hpp>

#include "core/plugin/probe.hpp"

namespace attnkit {
namespace {

using Json = nlohmann::ordered_json;

const char* device_name(int32_t device) { return device == 2 ? "cuda" : "cpu"; }

// The features that kernels choose by.
Json cpu_features() {
  Json features = Json::array();
#if defined(__x86_64__)
  const auto add = [&](const char* name, bool there) {
    if (there) features.push_back(name);
  };
  add("sse4.2", __builtin_cpu_supports("sse4.2"));
  add("avx", __builtin_cpu_supports("avx"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512vnni", __builtin_cpu_supports("avx512vnni"));
#endif
  return features;
}

Json value_of(const attn_value& value) {
  switch (value.type) {
    case ATTN_INT:
      return value.i;
    case ATTN_FLOAT:
      return value.f;
    case ATTN_BOOL:
      return value.i != 0;
    default:
      return value.s;
  }
}

Json option_of(const attn_option& option) {
  constexpr const char* types[] = {"", "int", "float", "bool", "text"};
  Json out = {{"name", option.name}, {"type", types[option.fallback.type]}, {"default", value_of(option.fallback)}};
  if (option.min != option.max) {
    const bool whole = option.fallback.type == ATTN_INT;
    out["min"] = whole ? Json(static_cast<int64_t>(option.min)) : Json(option.min);
    out["max"] = whole ? Json(static_cast<int64_t>(option.max)) : Json(option.max);
  }
  for (uint32_t i = 0; i < option.n_choices; ++i) out["choices"].push_back(option.choices[i]);
  out["doc"] = option.doc;
  return out;
}

Json plugin_of(const Plugin& plugin) {
  const attn_plugin& table = plugin.table;
  Json out = {{"name", plugin.name},
              {"device", device_name(table.device_type)},
              {"file", plugin.path},
              {"abi_minor", table.abi_minor},
              {"summary", table.summary},
              {"citation", table.citation},
              {"state_revision", table.state_revision},
              {"options", Json::array()},
              {"places", Json::array()}};
  for (uint32_t i = 0; i < table.n_options; ++i) out["options"].push_back(option_of(*table.options[i]));
  for (const auto& place : probe_places()) out["places"].push_back(probe(plugin, place));
  return out;
}

Json skipped_of(const Registry& registry) {
  Json out = Json::array();
  for (const auto& file : registry.skipped()) out.push_back({{"path", file.path}, {"reason", file.reason}});
  return out;
}

}  // namespace

std::string list_plugins(const Registry& registry) {
  Json out = {{"schema", "attnkit.plugin-list/1"}, {"plugins", Json::array()}, {"skipped", skipped_of(registry)}};
  for (const auto& plugin : registry.plugins())
    out["plugins"].push_back(
        {{"name", plugin->name}, {"device", device_name(plugin->table.device_type)}, {"file", plugin->path}});
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string describe_runtime(const Registry& registry, const Threads& threads, int32_t device_type) {
  Json out = {{"schema", "attnkit.runtime/1"},
              {"version", ATTNKIT_VERSION},
              {"abi", {{"major", 1}, {"minor", ATTN_ABI_MINOR}}},
              {"cpu_features", cpu_features()},
              {"threads", threads.workers()},
              {"device", device_name(device_type)},
              {"search_path", registry.folders()},
              {"plugins", Json::array()},
              {"skipped", skipped_of(registry)}};
  for (const auto& plugin : registry.plugins()) out["plugins"].push_back(plugin_of(*plugin));
  // File names and plugins' texts may be no UTF-8.
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace attnkit
