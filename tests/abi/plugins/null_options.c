/* States options and lists none. */
#include "mean.h"
MEAN_PLUGIN(table.n_options = 2)
