// attnkit.h: versions, texts, runtimes.
#include "core/api/describe.hpp"
#include "core/api/handles.hpp"

using namespace attnkit::core;

uint32_t attnkit_abi_minor(void) { return ATTN_ABI_MINOR; }

const char* attnkit_version(void) { return ATTNKIT_VERSION; }

const char* attnkit_text_data(const attnkit_text* text, uint64_t* bytes) {
  if (bytes) *bytes = text ? text->data.size() : 0;
  return text ? text->data.c_str() : "";
}

void attnkit_text_destroy(attnkit_text* text) { delete text; }

int32_t attnkit_runtime_create(const attnkit_runtime_options* options, attnkit_runtime** runtime, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}});
    uint32_t threads = 0;
    const char* path = nullptr;
    int32_t device = 0;
    if (options) {
      // Not even the first option would be read: the caller forgot to set it.
      if (!ATTN_HAS(attnkit_runtime_options, options, threads))
        fail(ATTN_INVALID, "options.struct_size {}: set it to sizeof(attnkit_runtime_options)", options->struct_size);
      if (ATTN_HAS(attnkit_runtime_options, options, threads)) threads = options->threads;
      if (ATTN_HAS(attnkit_runtime_options, options, plugin_path)) path = options->plugin_path;
      if (ATTN_HAS(attnkit_runtime_options, options, device_type)) device = options->device_type;
      if (ATTN_HAS(attnkit_runtime_options, options, device_id) && options->device_id != 0)
        fail(ATTN_UNSUPPORTED, "device id {}: the first device (0) is possible", options->device_id);
    }
    if (threads > 1024) fail(ATTN_INVALID, "threads {}: 0 (one per processor) to 1024 are possible", threads);
    if (device < 0 || device > 2) fail(ATTN_UNSUPPORTED, "device type {}: CPU (1) and CUDA (2) are possible", device);
    auto made = std::make_shared<Runtime>(default_search_path(path), threads, device);
    *runtime = new attnkit_runtime{std::move(made)};
  });
}

void attnkit_runtime_destroy(attnkit_runtime* runtime) { delete runtime; }

int32_t attnkit_runtime_list(attnkit_runtime* runtime, attnkit_text** json, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}, {json, "json"}});
    *json = new attnkit_text{list_plugins(runtime->runtime->registry)};
  });
}

int32_t attnkit_runtime_describe(attnkit_runtime* runtime, attnkit_text** json, attn_error* err) {
  return guard(err, [&] {
    require({{runtime, "runtime"}, {json, "json"}});
    const Runtime& r = *runtime->runtime;
    *json = new attnkit_text{describe_runtime(r.registry, r.threads, r.device_type)};
  });
}
