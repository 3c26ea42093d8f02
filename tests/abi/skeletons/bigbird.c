/* BigBird (Zaheer et al., NeurIPS 2020): blocks see their window, the first, the last and some random blocks.
 * Asks of the contract: an integer table stored with the model, because the random pattern is data and no generator. */
#include "skeleton.h"

static const attn_option block_size = {.struct_size = sizeof(attn_option),
                                       .name = "block",
                                       .doc = "positions in a block",
                                       .fallback = {.type = ATTN_INT, .i = 64},
                                       .min = 1,
                                       .max = 1024};
static const attn_option random_blocks = {.struct_size = sizeof(attn_option),
                                          .name = "random",
                                          .doc = "random blocks that each block sees",
                                          .fallback = {.type = ATTN_INT, .i = 3},
                                          .min = 1,
                                          .max = 64};
static const attn_option length = {.struct_size = sizeof(attn_option),
                                   .name = "length",
                                   .doc = "the one length of sequence that the table is for",
                                   .fallback = {.type = ATTN_INT, .i = 1024},
                                   .min = 1,
                                   .max = 1 << 20};
static const attn_option* const options[] = {&block_size, &random_blocks, &length};

static int32_t bigbird_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                              const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  const int64_t width = block->d_model / block->heads, blocks = values[2].i / values[0].i;
  if (block->role != ATTN_ENCODER_SELF || block->causal) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "its first and last blocks see everything, so it fits encoders only");
  }
  if (values[2].i % values[0].i != 0) return refuse(err, ATTN_INVALID, 2, "length must be a multiple of block");
  if (blocks < 5) return refuse(err, ATTN_INVALID, 2, "length must hold at least 5 blocks");
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  made->size[0] = values[2].i;
  sequence(made, ATTN_QUERY, 0, "q", block->heads, width, "queries");
  sequence(made, ATTN_KEY, 0, "k", block->heads, width, "keys");
  sequence(made, ATTN_KEY, 0, "v", block->heads, block->head_width, "values");
  attn_port* table = stored(made, ATTN_TABLE, 0, "blocks", block->heads, blocks - 2, values[1].i, 0,
                            "random blocks of every block but the first and the last");
  table->dtype_code = 0;
  sequence(made, ATTN_OUTPUT, 0, "out", block->heads, block->head_width, "one softmax over all that a block sees");
  return give(made, mech, ports, n_ports);
}

static int32_t bigbird_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                            attn_error* err) {
  if (request->queries != 0 && request->queries != mech->size[0]) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "the table is for another length; pad the sequence or set length");
  }
  return skeleton_plan(mech, request, info, plan, err);
}

SKELETON("Block-sparse attention with window, global and random blocks", "Zaheer et al., NeurIPS 2020", bigbird_create,
         bigbird_plan, skeleton_run, options, 3)
