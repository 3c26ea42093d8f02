// Compiled by itself as C++20.
#include <attnkit/attnkit.h>
#include <attnkit/plugin.h>
int attn_headers_compile();
int attn_headers_compile() { return static_cast<int>(sizeof(attn_plugin) + sizeof(attnkit_model_info)); }
