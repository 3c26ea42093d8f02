/* A plugin of the next major. */
#include <stdint.h>
int32_t attn_plugin_main_v2(void);
int32_t attn_plugin_main_v2(void) { return 0; }
