// Breaks the contract: throws out of plan.
#include "fake.h"

static int32_t fake_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  return fake_make(block, values, 0, mech, ports, n_ports, err);
}

static int32_t fake_plan(const attn_mech*, const attn_request*, attn_info*, attn_plan**, attn_error*) { throw 7; }

FAKE_PLUGIN("fake_thrower", nullptr, 0)
