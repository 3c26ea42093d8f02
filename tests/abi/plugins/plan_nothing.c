/* plan succeeds without a plan. */
#include "mean.h"

static int32_t plan_nothing(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  (void)plan;
  return mean_plan(mech, request, info, NULL, err);
}
MEAN_PLUGIN(table.plan = plan_nothing)
