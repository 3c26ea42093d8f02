/* Ends a call after two tokens; the flag may be set by a signal.   cancel MODEL.toml "text" */
#include <signal.h>

#include "common.h"

static volatile sig_atomic_t cancelled;

static uint32_t decide(uintptr_t context, const attnkit_stream_view* view) {
  (void)context;
  return cancelled ? ATTNKIT_STOP : view->ended ? ATTNKIT_WRITE : ATTNKIT_READ;
}

static void observe(uintptr_t context, const attnkit_stream_event* event) {
  (void)context;
  if (event->written == 2) cancelled = 1;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\"\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  const attnkit_stream_options options = {.struct_size = sizeof options, .decide = decide, .observe = observe};
  int32_t* made = malloc((size_t)o.info.max_length * sizeof *made);
  attnkit_session* session = NULL;
  uint64_t n = 0;
  if (!made) return 1;
  check(attnkit_session_create(o.model, 1, &session, &err));
  check(attnkit_session_simulate(session, &o.source, &options, made, &n, &err));
  print_ids(&o, made, n);
  attnkit_session_destroy(session);
  free(made);
  close_model(&o);
  return 0;
}
