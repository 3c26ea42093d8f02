/* The prefix form that wait-k needs offline: query i of row b sees the first visible[b,i] keys.  The weights are
 * uniform, so that the form is all there is; it runs. */
#include "skeleton.h"

static int32_t prefix_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                             const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  (void)values;
  if (block->role != ATTN_DECODER_CROSS)
    return refuse(err, ATTN_UNSUPPORTED, -1, "shows the prefix form of cross attention");
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  sequence(made, ATTN_QUERY, 0, "q", block->heads, block->d_model / block->heads, "queries, not looked at");
  sequence(made, ATTN_KEY, 0, "v", block->heads, block->head_width, "values");
  sequence(made, ATTN_OUTPUT, 0, "out", block->heads, block->head_width, "mean of the visible values");
  return give(made, mech, ports, n_ports);
}

static int32_t prefix_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                           attn_error* err) {
  if (!(request->flags & ATTN_PREFIX)) return refuse(err, ATTN_UNSUPPORTED, -1, "shows the prefix form only");
  info->flops = (uint64_t)(request->batch * mech->block.heads * request->keys * mech->block.head_width);
  return skeleton_plan(mech, request, info, plan, err);
}

static const float* row(const attn_tensor* t, int64_t b, int64_t h, int64_t i) {
  return (const float*)t->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

/* visible does not decrease, so one pass over the keys serves all queries. */
static void prefix_head(const attn_run* run, int64_t b, int64_t h, int64_t e) {
  const attn_tensor *v = &run->ports[1], *out = &run->ports[2];
  const int64_t keys = run->k_len != NULL ? run->k_len[b] : run->keys;
  const int64_t queries = run->q_len != NULL ? run->q_len[b] : run->queries;
  int64_t seen = 0;
  float sum = 0;
  for (int64_t i = 0; i < run->queries; ++i) {
    const int64_t limit = run->visible[b * run->queries + i];
    while (i < queries && seen < limit && seen < keys) sum += row(v, b, h, seen++)[e];
    ((float*)row(out, b, h, i))[e] = i < queries && seen > 0 ? sum / (float)seen : 0;
  }
}

static int32_t prefix_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)plan;
  if (run->visible == NULL || run->state != NULL)
    return refuse(err, ATTN_INVALID, -1, "needs visible and takes no state");
  for (int64_t b = 0; b < run->batch; ++b) {
    for (int64_t h = 0; h < run->ports[2].shape[1]; ++h) {
      for (int64_t e = 0; e < run->ports[2].shape[3]; ++e) prefix_head(run, b, h, e);
    }
  }
  return ATTN_OK;
}

SKELETON("Mean of the visible prefix", "none", prefix_create, prefix_plan, prefix_run, NULL, 0)
