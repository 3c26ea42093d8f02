// Throws out of plan.
#include <stdexcept>

#include "mean.h"

static int32_t throwing(const attn_mech*, const attn_request*, attn_info*, attn_plan**, attn_error*) {
  throw std::runtime_error("thrown by plan");
}
MEAN_PLUGIN(table.plan = throwing)
