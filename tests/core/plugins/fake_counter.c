/* Sums the values that a query sees, and counts its runs by role: those with keys, their keys, their queries. */
#include <attnkit/plugin.h>
#include <stdlib.h>

struct attn_mech {
  uint32_t role, causal;
  attn_port port[3];
  const attn_port* ports[3];
};

/* keyed runs, keys, queries */
__attribute__((visibility("default"))) int64_t fake_counter_counts[8][3];

static attn_port port_of(uint32_t kind, const char* name, const attn_block* block) {
  attn_port port = {.struct_size = sizeof(attn_port), .kind = kind, .ndim = 4, .name = name, .doc = name};
  port.shape[1] = block->heads;
  port.shape[3] = block->head_width;
  return port;
}

static int32_t counter_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)values, (void)err;
  attn_mech* made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL) return ATTN_NO_MEMORY;
  made->role = block->role;
  made->causal = block->causal;
  made->port[0] = port_of(ATTN_QUERY, "q", block);
  made->port[1] = port_of(ATTN_KEY, "v", block);
  made->port[2] = port_of(ATTN_OUTPUT, "out", block);
  for (int i = 0; i < 3; ++i) made->ports[i] = &made->port[i];
  *mech = made;
  *ports = made->ports;
  *n_ports = 3;
  return ATTN_OK;
}

static void counter_destroy(attn_mech* mech) { free(mech); }

static int32_t counter_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  (void)err;
  if (info != NULL && (request->flags & ATTN_STREAM))
    info->state_bytes = (uint64_t)(mech->port[2].shape[1] * mech->port[2].shape[3]) * sizeof(float);
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

static void counter_plan_free(attn_plan* plan) { (void)plan; }

static int32_t counter_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  const attn_mech* mech = (const attn_mech*)plan;
  const attn_tensor *v = &run->ports[1], *out = &run->ports[2];
  int64_t* counts = fake_counter_counts[mech->role];
  (void)err;
  counts[0] += run->keys > 0;
  for (int64_t b = 0; b < run->batch; ++b) {
    const int64_t keys = run->k_len ? run->k_len[b] : run->keys, queries = run->q_len ? run->q_len[b] : run->queries;
    char* row = run->state ? (char*)run->state + run->state_stride * (uint64_t)(run->slots ? run->slots[b] : b) : NULL;
    counts[1] += keys;
    counts[2] += queries;
    for (int64_t h = 0; h < out->shape[1]; ++h)
      for (int64_t c = 0; c < out->shape[3]; ++c) {
        float *kept = row ? (float*)row + h * out->shape[3] + c : NULL, sum = kept ? *kept : 0;
        int64_t j = 0;
        for (int64_t i = 0; i < run->queries; ++i) {
          for (; j < (mech->causal ? i + 1 : keys) && j < keys; ++j)
            sum += ((const float*)v->data)[b * v->stride[0] + h * v->stride[1] + j * v->stride[2] + c];
          ((float*)out->data)[b * out->stride[0] + h * out->stride[1] + i * out->stride[2] + c] = i < queries ? sum : 0;
        }
        for (; j < keys; ++j)
          sum += ((const float*)v->data)[b * v->stride[0] + h * v->stride[1] + j * v->stride[2] + c];
        if (kept) *kept = sum;
      }
  }
  return ATTN_OK;
}

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  static const attn_plugin table = {.struct_size = sizeof(attn_plugin),
                                    .abi_minor = ATTN_ABI_MINOR,
                                    .device_type = 1,
                                    .name = "fake_counter",
                                    .summary = "counts its runs",
                                    .citation = "none",
                                    .state_revision = "1",
                                    .create = counter_create,
                                    .destroy = counter_destroy,
                                    .plan = counter_plan,
                                    .plan_free = counter_plan_free,
                                    .run = counter_run};
  (void)host, (void)err;
  *plugin = &table;
  return ATTN_OK;
}
