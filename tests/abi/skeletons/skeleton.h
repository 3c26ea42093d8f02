/* What the skeletons share.  A skeleton declares a mechanism's ports, tables and state as it will have them, answers
 * plan honestly, and refuses to run: proof that plugin.h can carry the mechanism before anyone writes it. */
#ifndef SKELETON_H
#define SKELETON_H
#include <attnkit/plugin.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PORTS 32

struct attn_mech {
  attn_block block;
  int64_t state_floats; /* per row; 0: cannot stream */
  int64_t size[3];      /* what the skeleton needs of its options */
  uint32_t n;
  attn_port port[MOST_PORTS];
  const attn_port* ports[MOST_PORTS];
};

static inline int32_t refuse(attn_error* err, int32_t code, int32_t where, const char* message) {
  if (err != NULL) {
    err->code = code;
    err->where = where;
    strncpy(err->message, message, sizeof(err->message) - 1);
    err->message[sizeof(err->message) - 1] = '\0';
  }
  return code;
}

static inline attn_mech* new_mech(const attn_block* block) {
  attn_mech* mech = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (mech != NULL) mech->block = *block;
  return mech;
}

static inline attn_port* add_port(attn_mech* mech, uint32_t kind, uint32_t flags, const char* name, const char* doc) {
  attn_port* port = &mech->port[mech->n];
  mech->ports[mech->n++] = port;
  port->struct_size = sizeof(*port);
  port->kind = kind;
  port->flags = flags;
  port->name = name;
  port->doc = doc;
  return port;
}

static inline void sequence(attn_mech* mech, uint32_t kind, uint32_t flags, const char* name, int64_t heads,
                            int64_t width, const char* doc) {
  attn_port* port = add_port(mech, kind, flags, name, doc);
  port->ndim = 4;
  port->shape[1] = heads;
  port->shape[3] = width;
}

/* A stored f32 tensor; trailing dimensions of 0 are not there. */
static inline attn_port* stored(attn_mech* mech, uint32_t kind, uint32_t flags, const char* name, int64_t a, int64_t b,
                                int64_t c, int64_t d, const char* doc) {
  attn_port* port = add_port(mech, kind, flags, name, doc);
  const int64_t shape[4] = {a, b, c, d};
  port->dtype_code = 2;
  port->dtype_bits = 32;
  for (uint16_t i = 0; i < 4 && shape[i] > 0; ++i) {
    port->shape[i] = shape[i];
    port->ndim = (uint16_t)(i + 1);
  }
  return port;
}

static inline void aux(attn_mech* mech, uint32_t kind, const char* name, int64_t rows, int64_t width, const char* doc) {
  attn_port* port = add_port(mech, kind, 0, name, doc);
  port->ndim = 4;
  port->shape[1] = 1;
  port->shape[2] = rows;
  port->shape[3] = width;
  port->dtype_code = 2;
  port->dtype_bits = 32;
}

static inline int32_t give(attn_mech* made, attn_mech** mech, const attn_port* const** ports, uint32_t* n_ports) {
  *mech = made;
  *ports = made->ports;
  *n_ports = made->n;
  return ATTN_OK;
}

static void skeleton_destroy(attn_mech* mech) { free(mech); }

static int32_t skeleton_fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor,
                             attn_error* err) {
  (void)mech, (void)port, (void)seed, (void)tensor;
  return refuse(err, ATTN_UNSUPPORTED, -1, "a skeleton has no initial values");
}

static inline int32_t skeleton_plan(const attn_mech* mech, const attn_request* request, attn_info* info,
                                    attn_plan** plan, attn_error* err) {
  if (request->flags & ATTN_TRAIN) return refuse(err, ATTN_UNSUPPORTED, -1, "a skeleton has no gradient");
  if ((request->flags & ATTN_STREAM) && mech->state_floats == 0) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "needs the whole sequence, so it cannot stream");
  }
  if (request->flags & ATTN_STREAM) {
    info->state_bytes = ((uint64_t)mech->state_floats * sizeof(float) + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
  }
  if (plan != NULL) *plan = (attn_plan*)mech; /* nothing beyond the mechanism */
  return ATTN_OK;
}

static void skeleton_plan_free(attn_plan* plan) { (void)plan; }

static inline int32_t skeleton_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan, (void)run;
  return refuse(err, ATTN_UNSUPPORTED, -1, "a skeleton computes nothing");
}

#define SKELETON(title, paper, create_function, plan_function, run_function, option_list, option_count) \
  int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) {     \
    static const attn_plugin table = {.struct_size = sizeof(attn_plugin),                               \
                                      .abi_minor = ATTN_ABI_MINOR,                                      \
                                      .device_type = 1,                                                 \
                                      .name = PLUGIN_NAME,                                              \
                                      .summary = title,                                                 \
                                      .citation = paper,                                                \
                                      .state_revision = "0",                                            \
                                      .options = option_list,                                           \
                                      .n_options = option_count,                                        \
                                      .create = create_function,                                        \
                                      .destroy = skeleton_destroy,                                      \
                                      .fill = skeleton_fill,                                            \
                                      .plan = plan_function,                                            \
                                      .plan_free = skeleton_plan_free,                                  \
                                      .run = run_function};                                             \
    (void)host, (void)err;                                                                              \
    *plugin = &table;                                                                                   \
    return ATTN_OK;                                                                                     \
  }
#endif
