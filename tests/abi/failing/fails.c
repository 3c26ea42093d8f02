/* Fails where it is told to, with the code that it is told, or asks for more scratch than there is: for hosts' tests of
 * their errors. */
#include "../plugins/mean.h"

typedef struct failing {
  attn_mech mean;
  int32_t code;
  char in;
} failing;

static const char* const places[] = {"create", "plan", "run", "scratch"};
static const attn_option code = {.struct_size = sizeof(attn_option),
                                 .name = "code",
                                 .doc = "what it answers",
                                 .fallback = {.type = ATTN_INT, .i = ATTN_INTERNAL},
                                 .min = 1,
                                 .max = 77};
static const attn_option in = {.struct_size = sizeof(attn_option),
                               .n_choices = 4,
                               .name = "in",
                               .doc = "where",
                               .fallback = {.type = ATTN_TEXT, .s = "create"},
                               .choices = places};
static const attn_option* const options[] = {&code, &in};

static int32_t create(const attn_block* block, const attn_value* values, attn_mech** mech,
                      const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  if (values[1].s[0] == 'c') return mean_fail(err, (int32_t)values[0].i, "told to fail in create");
  const int32_t made = mean_create(block, values, mech, ports, n_ports, err);
  failing* self = made == ATTN_OK ? (failing*)realloc(*mech, sizeof(failing)) : NULL;
  if (self == NULL) return made;
  self->mean.ports[0] = &self->mean.port[0];
  self->mean.ports[1] = &self->mean.port[1];
  self->code = (int32_t)values[0].i;
  self->in = values[1].s[0];
  *mech = &self->mean;
  *ports = self->mean.ports;
  return ATTN_OK;
}

static int32_t plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                    attn_error* err) {
  const failing* self = (const failing*)mech;
  if (self->in == 'p') return mean_fail(err, self->code, "told to fail in plan");
  const int32_t made = mean_plan(mech, request, info, plan, err);
  if (self->in == 's' && ATTN_HAS(attn_info, info, scratch_bytes)) info->scratch_bytes = (uint64_t)1 << 61;
  return made;
}

static int32_t run(const attn_plan* plan, const attn_run* r, attn_error* err) {
  const failing* self = (const failing*)plan;
  return self->in == 'r' ? mean_fail(err, self->code, "told to fail in run") : mean_run(plan, r, err);
}

MEAN_PLUGIN(table.options = options; table.n_options = 2; table.create = create; table.plan = plan; table.run = run)
