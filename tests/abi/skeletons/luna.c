/* Luna: Linear Unified Nested Attention (Ma et al., NeurIPS 2021).
 *   pack:   Y_P = softmax(P W_pq (C W_pk)^T / sqrt(d)) C W_pv,  P (l, D)
 *   unpack: Y_X = softmax(X W_q (Y_P W_k)^T / sqrt(d)) Y_P W_v
 *   causal: P gives pq once; A_s = w(pk_s . pq), and k, v are those of the sequence itself
 * Asks of the contract: projections of something that the host does not have (Y_P), so W_k and W_v are LEARNED; own
 * keys of the context under their own names (pk, pv); P that travels from block to block, normalised by the mechanism.
 */
#include "skeleton.h"

static const attn_option projection = {.struct_size = sizeof(attn_option),
                                       .name = "projection",
                                       .doc = "rows of P",
                                       .fallback = {.type = ATTN_INT, .i = 16},
                                       .min = 1,
                                       .max = 4096};
static const attn_option tied = {.struct_size = sizeof(attn_option),
                                 .name = "tied",
                                 .doc = "pack and unpack with one projection for keys and values each",
                                 .fallback = {.type = ATTN_BOOL, .i = 1}};
static const attn_option* const options[] = {&projection, &tied};

/* A projection of P or of what it became. */
static void learned_projection(attn_mech* mech, const char* weight, const char* bias, const char* doc) {
  const int64_t d = mech->block.d_model;
  stored(mech, ATTN_LEARNED, 0, weight, d, d, 0, 0, doc);
  stored(mech, ATTN_LEARNED, 0, bias, d, 0, 0, 0, doc);
}

static void bidirectional_ports(attn_mech* mech, int is_tied) {
  const attn_block* block = &mech->block;
  sequence(mech, ATTN_KEY, 0, "pk", block->heads, block->d_model / block->heads, "keys of the pack attention");
  if (!is_tied) sequence(mech, ATTN_KEY, 0, "pv", block->heads, block->head_width, "values of the pack attention");
  learned_projection(mech, "k_weight", "k_bias", "keys of the unpack attention, of the packed sequence");
  if (!is_tied) learned_projection(mech, "v_weight", "v_bias", "values of the unpack attention");
}

static void causal_ports(attn_mech* mech) {
  const attn_block* block = &mech->block;
  sequence(mech, ATTN_KEY, 0, "k", block->heads, block->d_model / block->heads, "keys of the unpack attention");
  sequence(mech, ATTN_KEY, 0, "v", block->heads, block->head_width, "values");
  sequence(mech, ATTN_KEY, 0, "pk", block->heads, block->d_model / block->heads, "keys of the pack attention");
}

static int32_t luna_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                           const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  const int64_t l = values[0].i, d = block->d_model, width = d / block->heads;
  sequence(made, ATTN_QUERY, 0, "q", block->heads, width, "queries of the unpack attention");
  if (block->causal) {
    causal_ports(made);
  } else {
    bidirectional_ports(made, values[1].i != 0);
  }
  learned_projection(made, "pq_weight", "pq_bias", "queries of the pack attention, of P");
  stored(made, ATTN_LEARNED, ATTN_PER_MODEL, "p_start", l, d, 0, 0, "P before the first block");
  stored(made, ATTN_LEARNED, 0, "p_norm", 2, d, 0, 0, "scale and shift of the norm of P + Y_P");
  aux(made, ATTN_AUX_IN, "p", l, d, "P as the block before left it");
  aux(made, ATTN_AUX_OUT, "p", l, d, "P for the blocks that follow");
  sequence(made, ATTN_OUTPUT, 0, "out", block->heads, block->head_width, "Y_X");
  /* pq once, then sums over the past of k (x) A and A (x) v */
  if (block->causal) made->state_floats = block->heads * l * (2 * width + block->head_width);
  return give(made, mech, ports, n_ports);
}

SKELETON("Attention through a short packed sequence that travels between blocks", "Ma et al., NeurIPS 2021",
         luna_create, skeleton_plan, skeleton_run, options, 2)
