/* Text through a model, in C99.   translate MODEL.toml "text" [plugin folder, absolute] */
#include <attnkit/attnkit.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(uintptr_t path, const attnkit_diagnostic* d) {
  fprintf(stderr, "%s:%d:%d: %s[AK%d]: %s\n", (const char*)path, d->line, d->column,
          d->severity == ATTNKIT_ERROR ? "error" : "warning", d->code, d->message);
  if (d->help) fprintf(stderr, "  help: %s\n", d->help);
}

int main(int argc, char** argv) {
  attnkit_runtime_options options = {sizeof options, 0, argc == 4 ? argv[3] : NULL, 0, 0};
  attnkit_model_info info = {.struct_size = sizeof info};
  attn_error err = {.struct_size = sizeof err};
  attnkit_runtime* runtime = NULL;
  attnkit_model* model = NULL;
  attnkit_session* session = NULL;
  attnkit_text *translation = NULL, *stats = NULL;
  int32_t* ids = NULL;
  uint64_t n = 0;
  int status = 1;

  if (argc < 3 || argc > 4) return fprintf(stderr, "usage: %s MODEL.toml \"text\" [plugin folder]\n", argv[0]), 2;
  if (attnkit_runtime_create(&options, &runtime, &err) ||
      attnkit_model_open(runtime, argv[1], show, (uintptr_t)argv[1], &model, &err) ||
      attnkit_model_get_info(model, &info, &err))
    goto done;
  ids = malloc((size_t)info.max_length * sizeof *ids);
  if (!ids) goto done;

  n = (uint64_t)info.max_length - 1; /* room for </s> */
  if (attnkit_model_tokenize(model, 0, argv[2], ids, &n, &err)) goto done;
  ids[n++] = info.end_id;
  const attn_tensor source = {ids, {1, (int64_t)n}, {(int64_t)n, 1}, 0, 32, 1, 2, 1, 0}; /* (1, n) int32 on the CPU */

  if (attnkit_session_create(model, 0, &session, &err) || attnkit_session_read(session, &source, 1, &err) ||
      attnkit_session_generate(session, 0, ids, &n, &err) ||
      attnkit_model_detokenize(model, 1, ids, n, &translation, &err) || attnkit_session_describe(session, &stats, &err))
    goto done;
  if (printf("%s\n%s\n", attnkit_text_data(translation, NULL), attnkit_text_data(stats, NULL)) > 0 && !fflush(stdout))
    status = 0;

done:
  if (status) fprintf(stderr, "%s: %s\n", argv[0], err.code ? err.message : strerror(errno));
  free(ids);
  attnkit_text_destroy(stats);
  attnkit_text_destroy(translation);
  attnkit_session_destroy(session);
  attnkit_model_destroy(model);
  attnkit_runtime_destroy(runtime);
  return status;
}
