/* Compares texts with the first: cosines of their vectors.   embed MODEL.toml "text" "text" ... */
#include <math.h>

#include "common.h"

static void embed(const attnkit_model* model, const attnkit_model_info* info, const char* text, float* vector) {
  uint64_t n = (uint64_t)info->max_length;
  int32_t* ids = malloc((size_t)n * sizeof *ids);
  if (!ids) exit(1);
  --n; /* room for </s> */
  check(attnkit_model_tokenize(model, 0, text, ids, &n, &err));
  ids[n++] = info->end_id;
  const attn_tensor source = {ids, {1, (int64_t)n}, {(int64_t)n, 1}, 0, 32, 1, 2, 1, 0};
  const attn_tensor out = {vector, {1, info->outputs}, {info->outputs, 1}, 2, 32, 1, 2, 1, 0};
  check(attnkit_model_forward(model, &source, NULL, NULL, NULL, &out, &err));
  free(ids);
}

static double dot(const float* a, const float* b, int32_t n) {
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += (double)a[i] * b[i];
  return sum;
}

int main(int argc, char** argv) {
  if (argc < 4) return fprintf(stderr, "usage: %s MODEL.toml \"text\" \"text\" ...\n", argv[0]), 2;
  attnkit_model_info info;
  attnkit_model* model = model_of(argv[1], &info);
  float* vectors = malloc(2 * (size_t)info.outputs * sizeof *vectors);
  if (!vectors) return 1;
  float* other = vectors + info.outputs;
  embed(model, &info, argv[2], vectors);
  for (int i = 3; i < argc; ++i) {
    embed(model, &info, argv[i], other);
    const double lengths = dot(vectors, vectors, info.outputs) * dot(other, other, info.outputs);
    printf("%.4f %s\n", dot(vectors, other, info.outputs) / sqrt(lengths), argv[i]);
  }
  free(vectors);
  attnkit_model_destroy(model);
  return 0;
}
