/* One mechanism by itself: three tokens one by one through a state, then all at once; docs/contract.md explains it.
 *   decode MECHANISM [options] [plugin folder, absolute] */
#define _POSIX_C_SOURCE 200112L
#include <attnkit/attnkit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_error err = {.struct_size = sizeof err};

static void check(int32_t code) {
  if (code == ATTN_OK) return;
  fprintf(stderr, "decode: %s\n", err.message);
  exit(1);
}

/* (1 row, 1 head, n, width 1), f32 on the CPU. */
static attn_tensor column(float* data, int64_t n) {
  const attn_tensor t = {data, {1, 1, n, 1}, {n, n, 1, 1}, 2, 32, 1, 4, 1, 0};
  return t;
}

/* Binds n tokens to the ports of the block, in their order, and runs. */
static void run(const attnkit_block* block, const attn_request* request, attn_run* run, float* q, float* k, float* v,
                float* o) {
  attn_tensor tensors[8];
  uint32_t n = 0;
  const attn_port* const* ports = attnkit_block_ports(block, &n);
  for (uint32_t i = 0; i < n; ++i) {
    if (i == 8 || ports[i]->kind > ATTN_OUTPUT) {
      fprintf(stderr, "decode: port \"%s\" is more than this program can feed\n", ports[i]->name);
      exit(1);
    }
    float* data = ports[i]->kind == ATTN_OUTPUT ? o : ports[i]->kind == ATTN_QUERY ? q : *ports[i]->name == 'k' ? k : v;
    tensors[i] = column(data, request->queries);
  }
  run->struct_size = sizeof *run;
  run->batch = 1;
  run->queries = run->keys = request->queries;
  run->ports = tensors;
  check(attnkit_block_run(block, request, run, &err));
}

int main(int argc, char** argv) {
  float q[3] = {1, 1, 1}, k[3] = {1, 3, 4}, v[3] = {10, 20, 40}, o[3];
  if (argc < 2) return fprintf(stderr, "usage: decode MECHANISM [options] [plugin folder]\n"), 2;

  const attnkit_runtime_options options = {sizeof options, 1, argc > 3 ? argv[3] : NULL, 0, 0};
  const attn_block where = {sizeof where, ATTN_DECODER_SELF, 1, 1, 1, 1, 0, 0}; /* causal, one head, D = E = 1 */
  attnkit_runtime* runtime = NULL;
  attnkit_block* block = NULL;
  check(attnkit_runtime_create(&options, &runtime, &err));
  check(attnkit_block_create(runtime, argv[1], &where, argc > 2 ? argv[2] : NULL, &block, &err));

  /* One query and one key a call, two keys in the state before the last: a capacity of three. */
  const attn_request step = {sizeof step, ATTN_STREAM, 1, 0, 2, 32, 1, 1, 1, 1, 1, 2};
  attn_info info = {.struct_size = sizeof info};
  check(attnkit_block_plan(block, &step, &info, &err));
  printf("state for 3 tokens: %llu bytes\n", (unsigned long long)info.state_bytes);

  float* state = NULL;
  if (posix_memalign((void**)&state, ATTN_ALIGN, info.state_bytes)) return 1;
  memset(state, 0, info.state_bytes); /* the empty state */
  for (int32_t t = 0; t < 3; ++t) {
    attn_run one = {.q_pos = &t, .k_pos = &t, .state = state, .state_stride = info.state_bytes};
    run(block, &step, &one, q + t, k + t, v + t, o + t);
    printf("token %d: q_pos = k_pos = %d, key %g, value %g -> output %g; state begins %g %g\n", (int)t + 1, (int)t,
           k[t], v[t], o[t], state[0], state[1]);
  }

  const attn_request all = {sizeof all, 0, 1, 0, 2, 32, 1, 1, 1, 3, 3, 0};
  attn_run whole = {.state = NULL};
  run(block, &all, &whole, q, k, v, o);
  printf("all at once: %g %g %g\n", o[0], o[1], o[2]);

  free(state);
  attnkit_block_destroy(block);
  attnkit_runtime_destroy(runtime);
  return 0;
}
