/* Works: built from the frozen copy of the first header. */
#include "mean.h"
MEAN_PLUGIN((void)0)
