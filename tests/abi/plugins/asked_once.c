/* Works, but starts only once in a process, as the contract promises that it is asked. */
#include "mean.h"
static int asked;
MEAN_PLUGIN(if (asked++) return mean_fail(err, ATTN_INTERNAL, "asked twice"))
