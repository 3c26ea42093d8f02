/* The table ends before its functions. */
#include "mean.h"
MEAN_PLUGIN(table.struct_size = offsetof(attn_plugin, create))
