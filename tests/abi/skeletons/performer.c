/* Performer, FAVOR+ (Choromanski et al., ICLR 2021).
 *   phi(x) = m^-1/2 (exp(w x^ - |x^|^2 / 2 - c) + eps),  x^ = d^-1/4 x,  w (m, d) stored
 * Asks of the contract: f32 random features that are stored with the model, filled by seed and never trained; state
 * with a running maximum whose zero bytes must mean "nothing yet" (kept as a count beside it). */
#include "skeleton.h"

static const attn_option features = {.struct_size = sizeof(attn_option),
                                     .name = "features",
                                     .doc = "random features m",
                                     .fallback = {.type = ATTN_INT, .i = 128},
                                     .min = 1,
                                     .max = 4096};
static const attn_option* const options[] = {&features};

static int32_t performer_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                                const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  const int64_t width = block->d_model / block->heads, m = values[0].i;
  sequence(made, ATTN_QUERY, 0, "q", block->heads, width, "queries");
  sequence(made, ATTN_KEY, 0, "k", block->heads, width, "keys");
  sequence(made, ATTN_KEY, 0, "v", block->heads, block->head_width, "values");
  stored(made, ATTN_TABLE, ATTN_PER_MODEL, "omega", m, width, 0, 0, "blocks of orthogonal rows, scaled, by seed");
  sequence(made, ATTN_OUTPUT, 0, "out", block->heads, block->head_width, "phi(q) S / phi(q) z");
  /* per head: S (m, E), z (m), running maximum and whether there is one */
  if (block->causal || block->role == ATTN_DECODER_CROSS) {
    made->state_floats = block->heads * (m * (block->head_width + 1) + 2);
  }
  return give(made, mech, ports, n_ports);
}

/* Sixteen summed uniform numbers stand in for the normal draw: a fill that is the same bytes on every machine. */
static int32_t performer_fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor,
                              attn_error* err) {
  if (port >= mech->n || mech->port[port].kind != ATTN_TABLE) return refuse(err, ATTN_INVALID, -1, "not a stored port");
  for (int64_t i = 0; i < tensor->shape[0] * tensor->shape[1]; ++i) {
    int64_t sum = 0;
    for (int draw = 0; draw < 16; ++draw) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      sum += (int64_t)(seed >> 44) - (1 << 19);
    }
    ((float*)tensor->data)[i] = (float)sum / (float)(1 << 21);
  }
  return ATTN_OK;
}
#define skeleton_fill performer_fill

SKELETON("Softmax attention through positive random features", "Choromanski et al., ICLR 2021", performer_create,
         skeleton_plan, skeleton_run, options, 1)
