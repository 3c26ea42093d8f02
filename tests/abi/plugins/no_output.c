/* Declares no OUTPUT. */
#include "mean.h"

static int32_t no_output_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                                const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  const int32_t code = mean_create(block, values, mech, ports, n_ports, err);
  if (code == ATTN_OK) *n_ports = 1;
  return code;
}
MEAN_PLUGIN(table.create = no_output_create)
