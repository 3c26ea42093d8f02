/* Continues a text; what is drawn is shown at once.   complete MODEL.toml "text" [TOKENS [TEMPERATURE [STOP]]] */
#include "common.h"

typedef struct writer {
  const attnkit_model* model;
  int32_t* ids;
  uint64_t n, shown; /* shown: bytes */
  const char* stop;  /* NULL: none */
} writer;

/* A character may take several tokens; until the last of them it is U+FFFD.  So may the stop, which is not shown. */
static void show(writer* w, int all) {
  attnkit_text* text = NULL;
  uint64_t bytes = 0;
  check(attnkit_model_detokenize(w->model, 1, w->ids, w->n, &text, &err));
  const char* data = attnkit_text_data(text, &bytes);
  const int whole = all || bytes < 3 || memcmp(data + bytes - 3, "\xEF\xBF\xBD", 3) != 0;
  const char* found = w->stop ? strstr(data, w->stop) : NULL;
  if (found)
    bytes = (uint64_t)(found - data);
  else if (w->stop && !all)
    bytes -= bytes < strlen(w->stop) ? bytes : strlen(w->stop) - 1;
  if (whole && bytes > w->shown) {
    fwrite(data + w->shown, 1, (size_t)(bytes - w->shown), stdout);
    fflush(stdout);
    w->shown = bytes;
  }
  attnkit_text_destroy(text);
}

static uint32_t take(uintptr_t context, int32_t id) {
  writer* w = (writer*)context;
  w->ids[w->n++] = id;
  show(w, 0);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\" [TOKENS [TEMPERATURE [STOP]]]\n", argv[0]), 2;
  char *behind = "", *behind_it = "";
  const long tokens = argc > 3 ? strtol(argv[3], &behind, 10) : 64;
  const double temperature = argc > 4 ? strtod(argv[4], &behind_it) : 0.8;
  if (tokens < 0 || *behind || *behind_it)
    return fprintf(stderr, "%s: TOKENS must be a whole number from 0, TEMPERATURE a number\n", argv[0]), 2;
  attnkit_model_info info;
  attnkit_model* model = model_of(argv[1], &info);
  const size_t room = (size_t)info.max_length, most = (size_t)tokens < room ? (size_t)tokens : room;
  int32_t* ids = malloc(3 * room * sizeof *ids); /* the prompt, what is drawn, what was shown */
  if (!ids) return 1;
  const uint64_t begin = info.begin_id >= 0;
  uint64_t n = room - begin, made = 0;
  ids[0] = info.begin_id;
  check(attnkit_model_tokenize(model, 1, argv[2], ids + begin, &n, &err));

  writer w = {model, ids + 2 * room, 0, 0, argc > 5 ? argv[5] : NULL};
  const attnkit_sample_options options = {.struct_size = sizeof options,
                                          .limit = (uint32_t)most,
                                          .temperature = temperature,
                                          .top_p = 0.95,
                                          .seed = 1,
                                          .token = take,
                                          .token_context = (uintptr_t)&w,
                                          .stops = &w.stop,
                                          .n_stops = w.stop != NULL};
  attnkit_session* session = NULL;
  check(attnkit_session_create(model, 1, &session, &err));
  check(attnkit_session_sample(session, ids, begin + n, &options, ids + room, &made, &err));
  show(&w, 1);
  printf("\n");
  attnkit_session_destroy(session);
  attnkit_model_destroy(model);
  free(ids);
  return 0;
}
