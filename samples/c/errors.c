/* Shows errors.   errors MODEL.toml "text" [FOLDER]
 * FOLDER: where fails.so of samples/failing_plugin is, for an error of every class; absolute. */
#include "common.h"

static void count(uintptr_t found, const attnkit_diagnostic* d) {
  (void)d;
  ++*(int*)found;
}

static void show(int32_t code, int diagnostics) {
  switch (code) {
    case ATTN_INVALID:
      printf("invalid, %d diagnostics: %s\n", diagnostics, err.message);
      break;
    case ATTN_UNSUPPORTED:
      printf("unsupported: %s\n", err.message);
      break;
    case ATTN_NO_MEMORY:
      printf("no memory: %s\n", err.message);
      break;
    case ATTN_DEVICE:
      printf("device: %s\n", err.message);
      break;
    case ATTN_INTERNAL:
      printf("internal: %s\n", err.message);
      break;
    default:
      printf("no error\n");
  }
}

static void show_every_class(const char* folder, const attn_block* where) {
  const attnkit_runtime_options options = {.struct_size = sizeof options, .plugin_path = folder};
  attnkit_runtime* runtime = NULL;
  attnkit_block* block = NULL;
  check(attnkit_runtime_create(&options, &runtime, &err));
  for (int code = ATTN_INVALID; code <= ATTN_INTERNAL; ++code) {
    char told[24];
    snprintf(told, sizeof told, "code = %d", code);
    show(attnkit_block_create(runtime, "fails", where, told, &block, &err), 0);
  }
  attnkit_runtime_destroy(runtime);
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\" [FOLDER]\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  const attn_block where = {
      .struct_size = sizeof where, .role = ATTN_ENCODER_SELF, .causal = 0, .heads = 1, .d_model = 8, .head_width = 8};
  const attn_request request = {sizeof request, ATTN_STREAM, 1, 0, 2, 32, 1, 64, 1, 1, 1, 0};
  attn_info info = {.struct_size = sizeof info};
  attnkit_runtime* runtime = NULL;
  attnkit_block* block = NULL;
  int found = 0;
  uint64_t n = 0;
  check(attnkit_runtime_create(NULL, &runtime, &err));
  /* No place for a model: the manifest is only checked. */
  int32_t code =
      attnkit_model_create(runtime, "[model]\nkind = 3\n[what]\n", ".", count, (uintptr_t)&found, NULL, &err);
  show(code, found);
  show(attnkit_model_tokenize(o.model, 0, "zebra", NULL, &n, &err), 0);
  check(attnkit_block_create(runtime, "softmax", &where, NULL, &block, &err));
  show(attnkit_block_plan(block, &request, &info, &err), 0);
  attnkit_block_destroy(block);
  attnkit_runtime_destroy(runtime);
  if (argc > 3) show_every_class(argv[3], &where);
  close_model(&o);
  return 0;
}
