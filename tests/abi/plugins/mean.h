/* The sample of a mechanism in C.  The plugins in this folder are this one with one thing changed. */
#ifndef MEAN_H
#define MEAN_H
#include <attnkit/plugin.h>
#define attn_plugin_main_v1 mean_main
#include "../../../samples/c/mean/mean.c"
#undef attn_plugin_main_v1

/* Defines the entry point; `change` may alter `table` before it is given out. */
#define MEAN_PLUGIN(change)                                                                         \
  int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) { \
    static attn_plugin table;                                                                       \
    mean_main(host, plugin, err);                                                                   \
    table = **plugin;                                                                               \
    table.name = PLUGIN_NAME;                                                                       \
    change;                                                                                         \
    *plugin = &table;                                                                               \
    return ATTN_OK;                                                                                 \
  }
#endif
