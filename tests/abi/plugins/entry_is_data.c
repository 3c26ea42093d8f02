/* Exports the right name, but of a variable. */
int attn_plugin_main_v1 = 1;
