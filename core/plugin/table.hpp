// What core accepts as a plugin's table.
#pragma once

#include <attnkit/plugin.h>

#include <string_view>

namespace attnkit {

// What this build says of itself to plugins.
attn_host this_host() noexcept;

// [a-z][a-z0-9_]*, at most 64 bytes: names of mechanisms and options.
bool is_name(std::string_view text);

// A copy of the table in this build's size, slots that the plugin does not know being NULL.  Throws Error, with a
// sentence to follow the file's path: table missing or shorter than v1.0's, version windows that do not meet, NULL
// functions or texts, bad name, device or option schema.  Reads no more than the sizes that the plugin states.
attn_plugin check_table(const attn_plugin* given, const attn_host& host);

}  // namespace attnkit
