/* The smallest honest mechanism, in C: every query reads the mean of its row's values.  plugin.h says of each function
 * of the table what it must do. */
#include <attnkit/plugin.h>
#include <stdlib.h>
#include <string.h>

struct attn_mech {
  attn_port port[2];
  const attn_port* ports[2];
};

static int32_t mean_fail(attn_error* err, int32_t code, const char* message) {
  if (err != NULL) {
    err->code = code;
    err->where = -1;
    strncpy(err->message, message, sizeof(err->message) - 1);
  }
  return code;
}

static attn_port mean_port(uint32_t kind, const char* name, const attn_block* block) {
  attn_port port;
  memset(&port, 0, sizeof(port));
  port.struct_size = sizeof(port);
  port.kind = kind;
  port.ndim = 4;
  port.name = name;
  port.doc = kind == ATTN_KEY ? "values" : "their mean";
  port.shape[1] = block->heads;
  port.shape[3] = block->head_width;
  return port;
}

static int32_t mean_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)values;
  if (block->causal) return mean_fail(err, ATTN_UNSUPPORTED, "the mean of the past is not implemented");
  attn_mech* made = (attn_mech*)malloc(sizeof(attn_mech));
  if (made == NULL) return mean_fail(err, ATTN_NO_MEMORY, "out of memory");
  made->port[0] = mean_port(ATTN_KEY, "v", block);
  made->port[1] = mean_port(ATTN_OUTPUT, "out", block);
  made->ports[0] = &made->port[0];
  made->ports[1] = &made->port[1];
  *mech = made;
  *ports = made->ports;
  *n_ports = 2;
  return ATTN_OK;
}

static void mean_destroy(attn_mech* mech) { free(mech); }

static int32_t mean_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                         attn_error* err) {
  if (request->flags & ATTN_STREAM) return mean_fail(err, ATTN_UNSUPPORTED, "the mean keeps no state");
  if (request->flags & ATTN_TRAIN) return mean_fail(err, ATTN_UNSUPPORTED, "the mean has no gradient");
  if (request->flags & ATTN_PREFIX) return mean_fail(err, ATTN_UNSUPPORTED, "the mean shows every query all keys");
  if (request->dtype_code != 2 || request->dtype_bits != 32)
    return mean_fail(err, ATTN_UNSUPPORTED, "the mean computes in f32 only");
  if (ATTN_HAS(attn_info, info, flops))
    info->flops = (uint64_t)(request->batch * mech->port[0].shape[1] * request->keys * mech->port[0].shape[3]);
  /* A plan holds nothing beyond its mechanism. */
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

static void mean_plan_free(attn_plan* plan) { (void)plan; }

static int32_t mean_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan;
  if (run->state != NULL) return mean_fail(err, ATTN_INVALID, "the mean keeps no state");
  const attn_tensor *v = &run->ports[0], *out = &run->ports[1];
  for (int64_t b = 0; b < run->batch; ++b) {
    const int64_t keys = run->k_len != NULL ? run->k_len[b] : run->keys;
    const int64_t queries = run->q_len != NULL ? run->q_len[b] : run->queries;
    for (int64_t h = 0; h < out->shape[1]; ++h) {
      for (int64_t e = 0; e < out->shape[3]; ++e) {
        float sum = 0;
        for (int64_t j = 0; j < keys; ++j) {
          sum += ((const float*)v->data)[b * v->stride[0] + h * v->stride[1] + j * v->stride[2] + e];
        }
        for (int64_t i = 0; i < run->queries; ++i) {
          ((float*)out->data)[b * out->stride[0] + h * out->stride[1] + i * out->stride[2] + e] =
              i < queries && keys > 0 ? sum / (float)keys : 0;
        }
      }
    }
  }
  return ATTN_OK;
}

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  static attn_plugin table;
  (void)host, (void)err;
  table.struct_size = sizeof(table);
  table.abi_minor = ATTN_ABI_MINOR;
  table.device_type = 1;
  table.name = "mean";
  table.summary = "the mean of all values";
  table.citation = "none";
  table.state_revision = "1";
  table.create = mean_create;
  table.destroy = mean_destroy;
  table.plan = mean_plan;
  table.plan_free = mean_plan_free;
  table.run = mean_run;
  *plugin = &table;
  return ATTN_OK;
}
