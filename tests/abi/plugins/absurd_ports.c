/* create states four billion ports. */
#include "mean.h"

static int32_t absurd_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                             const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  const int32_t code = mean_create(block, values, mech, ports, n_ports, err);
  if (code == ATTN_OK) *n_ports = UINT32_MAX;
  return code;
}
MEAN_PLUGIN(table.create = absurd_create)
