// The layout of the public headers as text, and the rule by which it may change: only appending.
#pragma once

#include <string>
#include <vector>

// Text form, one item a line:
//   constant <name> <value>
//   callback <name> <type>            function <name> <type>
//   struct <name> <size> <grows|frozen>, followed by its fields: "  <offset> <size> <name> <type>"

// The layout of the headers this was compiled with.
std::string current_layout();

// Returns what a change from `before` to `after` breaks, one sentence each; empty: it only appends.
//   - structs that begin with struct_size ("grows") may gain fields behind their old end; all others are frozen
//   - no struct ends in padding, where a later field could hide without changing the size
//   - constants, callbacks and functions stay as they are; new ones may come.  ATTN_ABI_MINOR only rises
//   - whoever appends raises ATTN_ABI_MINOR
std::vector<std::string> breaks(const std::string& before, const std::string& after);
