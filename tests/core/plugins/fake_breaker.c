/* Sums the values it is given, and breaks down after the first of exactly three keys. */
#include <attnkit/plugin.h>
#include <stdlib.h>
#include <string.h>

struct attn_mech {
  attn_port port[2];
  const attn_port* ports[2];
};

static attn_port port_of(uint32_t kind, const char* name, const attn_block* block) {
  attn_port port = {.struct_size = sizeof(attn_port), .kind = kind, .ndim = 4, .name = name, .doc = name};
  port.shape[1] = block->heads;
  port.shape[3] = block->head_width;
  return port;
}

static int32_t breaker_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)values, (void)err;
  attn_mech* made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL) return ATTN_NO_MEMORY;
  made->port[0] = port_of(ATTN_KEY, "v", block);
  made->port[1] = port_of(ATTN_OUTPUT, "out", block);
  for (int i = 0; i < 2; ++i) made->ports[i] = &made->port[i];
  *mech = made;
  *ports = made->ports;
  *n_ports = 2;
  return ATTN_OK;
}

static void breaker_destroy(attn_mech* mech) { free(mech); }

static int32_t breaker_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  (void)err;
  const uint64_t width = (uint64_t)(mech->port[1].shape[1] * mech->port[1].shape[3]);
  if (info != NULL && (request->flags & ATTN_STREAM)) info->state_bytes = width * sizeof(float);
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

static void breaker_plan_free(attn_plan* plan) { (void)plan; }

static int32_t breaker_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan;
  const attn_tensor *v = &run->ports[0], *out = &run->ports[1];
  if (run->state == NULL) return ATTN_UNSUPPORTED;
  for (int64_t b = 0; b < run->batch; ++b) {
    float* state = (float*)((char*)run->state + run->state_stride * (uint64_t)(run->slots ? run->slots[b] : b));
    for (int64_t h = 0; h < out->shape[1]; ++h)
      for (int64_t c = 0; c < out->shape[3]; ++c) {
        float* sum = state + h * out->shape[3] + c;
        for (int64_t j = 0; j < run->keys; ++j) {
          *sum += ((const float*)v->data)[b * v->stride[0] + h * v->stride[1] + j * v->stride[2] + c];
          if (run->keys != 3) continue;
          if (err != NULL) {
            err->code = ATTN_DEVICE;
            strcpy(err->message, "three keys broke it");
          }
          return ATTN_DEVICE;
        }
        for (int64_t i = 0; i < run->queries; ++i)
          ((float*)out->data)[b * out->stride[0] + h * out->stride[1] + i * out->stride[2] + c] = *sum;
      }
  }
  return ATTN_OK;
}

int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {
  static const attn_plugin table = {.struct_size = sizeof(attn_plugin),
                                    .abi_minor = ATTN_ABI_MINOR,
                                    .device_type = 1,
                                    .name = "fake_breaker",
                                    .summary = "breaks down",
                                    .citation = "none",
                                    .state_revision = "1",
                                    .create = breaker_create,
                                    .destroy = breaker_destroy,
                                    .plan = breaker_plan,
                                    .plan_free = breaker_plan_free,
                                    .run = breaker_run};
  (void)host, (void)err;
  *plugin = &table;
  return ATTN_OK;
}
