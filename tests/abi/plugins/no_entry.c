/* A library, but no plugin. */
int attn_plugin_main_v1_helper(void);
int attn_plugin_main_v1_helper(void) { return 0; }
