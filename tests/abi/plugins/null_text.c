/* Has no summary. */
#include "mean.h"
MEAN_PLUGIN(table.summary = NULL)
