/* Has no run. */
#include "mean.h"
MEAN_PLUGIN(table.run = NULL)
