/* Hands the sequence "carried" from block to block: one more than came in, which is also added to every query. */
#include <attnkit/plugin.h>
#include <stdlib.h>

struct attn_mech {
  attn_port port[4];
  const attn_port* ports[4];
};

static attn_port port_of(uint32_t kind, const char* name, int64_t heads, int64_t rows, int64_t width) {
  attn_port port = {.struct_size = sizeof(attn_port), .kind = kind, .ndim = 4, .name = name, .doc = name};
  port.shape[1] = heads;
  port.shape[2] = rows;
  port.shape[3] = width;
  if (rows > 0) {
    port.dtype_code = 2;
    port.dtype_bits = 32;
  }
  return port;
}

static int32_t carrier_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)values, (void)err;
  attn_mech* made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL) return ATTN_NO_MEMORY;
  made->port[0] = port_of(ATTN_QUERY, "q", block->heads, 0, block->head_width);
  made->port[1] = port_of(ATTN_AUX_IN, "carried", 1, 1, 1);
  made->port[2] = port_of(ATTN_AUX_OUT, "carried", 1, 1, 1);
  made->port[3] = port_of(ATTN_OUTPUT, "out", block->heads, 0, block->head_width);
  for (int i = 0; i < 4; ++i) made->ports[i] = &made->port[i];
  *mech = made;
  *ports = made->ports;
  *n_ports = 4;
  return ATTN_OK;
}

static void carrier_destroy(attn_mech* mech) { free(mech); }

static int32_t carrier_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  (void)request, (void)info, (void)err;
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

static void carrier_plan_free(attn_plan* plan) { (void)plan; }

static int32_t carrier_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan, (void)err;
  const attn_tensor *q = &run->ports[0], *in = &run->ports[1], *gives = &run->ports[2], *out = &run->ports[3];
  for (int64_t b = 0; b < run->batch; ++b) {
    const float carried = in->data != NULL ? ((const float*)in->data)[b * in->stride[0]] : 0;
    ((float*)gives->data)[b * gives->stride[0]] = carried + 1;
    for (int64_t h = 0; h < out->shape[1]; ++h)
      for (int64_t i = 0; i < run->queries; ++i)
        for (int64_t c = 0; c < out->shape[3]; ++c)
          ((float*)out->data)[b * out->stride[0] + h * out->stride[1] + i * out->stride[2] + c] =
              ((const float*)q->data)[b * q->stride[0] + h * q->stride[1] + i * q->stride[2] + c] + carried;
  }
  return ATTN_OK;
}

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  static const attn_plugin table = {.struct_size = sizeof(attn_plugin),
                                    .abi_minor = ATTN_ABI_MINOR,
                                    .device_type = 1,
                                    .name = "fake_carrier",
                                    .summary = "carries a sequence",
                                    .citation = "none",
                                    .state_revision = "1",
                                    .create = carrier_create,
                                    .destroy = carrier_destroy,
                                    .plan = carrier_plan,
                                    .plan_free = carrier_plan_free,
                                    .run = carrier_run};
  (void)host, (void)err;
  *plugin = &table;
  return ATTN_OK;
}
