/* Works, but is linked with code that switches denormal numbers off in the thread that loads it. */
#include "mean.h"
MEAN_PLUGIN((void)0)
