/* Has options of all types and refuses for every kind of reason. */
#include "fake.h"

enum { SIZE, EPS, PAST, MODE, LABEL, LONGEST, ANY, OPTIONS };

static const char* const modes[] = {"none", "add", "clamp"};
static const attn_option size = {sizeof(attn_option),       0, "size", "how large it is",
                                 {ATTN_INT, 0, 4, 0, NULL}, 1, 64,     NULL};
static const attn_option eps = {sizeof(attn_option), 0, "eps", "the guard", {ATTN_FLOAT, 0, 0, 0.1, NULL}, 0, 1, NULL};
static const attn_option past = {sizeof(attn_option),        0, "past", "can be causal",
                                 {ATTN_BOOL, 0, 0, 0, NULL}, 0, 0,      NULL};
static const attn_option mode = {sizeof(attn_option), 3, "mode", "", {ATTN_TEXT, 0, 0, 0, "add"}, 0, 0, modes};
static const attn_option label = {sizeof(attn_option), 0, "label", "any text", {ATTN_TEXT, 0, 0, 0, ""}, 0, 0, NULL};
static const attn_option longest = {sizeof(attn_option),       0, "longest", "most keys; 0: any",
                                    {ATTN_INT, 0, 0, 0, NULL}, 0, 1e9,       NULL};
static const attn_option any = {sizeof(attn_option), 0, "any", "unbounded", {ATTN_FLOAT, 0, 0, 1, NULL}, 0, 0, NULL};
static const attn_option* const options[] = {&size, &eps, &past, &mode, &label, &longest, &any};

static int32_t fake_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  if (strcmp(values[MODE].s, "none") == 0 && values[EPS].f > 0.5)
    return fake_fail(err, ATTN_INVALID, MODE, "mode \"none\" needs an eps of at most 0.5");
  if (values[SIZE].i > block->head_width) return fake_fail(err, ATTN_UNSUPPORTED, SIZE, "size is larger than the head");
  return fake_make(block, values, OPTIONS, mech, ports, n_ports, err);
}

static int32_t fake_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                         attn_error* err) {
  const attn_block* block = &mech->block;
  const int64_t most = mech->values[LONGEST].i;
  (void)info;
  if (block->causal && !mech->values[PAST].i) return fake_fail(err, ATTN_UNSUPPORTED, -1, "it has no causal form");
  if (block->role != ATTN_ENCODER_SELF && !(request->flags & ATTN_KNOWS_Q_TOTAL))
    return fake_fail(err, ATTN_UNSUPPORTED, -1, "the target's length is unknown");
  if (most > 0 && request->keys > most)
    return fake_fail(err, ATTN_UNSUPPORTED, -1, "the model is longer than its longest");
  if (plan != NULL) *plan = (attn_plan*)mech;
  return ATTN_OK;
}

FAKE_PLUGIN("fake_picky", options, OPTIONS)
