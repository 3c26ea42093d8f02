/* Works. */
#include "mean.h"
MEAN_PLUGIN((void)0)
