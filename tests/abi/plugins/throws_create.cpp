// Throws out of create.
#include <stdexcept>

#include "mean.h"

static int32_t throwing(const attn_block*, const attn_value*, attn_mech**, const attn_port* const**, uint32_t*,
                        attn_error*) {
  throw std::runtime_error("thrown by create");
}
MEAN_PLUGIN(table.create = throwing)
