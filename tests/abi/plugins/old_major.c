/* A plugin of an earlier major. */
#include <stdint.h>
int32_t attn_plugin_main_v0(void);
int32_t attn_plugin_main_v0(void) { return 0; }
