/* Its name could be no file, key or target. */
#include "mean.h"
MEAN_PLUGIN(table.name = "../Mean")
