/* Needs a function that nobody has. */
#include "mean.h"
void function_of_a_library_that_is_not_installed(void);
MEAN_PLUGIN(function_of_a_library_that_is_not_installed())
