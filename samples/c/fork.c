/* One source read once, two continuations.   fork MODEL.toml "text" */
#include "common.h"

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\"\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  attnkit_session* sessions[2] = {NULL, NULL};
  uint64_t n = 0;
  check(attnkit_session_create(o.model, 1, &sessions[0], &err));
  check(attnkit_session_read(sessions[0], &o.source, 1, &err));
  check(attnkit_session_clone(sessions[0], &sessions[1], &err));
  for (int i = 0; i < 2; ++i) {
    check(attnkit_session_generate(sessions[i], 0, o.ids, &n, &err));
    print_ids(&o, o.ids, n);
    attnkit_session_destroy(sessions[i]);
  }
  close_model(&o);
  return 0;
}
