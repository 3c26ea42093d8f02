/* The common part of the fake mechanisms of the manifest's tests: a port in, a port out, and no mathematics. */
#ifndef FAKE_H
#define FAKE_H
#include <attnkit/plugin.h>
#include <stdlib.h>
#include <string.h>

struct attn_mech {
  attn_block block;
  attn_value values[8];
  attn_port port[2];
  const attn_port* ports[2];
};

static int32_t fake_fail(attn_error* err, int32_t code, int32_t where, const char* message) {
  if (err != NULL) {
    err->code = code;
    err->where = where;
    strncpy(err->message, message, sizeof(err->message) - 1);
  }
  return code;
}

static attn_port fake_port(uint32_t kind, const char* name, const attn_block* block) {
  attn_port port;
  memset(&port, 0, sizeof(port));
  port.struct_size = sizeof(port);
  port.kind = kind;
  port.ndim = 4;
  port.name = name;
  port.doc = name;
  port.shape[1] = block->heads;
  port.shape[3] = block->head_width;
  return port;
}

static int32_t fake_make(const attn_block* block, const attn_value* values, uint32_t n_values, attn_mech** mech,
                         const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  attn_mech* made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL) return fake_fail(err, ATTN_NO_MEMORY, -1, "out of memory");
  made->block = *block;
  for (uint32_t i = 0; i < n_values; ++i) made->values[i] = values[i];
  made->port[0] = fake_port(ATTN_KEY, "v", block);
  made->port[1] = fake_port(ATTN_OUTPUT, "out", block);
  made->ports[0] = &made->port[0];
  made->ports[1] = &made->port[1];
  *mech = made;
  *ports = made->ports;
  *n_ports = 2;
  return ATTN_OK;
}

static void fake_destroy(attn_mech* mech) { free(mech); }

static void fake_plan_free(attn_plan* plan) { (void)plan; }

#ifndef FAKE_RUNS
static int32_t fake_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan, (void)run;
  return fake_fail(err, ATTN_UNSUPPORTED, -1, "a fake does not run");
}
#endif

/* Defines the entry point from fake_create and fake_plan; n options. */
#define FAKE_PLUGIN(plugin_name, option_list, n)                                                    \
  int32_t attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err) { \
    static attn_plugin table;                                                                       \
    (void)host, (void)err;                                                                          \
    table.struct_size = sizeof(table);                                                              \
    table.abi_minor = ATTN_ABI_MINOR;                                                               \
    table.device_type = 1;                                                                          \
    table.name = plugin_name;                                                                       \
    table.summary = "a fake";                                                                       \
    table.citation = "none";                                                                        \
    table.state_revision = "1";                                                                     \
    table.options = option_list;                                                                    \
    table.n_options = n;                                                                            \
    table.create = fake_create;                                                                     \
    table.destroy = fake_destroy;                                                                   \
    table.plan = fake_plan;                                                                         \
    table.plan_free = fake_plan_free;                                                               \
    table.run = fake_run;                                                                           \
    *plugin = &table;                                                                               \
    return ATTN_OK;                                                                                 \
  }
#endif
