/* S4D: diagonal state-space model (Gu et al., NeurIPS 2022), as LeaPformer compares with it.
 *   x_t <- e^(dA) x_(t-1) + ((e^(dA) - 1) / A) u_t,   y_t = 2 Re C . x_t + D u_t
 * Asks of the contract: the sequence itself, unprojected and without heads; neither q nor k nor v; state that is no
 * keys. */
#include "skeleton.h"

static const attn_option order = {.struct_size = sizeof(attn_option),
                                  .name = "order",
                                  .doc = "size N of the state of a channel; complex numbers come in conjugate pairs",
                                  .fallback = {.type = ATTN_INT, .i = 64},
                                  .min = 2,
                                  .max = 1024};
static const attn_option* const options[] = {&order};

static int32_t s4d_create(const attn_block* block, const attn_value* values, attn_mech** mech,
                          const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  const int64_t d = block->d_model, half = values[0].i / 2;
  if (block->role == ATTN_DECODER_CROSS) {
    return refuse(err, ATTN_UNSUPPORTED, -1, "a state-space model mixes one sequence, so it cannot be cross attention");
  }
  if (values[0].i % 2 != 0)
    return refuse(err, ATTN_INVALID, 0, "order must be even, one number for each conjugate pair");
  attn_mech* made = new_mech(block);
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, -1, "out of memory");
  sequence(made, ATTN_KEY, ATTN_RAW, "x", 1, d, "the block's input itself");
  stored(made, ATTN_LEARNED, 0, "log_delta", d, 0, 0, 0, "log of the step, U(log 1e-3, log 1e-1)");
  stored(made, ATTN_LEARNED, 0, "log_decay", d, half, 0, 0, "log of -Re A, log 1/2");
  stored(made, ATTN_LEARNED, 0, "frequency", d, half, 0, 0, "Im A, pi n");
  stored(made, ATTN_LEARNED, 0, "readout", block->causal ? 1 : 2, d, half, 2, "C, real and imaginary, by direction");
  stored(made, ATTN_LEARNED, 0, "skip", d, 0, 0, 0, "D");
  sequence(made, ATTN_OUTPUT, ATTN_RAW, "y", 1, d, "the filtered sequence, not projected");
  if (block->causal) made->state_floats = d * half * 2;
  return give(made, mech, ports, n_ports);
}

SKELETON("Diagonal state-space model", "Gu et al., NeurIPS 2022", s4d_create, skeleton_plan, skeleton_run, options, 1)
