/* Accepts only hosts of the next minor. */
#include "mean.h"
MEAN_PLUGIN(table.abi_minor = table.oldest_host_minor = ATTN_ABI_MINOR + 1)
