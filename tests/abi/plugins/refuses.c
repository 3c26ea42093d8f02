/* Looks at the host and refuses by itself. */
#include "mean.h"

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  (void)plugin;
  return mean_fail(err, ATTN_UNSUPPORTED,
                   host->abi_minor == ATTN_ABI_MINOR ? "this host is of the wrong kind;\nupdate the plugin" : "?");
}
