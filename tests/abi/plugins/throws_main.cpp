// Throws out of its entry point.
#include <stdexcept>

#include "mean.h"
MEAN_PLUGIN(throw std::runtime_error("thrown by main"))
