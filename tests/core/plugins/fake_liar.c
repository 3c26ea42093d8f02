/* Sums the values of a row, with one lie that its option "about" chooses. */
#define FAKE_RUNS
#include "fake.h"

static const char* const lies[] = {"nothing", "state",      "rounding", "scratch",   "saved",     "flops",
                                   "keys",    "room",       "port",     "raw_heads", "raw_width", "flags",
                                   "name",    "dimensions", "kind",     "aux_type",  "aux_heads"};
static const attn_option about = {sizeof(attn_option),
                                  sizeof(lies) / sizeof(*lies),
                                  "about",
                                  "what it lies about",
                                  {ATTN_TEXT, 0, 0, 0, "nothing"},
                                  0,
                                  0,
                                  lies};
static const attn_option* const options[] = {&about};

static int lies_about(const attn_mech* mech, const char* what) { return strcmp(mech->values[0].s, what) == 0; }

static int32_t fake_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  static char name[100001];
  const int32_t code = fake_make(block, values, 1, mech, ports, n_ports, err);
  if (code != ATTN_OK) return code;
  attn_port* v = &(*mech)->port[0];
  for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); ++i)
    if (strcmp(lies[i], values[0].s) == 0) (*mech)->values[0].s = lies[i]; /* values are gone after this call */
  if (lies_about(*mech, "raw_heads") || lies_about(*mech, "raw_width")) v->flags = ATTN_RAW;
  if (lies_about(*mech, "raw_width")) v->shape[1] = 1;
  if (lies_about(*mech, "port")) v->struct_size = 8;
  if (lies_about(*mech, "dimensions")) v->ndim = 5;
  if (lies_about(*mech, "kind")) v->kind = 99;
  if (lies_about(*mech, "aux_type") || lies_about(*mech, "aux_heads")) {
    v->kind = ATTN_AUX_OUT;
    v->shape[2] = 4;
    v->dtype_code = 2;
    v->dtype_bits = 32;
  }
  if (lies_about(*mech, "aux_type")) v->shape[1] = 1, v->dtype_bits = 64;
  if (lies_about(*mech, "name")) v->name = (const char*)memset(name, 'v', sizeof(name) - 1);
  return ATTN_OK;
}

static int32_t fake_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                         attn_error* err) {
  const uint64_t row = (uint64_t)(mech->port[1].shape[1] * mech->port[1].shape[3]) * sizeof(float);
  (void)err;
  if (plan != NULL) *plan = (attn_plan*)mech;
  if (info == NULL) return ATTN_OK;
  if (request->flags & ATTN_STREAM) {
    info->state_bytes = row;
    if (lies_about(mech, "state")) info->state_bytes = (uint64_t)1 << 63;
    if (lies_about(mech, "rounding")) info->state_bytes = UINT64_MAX - 5;
    if (lies_about(mech, "keys") && request->keys > 0) info->state_bytes = 4 << 20;
    if (lies_about(mech, "room") && request->past + request->keys < 16) info->state_bytes = (uint64_t)1 << 40;
  }
  if (lies_about(mech, "scratch")) info->scratch_bytes = UINT64_MAX;
  if (lies_about(mech, "saved")) info->saved_bytes = UINT64_MAX - 5;
  if (lies_about(mech, "flops")) info->flops = UINT64_MAX;
  if (lies_about(mech, "flags")) info->flags = 1u << 20;
  return ATTN_OK;
}

static int32_t fake_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  const attn_tensor *v = &run->ports[0], *out = &run->ports[1];
  (void)plan, (void)err;
  for (int64_t b = 0; b < run->batch; ++b)
    for (int64_t h = 0; h < out->shape[1]; ++h)
      for (int64_t c = 0; c < out->shape[3]; ++c) {
        float whole = 0, *sum = &whole;
        if (run->state != NULL)
          sum = (float*)((char*)run->state + run->state_stride * (uint64_t)(run->slots ? run->slots[b] : b)) +
                h * out->shape[3] + c;
        for (int64_t j = 0; j < (run->k_len ? run->k_len[b] : run->keys); ++j)
          *sum += ((const float*)v->data)[b * v->stride[0] + h * v->stride[1] + j * v->stride[2] + c];
        for (int64_t i = 0; i < run->queries; ++i)
          ((float*)out->data)[b * out->stride[0] + h * out->stride[1] + i * out->stride[2] + c] = *sum;
      }
  return ATTN_OK;
}

FAKE_PLUGIN("fake_liar", options, 1)
