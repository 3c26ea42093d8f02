/* Builds the structs of attnkit.h that hold pointers on C's stack: memory of Go may be lent to a call, but not in a
 * struct. */
#ifndef ATTNKIT_GO_SHIM_H
#define ATTNKIT_GO_SHIM_H
#include <attnkit/attnkit.h>
#include <stdlib.h>
#include <string.h>

/* A tensor without its data; ndim 0: there is none. */
typedef struct shim_shape {
  uint8_t code, bits;
  uint32_t ndim;
  int64_t shape[4];
} shim_shape;

static inline attn_tensor shim_tensor(const void* data, shim_shape s) {
  static char empty; /* NULL means that there is no tensor */
  attn_tensor t = {data ? (void*)data : &empty, {0}, {0}, s.code, s.bits, 1, s.ndim, 1, 0};
  int64_t stride = 1;
  for (int d = (int)s.ndim - 1; d >= 0; --d) {
    t.shape[d] = s.shape[d];
    t.stride[d] = stride;
    stride *= s.shape[d];
  }
  return t;
}

static inline int32_t shim_forward(const attnkit_model* model, const void* source, shim_shape s, const int32_t* s_len,
                                   const void* target, shim_shape t, const int32_t* t_len, float* out, shim_shape o,
                                   attn_error* err) {
  const attn_tensor from = shim_tensor(source, s), to = shim_tensor(target, t), made = shim_tensor(out, o);
  return attnkit_model_forward(model, s.ndim ? &from : NULL, s_len, t.ndim ? &to : NULL, t_len, &made, err);
}

static inline int32_t shim_encode(const attnkit_model* model, const void* source, shim_shape s, const int32_t* s_len,
                                  attnkit_encoded** encoded, attn_error* err) {
  const attn_tensor from = shim_tensor(source, s);
  return attnkit_model_encode(model, s.ndim ? &from : NULL, s_len, encoded, err);
}

static inline int32_t shim_decode(const attnkit_model* model, const attnkit_encoded* encoded, const void* target,
                                  shim_shape t, const int32_t* t_len, float* out, shim_shape o, attn_error* err) {
  const attn_tensor to = shim_tensor(target, t), made = shim_tensor(out, o);
  return attnkit_model_decode(model, encoded, t.ndim ? &to : NULL, t_len, &made, err);
}

static inline int32_t shim_attention(const attnkit_model* model, uint32_t role, uint32_t layer, const void* source,
                                     shim_shape s, const void* target, shim_shape t, float* out, shim_shape o,
                                     attn_error* err) {
  const attn_tensor from = shim_tensor(source, s), to = shim_tensor(target, t), made = shim_tensor(out, o);
  return attnkit_model_attention(model, role, layer, s.ndim ? &from : NULL, t.ndim ? &to : NULL, &made, err);
}

static inline int32_t shim_features(const attnkit_model* model, const float* samples, shim_shape s, float* frames,
                                    shim_shape f, uint64_t* n, attn_error* err) {
  const attn_tensor from = shim_tensor(samples, s), made = shim_tensor(frames, f);
  return attnkit_model_features(model, &from, f.ndim ? &made : NULL, n, err);
}

static inline int32_t shim_read(attnkit_session* session, const void* source, shim_shape s, uint32_t last,
                                attn_error* err) {
  const attn_tensor from = shim_tensor(source, s);
  return attnkit_session_read(session, &from, last, err);
}

static inline int32_t shim_read_all(attnkit_session* const* sessions, uint32_t n, const int32_t* source, shim_shape s,
                                    const int32_t* len, const uint32_t* last, attn_error* err) {
  const attn_tensor from = shim_tensor(source, s);
  return attnkit_sessions_read(sessions, n, &from, len, last, err);
}

