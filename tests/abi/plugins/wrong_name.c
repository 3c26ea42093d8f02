/* Exports another name than its file's. */
#include "mean.h"
MEAN_PLUGIN(table.name = "right_name")
