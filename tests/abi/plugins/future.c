/* Works: built from a header of the next minor, in which every struct that may grow has grown, with unknown flags. */
#include "mean.h"

static int32_t future_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                             const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  if (ATTN_HAS(attn_block, block, future_text)) return mean_fail(err, ATTN_INTERNAL, "the host is not that new");
  const int32_t code = mean_create(block, values, mech, ports, n_ports, err);
  if (code != ATTN_OK) return code;
  (*mech)->port[0].flags |= 1u << 30;
  (*mech)->port[0].future_text = "poison";
  return ATTN_OK;
}

static int32_t future_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                           attn_error* err) {
  if (ATTN_HAS(attn_request, request, future_text)) return mean_fail(err, ATTN_INTERNAL, "the host is not that new");
  const int32_t code = mean_plan(mech, request, info, plan, err);
  if (code == ATTN_OK) info->flags |= 1u << 31;
  if (code == ATTN_OK && ATTN_HAS(attn_info, info, future_number)) info->future_number = 1;
  return code;
}

static int32_t future_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  if (ATTN_HAS(attn_run, run, future_text)) return mean_fail(err, ATTN_INTERNAL, "the host is not that new");
  return mean_run(plan, run, err);
}

static int32_t future_slot(const attn_mech* mech) { return mech != NULL ? ATTN_OK : ATTN_INVALID; }

static const char* const modes[] = {"plain", "other"};
static const attn_option mode = {.struct_size = sizeof(attn_option),
                                 .n_choices = 2,
                                 .name = "mode",
                                 .doc = "an option with more than this host knows",
                                 .fallback = {.type = ATTN_TEXT, .s = "plain"},
                                 .choices = modes,
                                 .future_text = "poison"};
static const attn_option* const options[] = {&mode};

MEAN_PLUGIN(table.options = options; table.n_options = 1; table.create = future_create; table.plan = future_plan;
            table.run = future_run; table.future_slot = future_slot; table.future_text = "poison")
