/* The entry point answers with a code that does not exist. */
#include "mean.h"

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  (void)host, (void)plugin, (void)err;
  return 77;
}
