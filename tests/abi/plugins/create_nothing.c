/* create succeeds without making anything. */
#include "mean.h"

static int32_t create_nothing(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)block, (void)values, (void)mech, (void)ports, (void)n_ports, (void)err;
  return ATTN_OK;
}
MEAN_PLUGIN(table.create = create_nothing)
