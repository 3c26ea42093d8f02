/* Sits everywhere and has no options. */
#include "fake.h"

static int32_t fake_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  return fake_make(block, values, 0, mech, ports, n_ports, err);
}

static int32_t fake_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                         attn_error* err) {
  (void)request, (void)info, (void)err;
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

FAKE_PLUGIN("fake_plain", NULL, 0)
