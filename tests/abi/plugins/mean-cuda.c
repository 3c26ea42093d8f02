/* Claims to compute on CUDA; found beside mean under the same name. */
#include "mean.h"
MEAN_PLUGIN(table.device_type = 2)
