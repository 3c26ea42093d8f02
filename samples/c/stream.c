/* Translates while the source arrives, three tokens behind.   stream MODEL.toml "text" */
#include "common.h"

static uint32_t wait_3(uintptr_t context, const attnkit_stream_view* view) {
  (void)context;
  return view->ended || view->read >= 3 + view->written ? ATTNKIT_WRITE : ATTNKIT_READ;
}

static void show(uintptr_t context, const attnkit_stream_event* event) {
  (void)context;
  if (event->action == ATTNKIT_WRITE) printf("%lld %lld\n", (long long)event->read, (long long)event->written);
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\"\n", argv[0]), 2;
  opened o = open_model(argv, 1);
  const attnkit_stream_options options = {.struct_size = sizeof options, .decide = wait_3, .observe = show};
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
