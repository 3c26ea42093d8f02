// A CUDA variant as a plugin for a device, on the emulator.
#include <attnkit/plugin.h>

// The symbol of the variant, renamed.
extern "C" int32_t attn_cuda_main(const attn_host* host, const attn_plugin** plugin, attn_error* error);

extern "C" __attribute__((visibility("default"))) int32_t attn_plugin_main_v1(const attn_host* host,
                                                                              const attn_plugin** plugin,
                                                                              attn_error* error) {
  return attn_cuda_main(host, plugin, error);
}
