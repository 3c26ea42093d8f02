/* Reformer (Kitaev et al., ICLR 2020): shared queries and keys, sorted by locality-sensitive hash.
 *   key = x / sqrt(mean x^2 + 1e-6) / sqrt(d), query = x = X W_q without bias; hash: argmax [x R; -x R]
 * Asks of the contract: no k at all; q without the bias that the shared projection has; stored random rotations. */
#include "skeleton.h"

static const attn_option chunk = {.struct_size = sizeof(attn_option),
                                  .name = "chunk",
                                  .doc = "positions that see each other and the chunk before",
                                  .fallback = {.type = ATTN_INT, .i = 64},
                                  .min = 2,
                                  .max = 4096};
static const attn_option rounds = {.struct_size = sizeof(attn_option),
                                   .name = "rounds",
                                   .doc = "rounds of hashing",
                                   .fallback = {.type = ATTN_INT, .i = 2},
                                   .min = 1,
                                   .max = 16};
static const attn_option buckets = {.struct_size = sizeof(attn_option),
                                    .name = "buckets",
                                    .doc = "most buckets of a round",
                                    .fallback = {.type = ATTN_INT, .i = 128},
                                    .min = 2,
                                    .max = 4096};
static const attn_option* const options[] = {&chunk, &rounds, &buckets};

static int32_t reformer_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                               const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  const int64_t width = block->d_model / block->heads;
  if (block->role == ATTN_DECODER_CROSS) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "queries are the keys, so it cannot be cross attention");
  }
  if (block->causal) return refuse(err, ATTN_UNSUPPORTED, -1, "sorts the whole sequence, so it cannot be causal");
  if (values[2].i % 2 != 0) return refuse(err, ATTN_INVALID, 2, "buckets must be even: half of them are the opposites");
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  made->size[0] = values[0].i;
  sequence(made, ATTN_QUERY, ATTN_NO_BIAS, "q", block->heads, width, "queries, which are also the keys");
  sequence(made, ATTN_KEY, 0, "v", block->heads, block->head_width, "values");
  stored(made, ATTN_TABLE, 0, "rotations", block->heads, width, values[1].i, values[2].i / 2, "N(0, 1) by seed");
  sequence(made, ATTN_OUTPUT, 0, "out", block->heads, block->head_width, "mean of the rounds by their logsumexp");
  return give(made, mech, ports, n_ports);
}

static int32_t reformer_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                             attn_error* err) {
  if (request->queries % mech->size[0] != 0) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "the sequence's length must be a multiple of chunk; pad it");
  }
  return skeleton_plan(mech, request, info, plan, err);
}

SKELETON("Attention within buckets of a locality-sensitive hash", "Kitaev et al., ICLR 2020", reformer_create,
         reformer_plan, skeleton_run, options, 3)
