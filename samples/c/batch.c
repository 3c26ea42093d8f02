/* Whole sequences, several sessions in one call, rows, attention weights.   batch MODEL.toml "text" */
#include "common.h"

static float* floats(size_t n) {
  float* data = calloc(n, sizeof *data);
  if (!data) exit(1);
  return data;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\"\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  const int64_t outputs = o.info.outputs, n = o.source.shape[1];
  int32_t begin[2] = {o.info.begin_id, o.info.begin_id}, length = (int32_t)n;
  const attn_tensor one = {begin, {1, 1}, {1, 1}, 0, 32, 1, 2, 1, 0}, two = {begin, {2, 1}, {1, 1}, 0, 32, 1, 2, 1, 0};
  float *whole = floats((size_t)outputs), *rest = floats((size_t)outputs), *both = floats(2 * (size_t)outputs);
  attn_tensor out = {whole, {1, 1, outputs}, {outputs, outputs, 1}, 2, 32, 1, 3, 1, 0}, logits = out;

  /* Teacher forcing at once, and the encoder's part by itself. */
  attnkit_encoded* encoded = NULL;
  check(attnkit_model_forward(o.model, &o.source, &length, &one, NULL, &out, &err));
  check(attnkit_model_encode(o.model, &o.source, &length, &encoded, &err));
  out.data = rest;
  check(attnkit_model_decode(o.model, encoded, &one, NULL, &out, &err));
  attnkit_encoded_destroy(encoded);
  printf("decode is forward: %d\n", memcmp(whole, rest, (size_t)outputs * sizeof *whole) == 0);

  /* Two sessions read, write and go on to the end in one call each, then two rows of one session that change places. */
  attnkit_session *sessions[2] = {NULL, NULL}, *rows = NULL;
  for (int i = 0; i < 2; ++i) {
    check(attnkit_session_create(o.model, 1, &sessions[i], &err));
    check(attnkit_session_set_length(sessions[i], 12.5, &err));
  }
  int32_t* ids = calloc(2 * (size_t)n, sizeof *ids);
  if (!ids) exit(1);
  for (int i = 0; i < 2; ++i) memcpy(ids + i * n, o.source.data, (size_t)n * sizeof *ids);
  const attn_tensor sources = {ids, {2, n}, {n, 1}, 0, 32, 1, 2, 1, 0};
  check(attnkit_sessions_read(sessions, 2, &sources, NULL, NULL, &err));
  logits.data = both;
  logits.shape[0] = 2;
  check(attnkit_session_write(sessions, 2, &two, NULL, &logits, &err));
  printf("sessions agree: %d\n", memcmp(both, both + outputs, (size_t)outputs * sizeof *both) == 0);
  const uint64_t width = (uint64_t)o.info.max_length;
  uint64_t lengths[2];
  int32_t* made = calloc(2 * width, sizeof *made);
  if (!made) exit(1);
  check(attnkit_sessions_generate(sessions, 2, 0, 0, made, width, lengths, &err));
  if (lengths[0] != lengths[1] || memcmp(made, made + width, lengths[0] * sizeof *made) != 0)
    return fprintf(stderr, "sessions write different texts\n"), 1;
  free(made);
  const uint32_t parents[2] = {1, 0};
  check(attnkit_session_create(o.model, 2, &rows, &err));
  check(attnkit_session_read(rows, &o.source, 1, &err));
  check(attnkit_session_write(&rows, 1, &two, NULL, NULL, &err));
  check(attnkit_session_reorder(rows, parents, &err));
  for (int i = 0; i < 2; ++i) attnkit_session_destroy(sessions[i]);
  attnkit_session_destroy(rows);

  /* (4 heads, 1 query, n keys) of the first cross attention. */
  float* weights = floats(4 * (size_t)n);
  const attn_tensor map = {weights, {4, 1, n}, {n, n, 1}, 2, 32, 1, 3, 1, 0};
  check(attnkit_model_attention(o.model, ATTN_DECODER_CROSS, 1, &o.source, &one, &map, &err));
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += weights[i];
  printf("weights sum to %.3f\n", sum);
  free(whole), free(rest), free(both), free(weights), free(ids);
  close_model(&o);
  return 0;
}
