/* create answers with a code that does not exist. */
#include "mean.h"

static int32_t create_77(const attn_block* block, const attn_value* values, attn_mech** mech,
                         const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)block, (void)values, (void)mech, (void)ports, (void)n_ports, (void)err;
  return 77;
}
MEAN_PLUGIN(table.create = create_77)
