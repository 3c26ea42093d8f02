/* Writes down a recording.   transcribe MODEL.toml RECORDING.wav */
#include "common.h"

static uint32_t number(const char* bytes, int n) {
  uint32_t value = 0;
  while (n-- > 0) value = value << 8 | (unsigned char)bytes[n];
  return value;
}

/* The samples of a WAV file of 16 bits, one channel and this rate. */
static float* samples_of(const char* path, int32_t rate, int64_t* n) {
  size_t bytes = 0;
  char* file = contents(path, &bytes);
  float* samples = NULL;
  int good = 0; /* what the fmt chunk says */
  if (bytes < 12 || memcmp(file, "RIFF", 4) != 0 || memcmp(file + 8, "WAVE", 4) != 0) bytes = 0;
  for (size_t at = 12, size; !samples && at + 8 <= bytes; at += 8 + size + size % 2) {
    const char* chunk = file + at + 8;
    size = number(file + at + 4, 4);
    if (size > bytes - at - 8) size = bytes - at - 8;
    if (memcmp(file + at, "fmt ", 4) == 0)
      good = size >= 16 && number(chunk + 2, 2) == 1 && number(chunk + 4, 4) == (uint32_t)rate &&
             number(chunk + 14, 2) == 16;
    if (memcmp(file + at, "data", 4) != 0) continue;
    if (!good) break;
    *n = (int64_t)(size / 2);
    if (!(samples = malloc(size / 2 * sizeof *samples + 1))) exit(1);
    for (int64_t i = 0; i < *n; ++i) samples[i] = (float)(int16_t)number(chunk + 2 * i, 2) / 32768;
  }
  free(file);
  if (!samples) fprintf(stderr, "%s: no WAV file of 16 bits, one channel, %d Hz\n", path, rate), exit(1);
  return samples;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml RECORDING.wav\n", argv[0]), 2;
  attnkit_model_info info;
  attnkit_model* model = model_of(argv[1], &info);
  int64_t n = 0;
  float* samples = samples_of(argv[2], info.sample_rate, &n);
  int32_t* ids = malloc((size_t)info.max_length * sizeof *ids);
  if (!ids) return 1;
  const attn_tensor source = {samples, {1, n}, {n, 1}, 2, 32, 1, 2, 1, 0}; /* (1, n) f32 on the CPU */
  attnkit_session* session = NULL;
  attnkit_text* text = NULL;
  uint64_t made = 0;
  check(attnkit_session_create(model, 1, &session, &err));
  check(attnkit_session_read(session, &source, 1, &err));
  check(attnkit_session_generate(session, 0, ids, &made, &err));
  check(attnkit_model_detokenize(model, 1, ids, made, &text, &err));
  printf("%s\n", attnkit_text_data(text, NULL));
  attnkit_text_destroy(text);
  attnkit_session_destroy(session);
  attnkit_model_destroy(model);
  free(samples);
  free(ids);
  return 0;
}
