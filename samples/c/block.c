/* One mechanism by itself: three tokens, causal, and the gradient of the last output; decode.c has a state. */
#include "common.h"

/* (1 row, 1 head, 3, width 1), f32 on the CPU. */
static attn_tensor column(float* data) {
  const attn_tensor t = {data, {1, 1, 3, 1}, {3, 3, 1, 1}, 2, 32, 1, 4, 1, 0};
  return t;
}

int main(void) {
  const attnkit_runtime_options options = {sizeof options, 1, NULL, 0, 0};
  const attn_block where = {.struct_size = sizeof where,
                            .role = ATTN_DECODER_SELF,
                            .causal = 1,
                            .heads = 1,
                            .d_model = 1,
                            .head_width = 1}; /* causal, one head, D = E = 1 */
  const attn_request request = {sizeof request, ATTN_TRAIN, 1, 0, 2, 32, 1, 1, 1, 3, 3, 0};
  float q[] = {1, 1, 1}, k[] = {1, 3, 4}, v[] = {10, 20, 40}, o[3], dv[3], given[] = {0, 0, 1};
  const attn_tensor ports[] = {column(q), column(k), column(v), column(o)}; /* in the order of attnkit_block_ports */
  const attn_tensor grads[] = {{.data = NULL}, {.data = NULL}, column(dv), column(given)};
  attn_info info = {.struct_size = sizeof info};
  attnkit_runtime* runtime = NULL;
  attnkit_block* block = NULL;
  uint32_t n = 0;
  check(attnkit_runtime_create(&options, &runtime, &err));
  check(attnkit_block_create(runtime, "relu", &where, NULL, &block, &err));
  if (!attnkit_block_ports(block, &n) || n != 4) return 1;
  check(attnkit_block_plan(block, &request, &info, &err));
  char* memory = malloc(info.saved_bytes + ATTN_ALIGN);
  if (!memory) return 1;
  const attn_run run = {.struct_size = sizeof run,
                        .batch = 1,
                        .queries = 3,
                        .keys = 3,
                        .ports = ports,
                        .saved = memory + (ATTN_ALIGN - (uintptr_t)memory % ATTN_ALIGN)};
  const attn_grad grad = {sizeof grad, 0, &run, grads};
  check(attnkit_block_run(block, &request, &run, &err));
  check(attnkit_block_backward(block, &request, &grad, &err));
  printf("%g %g %g\n", o[0], o[1], o[2]);
  free(memory);
  attnkit_block_destroy(block);
  attnkit_runtime_destroy(runtime);
  return dv[2] == 0.5f ? 0 : 1; /* 4 / (1 + 3 + 4) */
}
