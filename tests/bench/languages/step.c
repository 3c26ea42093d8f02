/* Prints the nanoseconds of a one-token call for each line that it reads.   step MODEL.toml STEPS */
#include <time.h>

#include "../../../samples/c/common.h"

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  attnkit_model_info info;
  attnkit_model* model = model_of(argv[1], &info);
  float* logits = malloc(sizeof *logits * (size_t)info.outputs);
  const attn_tensor out = {logits, {1, 1, info.outputs}, {info.outputs, info.outputs, 1}, 2, 32, 1, 3, 1, 0};
  const int steps = atoi(argv[2]);
  while (getchar() != EOF) {
    attnkit_session* session = NULL;
    check(attnkit_session_create(model, 1, &session, &err));
    const double start = now();
    for (int32_t i = 0; i < steps; ++i) {
      int32_t token = i % 16;
      const attn_tensor in = {&token, {1, 1}, {1, 1}, 0, 32, 1, 2, 1, 0};
      check(attnkit_session_write(&session, 1, &in, NULL, &out, &err));
    }
    printf("%.1f\n", (now() - start) / steps);
    fflush(stdout);
    attnkit_session_destroy(session);
  }
  attnkit_model_destroy(model);
  free(logits);
  return 0;
}
