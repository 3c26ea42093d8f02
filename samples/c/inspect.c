/* Lists versions, plugins, a model's parts and tensors, initial tensors of a block, frames of speech.
 *   inspect MODEL.toml "text" SPEECH_MODEL.toml */
#include "common.h"

static void print_schema(attnkit_text* json) {
  uint64_t bytes = 0;
  const char* schema = strstr(attnkit_text_data(json, &bytes), "attnkit.");
  printf("%.*s, %s\n", schema ? (int)strcspn(schema, "\"") : 0, schema ? schema : "", bytes > 100 ? "full" : "empty");
  attnkit_text_destroy(json);
}

int main(int argc, char** argv) {
  if (argc < 4) return fprintf(stderr, "usage: %s MODEL.toml \"text\" SPEECH_MODEL.toml\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  attnkit_runtime* runtime = NULL;
  attnkit_text* json = NULL;
  printf("version %s, ABI 1.%u\n", attnkit_version(), attnkit_abi_minor());
  check(attnkit_runtime_create(NULL, &runtime, &err));
  check(attnkit_runtime_list(runtime, &json, &err));
  print_schema(json);
  check(attnkit_runtime_describe(runtime, &json, &err));
  print_schema(json);
  const int64_t lengths[] = {16, 256};
  check(attnkit_model_describe(o.model, lengths, 2, &json, &err));
  print_schema(json);
  attnkit_session* session = NULL;
  check(attnkit_session_create(o.model, 0, &session, &err));
  check(attnkit_session_describe(session, &json, &err));
  print_schema(json);
  attnkit_session_destroy(session);

  attnkit_blob* weights = NULL;
  uint64_t bytes = 0;
  check(attnkit_model_weights(o.model, &weights, &err));
  const char* file = attnkit_blob_data(weights, &bytes);
  printf("safetensors: %d\n", bytes > 8 && file[8] == '{');
  attnkit_blob_destroy(weights);

  const attn_block where = {
      .struct_size = sizeof where, .role = ATTN_DECODER_CROSS, .causal = 0, .heads = 4, .d_model = 32, .head_width = 8};
  attnkit_block* block = NULL;
  uint32_t n = 0;
  check(attnkit_block_create(runtime, "leap", &where, "factor = 2", &block, &err));
  const attn_port* const* ports = attnkit_block_ports(block, &n);
  for (uint32_t i = 0; i < n; ++i) {
    if (ports[i]->kind != ATTN_LEARNED || ports[i]->ndim != 2) continue;
    float* data = malloc((size_t)(ports[i]->shape[0] * ports[i]->shape[1]) * sizeof *data);
    attn_tensor t = {data, {ports[i]->shape[0], ports[i]->shape[1]}, {ports[i]->shape[1], 1}, 2, 32, 1, 2, 1, 0};
    check(attnkit_block_fill(block, i, 7, &t, &err));
    printf("%s is filled: %d\n", ports[i]->name, data && data[0] != 0);
    free(data);
    break;
  }
  attnkit_block_destroy(block);

  attnkit_model* speech = NULL;
  attnkit_model_info info = {.struct_size = sizeof info};
  check(attnkit_model_open(runtime, argv[3], NULL, 0, &speech, &err));
  check(attnkit_model_get_info(speech, &info, &err));
  float* samples = calloc((size_t)info.sample_rate, sizeof *samples);
  const attn_tensor second = {samples, {1, info.sample_rate}, {info.sample_rate, 1}, 2, 32, 1, 2, 1, 0};
  uint64_t frames = 0;
  check(attnkit_model_features(speech, &second, NULL, &frames, &err));
  printf("a second is %llu frames\n", (unsigned long long)frames);
  free(samples);
  attnkit_model_destroy(speech);
  attnkit_runtime_destroy(runtime);
  close_model(&o);
  return 0;
}
