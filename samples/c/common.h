/* The common part of the samples: an end with the reason, a model and its source from the command line. */
#ifndef COMMON_H
#define COMMON_H
#include <attnkit/attnkit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_error err = {.struct_size = sizeof err};

static inline void check(int32_t code) {
  if (code == ATTN_OK) return;
  fprintf(stderr, "%s\n", err.message);
  exit(1);
}

/* All of a file, with a NUL behind it; *n: its bytes, n may be NULL. */
static inline char* contents(const char* path, size_t* n) {
  FILE* file = fopen(path, "rb");
  char* text = NULL;
  size_t size = 0, room = 0, got = 0;
  if (!file) perror(path), exit(1);
  do {
    size += got;
    if (size + 4096 > room) text = realloc(text, (room = 2 * size + 8192) + 1);
    if (!text) exit(1);
    got = fread(text + size, 1, room - size, file);
  } while (got > 0);
  if (ferror(file)) perror(path), exit(1); /* a folder, for instance */
  fclose(file);
  text[size] = '\0';
  if (n) *n = size;
  return text;
}

/* The model of a manifest. */
static inline attnkit_model* model_of(const char* path, attnkit_model_info* info) {
  attnkit_runtime* runtime = NULL;
  attnkit_model* model = NULL;
  check(attnkit_runtime_create(NULL, &runtime, &err));
  check(attnkit_model_open(runtime, path, NULL, 0, &model, &err));
  attnkit_runtime_destroy(runtime); /* the model keeps it */
  info->struct_size = sizeof *info;
  check(attnkit_model_get_info(model, info, &err));
  return model;
}

/* A model with the ids of a text, </s> included. */
typedef struct opened {
  attnkit_model* model;
  attnkit_model_info info;
  int32_t* ids; /* room for max_length */
  attn_tensor source;
} opened;

/* The model of the first argument, the second argument's ids; streaming: so that a source may grow. */
static inline opened open_model(char** argv, int streaming) {
  opened o = {.info = {.struct_size = sizeof o.info}};
  char *toml = contents(argv[1], NULL), *dir = malloc(strlen(argv[1]) + 3), *slash, *line = strchr(toml, '\n');
  attnkit_runtime* runtime = NULL;
  uint64_t n = 0;
  if (!dir) exit(1);
  strcpy(dir, argv[1]);
  if ((slash = strrchr(dir, '/')))
    slash[slash == dir] = '\0'; /* that of /model.toml stays */
  else
    strcpy(dir, ".");
  while (line && strncmp(line + strspn(line, " \t\r\n"), "[stream]", 8) != 0) line = strchr(line + 1, '\n');
  if (streaming && !line && (toml = realloc(toml, strlen(toml) + 40))) strcat(toml, "\n[stream]\nreplay = true\n");
  check(attnkit_runtime_create(NULL, &runtime, &err));
  check(attnkit_model_create(runtime, toml, dir, NULL, 0, &o.model, &err));
  attnkit_runtime_destroy(runtime); /* the model keeps it */
  check(attnkit_model_get_info(o.model, &o.info, &err));
  if (!(o.ids = malloc((size_t)o.info.max_length * sizeof *o.ids))) exit(1);
  n = (uint64_t)o.info.max_length - 1; /* room for </s> */
  check(attnkit_model_tokenize(o.model, 0, argv[2], o.ids, &n, &err));
  o.ids[n++] = o.info.end_id;
  const attn_tensor source = {o.ids, {1, (int64_t)n}, {(int64_t)n, 1}, 0, 32, 1, 2, 1, 0}; /* (1, n) int32 on the CPU */
  o.source = source;
  free(toml);
  free(dir);
  return o;
}

static inline void print_ids(const opened* o, const int32_t* ids, uint64_t n) {
  attnkit_text* text = NULL;
  check(attnkit_model_detokenize(o->model, 1, ids, n, &text, &err));
  printf("%s\n", attnkit_text_data(text, NULL));
  attnkit_text_destroy(text);
}

static inline void close_model(opened* o) {
  attnkit_model_destroy(o->model);
  free(o->ids);
}
#endif