static inline int32_t shim_write(attnkit_session* const* sessions, uint32_t n, const int32_t* tokens, shim_shape t,
                                 const int32_t* len, float* logits, shim_shape o, attn_error* err) {
  const attn_tensor from = shim_tensor(tokens, t), made = shim_tensor(logits, o);
  return attnkit_session_write(sessions, n, &from, len, o.ndim ? &made : NULL, err);
}

/* One token of one row, as a number: nothing of Go is lent but the logits.  NULL, or why not, for shim_free: memory for
 * an error costs a call that has none. */
static attn_error shim_no_memory = {sizeof(attn_error), ATTN_NO_MEMORY, -1, "out of memory"};
static inline void shim_free(attn_error* err) {
  if (err != &shim_no_memory) free(err);
}
static inline attn_error* shim_step(attnkit_session* session, int32_t token, float* logits, int64_t outputs) {
  const attn_tensor from = {&token, {1, 1}, {1, 1}, 0, 32, 1, 2, 1, 0};
  const attn_tensor made = {logits, {1, 1, outputs}, {outputs, outputs, 1}, 2, 32, 1, 3, 1, 0};
  attn_error err;
  err.struct_size = sizeof err;
  if (attnkit_session_write(&session, 1, &from, NULL, logits ? &made : NULL, &err) == ATTN_OK) return NULL;
  attn_error* const kept = (attn_error*)malloc(sizeof err);
  if (kept == NULL) return &shim_no_memory;
  *kept = err;
  return kept;
}

uint32_t goToken(uintptr_t context, int32_t id);
uint32_t goDecide(uintptr_t context, attnkit_stream_view* view);
void goObserve(uintptr_t context, attnkit_stream_event* event);
void goDiagnose(uintptr_t context, attnkit_diagnostic* diagnostic);

static inline int32_t shim_simulate(attnkit_session* session, const void* source, shim_shape s, uint32_t limit,
                                    uintptr_t context, const int64_t* ends, uint64_t units, int32_t* ids, uint64_t* n,
                                    attn_error* err) {
  const attn_tensor from = shim_tensor(source, s);
  const attnkit_stream_options options = {
      sizeof options,      limit, (attnkit_decide)goDecide, context, (attnkit_observe)goObserve, context,
      units ? ends : NULL, units};
  return attnkit_session_simulate(session, &from, &options, ids, n, err);
}

static inline int32_t shim_sample(attnkit_session* session, const int32_t* prompt, uint64_t n_prompt,
                                  attnkit_sample_options* options, const int32_t* seen, char** stops, uintptr_t context,
                                  int32_t* ids, uint64_t* n, attn_error* err) {
  attnkit_sample_options o = *options;
  o.struct_size = sizeof o;
  o.seen = seen;
  o.stops = (const char* const*)stops;
  o.token = goToken;
  o.token_context = context;
  return attnkit_session_sample(session, prompt, n_prompt, &o, ids, n, err);
}

static inline int32_t shim_runtime(uint32_t threads, const char* path, int32_t type, int32_t id,
                                   attnkit_runtime** runtime, attn_error* err) {
  const attnkit_runtime_options options = {sizeof options, threads, path, type, id};
  return attnkit_runtime_create(&options, runtime, err);
}

static inline int32_t shim_run(const attnkit_block* block, const attn_request* request, attn_run* run,
                               const int32_t* q_len, const int32_t* k_len, const int32_t* q_pos, const int32_t* k_pos,
                               const double* q_total, const double* k_total, const int32_t* visible,
                               const int32_t* slots, const attn_tensor* grads, attn_error* err) {
  attn_run r = *run;
  r.struct_size = sizeof r;
  r.q_len = q_len;
  r.k_len = k_len;
  r.q_pos = q_pos;
  r.k_pos = k_pos;
  r.q_total = q_total;
  r.k_total = k_total;
  r.visible = visible;
  r.slots = slots;
  if (!grads) return attnkit_block_run(block, request, &r, err);
  const attn_grad grad = {sizeof grad, 0, &r, grads};
  return attnkit_block_backward(block, request, &grad, err);
}
#endif
