/* Compiled by itself under every C standard that the headers promise. */
#include <attnkit/attnkit.h>
#include <attnkit/plugin.h>
int attn_headers_compile(void);
int attn_headers_compile(void) { return (int)sizeof(attn_plugin) + (int)sizeof(attnkit_model_info); }
