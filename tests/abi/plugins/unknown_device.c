/* Computes on a device that this major has no rules for. */
#include "mean.h"
MEAN_PLUGIN(table.device_type = 10)
