/* The default of its option lies outside the bounds. */
#include "mean.h"
static const attn_option size = {.struct_size = sizeof(attn_option),
                                 .name = "size",
                                 .doc = "a size",
                                 .fallback = {.type = ATTN_INT, .i = 9},
                                 .min = 1,
                                 .max = 8};
static const attn_option* const options[] = {&size};
MEAN_PLUGIN(table.options = options; table.n_options = 1)
