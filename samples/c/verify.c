/* Writes what a model computes into a file of golden activations, and holds the model to it.
 *   verify MODEL.toml "text" GOLDEN.safetensors */
#include "common.h"

int main(int argc, char** argv) {
  if (argc < 4) return fprintf(stderr, "usage: %s MODEL.toml \"text\" GOLDEN.safetensors\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  const int64_t n = o.source.shape[1], outputs = o.info.outputs;
  int32_t begin = o.info.begin_id, lengths[2] = {(int32_t)n, 1};
  const attn_tensor target = {&begin, {1, 1}, {1, 1}, 0, 32, 1, 2, 1, 0};
  float* logits = calloc((size_t)outputs, sizeof *logits);
  const attn_tensor out = {logits, {1, 1, outputs}, {outputs, outputs, 1}, 2, 32, 1, 3, 1, 0};
  check(attnkit_model_forward(o.model, &o.source, &lengths[0], &target, &lengths[1], &out, &err));

  /* safetensors: the bytes of the header, the header, the data of all tensors. */
  char header[512];
  const long long a = 4 * n,
                  size = snprintf(header, sizeof header,
                                  "{\"source\":{\"dtype\":\"I32\",\"shape\":[1,%lld],\"data_offsets\":[0,%lld]},"
                                  "\"source_len\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[%lld,%lld]},"
                                  "\"target_len\":{\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[%lld,%lld]},"
                                  "\"target\":{\"dtype\":\"I32\",\"shape\":[1,1],\"data_offsets\":[%lld,%lld]},"
                                  "\"logits\":{\"dtype\":\"F32\",\"shape\":[1,1,%lld],\"data_offsets\":[%lld,%lld]}}",
                                  (long long)n, a, a, a + 4, a + 4, a + 8, a + 8, a + 12, (long long)outputs, a + 12,
                                  a + 12 + 4 * (long long)outputs);
  const uint64_t bytes = (uint64_t)size;
  FILE* file = fopen(argv[3], "wb");
  if (!file || fwrite(&bytes, 8, 1, file) != 1 || fwrite(header, 1, bytes, file) != bytes ||
      fwrite(o.ids, 4, (size_t)n, file) != (size_t)n || fwrite(lengths, 4, 2, file) != 2 ||
      fwrite(&begin, 4, 1, file) != 1 || fwrite(logits, 4, (size_t)outputs, file) != (size_t)outputs || fclose(file))
    return perror(argv[3]), 1;

  attnkit_text* json = NULL;
  check(attnkit_model_verify(o.model, argv[3], &json, &err));
  printf("%s\n", attnkit_text_data(json, NULL));
  attnkit_text_destroy(json);
  free(logits);
  close_model(&o);
  return 0;
}
