/* Draws a continuation of the source's translation.   sample MODEL.toml "text" */
#include "common.h"

static uint32_t show(uintptr_t model, int32_t id) {
  attnkit_text* word = NULL;
  check(attnkit_model_detokenize((const attnkit_model*)model, 1, &id, 1, &word, &err));
  printf("%s ", attnkit_text_data(word, NULL));
  attnkit_text_destroy(word);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) return fprintf(stderr, "usage: %s MODEL.toml \"text\"\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  const attnkit_sample_options options = {.struct_size = sizeof options,
                                          .temperature = 0.8,
                                          .top_p = 0.95,
                                          .seed = 1,
                                          .token = show,
                                          .token_context = (uintptr_t)o.model};
  attnkit_session* session = NULL;
  uint64_t n = 0;
  check(attnkit_session_create(o.model, 1, &session, &err));
  check(attnkit_session_read(session, &o.source, 1, &err));
  check(attnkit_session_sample(session, NULL, 0, &options, o.ids, &n, &err));
  printf("\n");
  attnkit_session_destroy(session);
  close_model(&o);
  return 0;
}
