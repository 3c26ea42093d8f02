/* Saves a session after its first token and goes on from the file.   save MODEL.toml "text" FILE */
#include "common.h"

int main(int argc, char** argv) {
  if (argc < 4) return fprintf(stderr, "usage: %s MODEL.toml \"text\" FILE\n", argv[0]), 2;
  opened o = open_model(argv, 0);
  attnkit_session *session = NULL, *restored = NULL;
  attnkit_blob* blob = NULL;
  uint64_t bytes = 0, first = 0, rest = 0;
  size_t size = 0;
  check(attnkit_session_create(o.model, 1, &session, &err));
  check(attnkit_session_read(session, &o.source, 1, &err));
  check(attnkit_session_generate(session, 1, o.ids, &first, &err));
  check(attnkit_session_save(session, &blob, &err));
  FILE* file = fopen(argv[3], "wb");
  const void* data = attnkit_blob_data(blob, &bytes);
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) return perror(argv[3]), 1;
  attnkit_blob_destroy(blob);
  attnkit_session_destroy(session);

  char* saved = contents(argv[3], &size);
  check(attnkit_session_load(o.model, saved, size, &restored, &err));
  check(attnkit_session_generate(restored, (uint32_t)o.info.max_length - (uint32_t)first, o.ids + first, &rest, &err));
  print_ids(&o, o.ids, first + rest);
  attnkit_session_destroy(restored);
  free(saved);
  close_model(&o);
  return 0;
}
