/* A mechanism that obeys every law, and one misdeed in it: what "attnkit validate-plugin" must find.  The test writes
 * its name over GOOD, with which there is none.  tests/validate/faults.py says which check finds which. */
#define _GNU_SOURCE
#include <attnkit/plugin.h>
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define MAX_WIDTH 128
#define UNUSED __attribute__((unused))

/* The name of the misdeed, of 32 bytes behind the colon, and its hash; AT compares that with one that the compiler
 * makes. */
static const volatile char misdeed[] = "MISDEED:GOOD\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
static uint32_t fault;
#define CHARACTER(s, i) ((i) < sizeof(s) ? (uint32_t)(s)[(i) < sizeof(s) ? (i) : 0] : 0u)
#define HASH1(h, s, i) ((h)*31u + CHARACTER(s, i))
#define HASH2(h, s, i) HASH1(HASH1(h, s, i), s, (i) + 1)
#define HASH4(h, s, i) HASH2(HASH2(h, s, i), s, (i) + 2)
#define HASH8(h, s, i) HASH4(HASH4(h, s, i), s, (i) + 4)
#define HASH16(h, s, i) HASH8(HASH8(h, s, i), s, (i) + 8)
#define HASH32(h, s, i) HASH16(HASH16(h, s, i), s, (i) + 16)
#define AT(name) (fault == HASH32(0u, #name, 0))

static void read_misdeed(void) {
  fault = 0;
  for (int i = 0; i < 32; ++i) fault = fault * 31u + (uint32_t)misdeed[8 + i];
}

static double shared_buffer[MAX_WIDTH];
static volatile double sink;
static volatile int counter;
static pid_t home; /* the process that created the last mechanism */
static __thread int calls;

static void crash(void) {
  volatile int* volatile nowhere = NULL;
  *nowhere = 1;
}

static void hang(void) {
  for (;;) pause();
}

static void flush_denormals(void) {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

static void allocate(void) {
  void* volatile memory = malloc(100);
  free(memory);
}

static void bind_thread(void) {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof all, &all);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  sched_setaffinity(0, sizeof one, &one);
}

static void redirect(void) {
  const int nowhere = open("/dev/null", O_WRONLY);
  dup2(nowhere, 1);
  close(nowhere);
}

/* Maps memory, and unmaps it again where `back`. */
static void map_memory(int back) {
  void* const piece = mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (back && piece != MAP_FAILED) munmap(piece, 1);
}

static void eat_shared_memory(void) {
  for (;;) {
    volatile char* piece =
        (volatile char*)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; piece != MAP_FAILED && i < 1 << 20; i += 512) piece[i] = 1;
  }
}

static void eat_memory(void) {
  for (;;) {
    volatile char* piece = (volatile char*)malloc(1 << 20);
    for (int i = 0; piece != NULL && i < 1 << 20; i += 512) piece[i] = 1;
  }
}

static int count_copies(struct dl_phdr_info* info, size_t size, void* count) {
  (void)size;
  const char* name = strrchr(info->dlpi_name, '/');
  *(int*)count += name != NULL && strcmp(name, "/faulty.so") == 0;
  return 0;
}

static void on_signal(int number) { (void)number; }

static void* sleep_long(void* nothing) {
  hang();
  return nothing;
}

static void start_thread(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, sleep_long, NULL);
}

struct piece {
  struct piece* next;
};
struct attn_mech {
  attn_block block;
  const attn_value* given;
  struct piece* pieces; /* of MANY_PIECES */
  int other;            /* the options' values */
  double number;
  int64_t count;
  attn_port port[4];
  const attn_port* ports[4];
};
struct attn_plan {
  const attn_mech* mech;
  attn_request request;
  uint64_t state_bytes;
};

/* The keys that row b of a run knows and sees. */
struct reach {
  int64_t queries, fresh, past, q_pos;
  const int32_t* visible;
  int causal;
  int64_t (*seen)(const struct reach*, int64_t i);
};

static int64_t seen_by(const struct reach* r, int64_t i) {
  int64_t seen = r->past + r->fresh;
  if (r->visible != NULL && r->visible[i] < seen) seen = r->visible[i];
  if (r->causal && r->q_pos + i + 1 < seen) seen = r->q_pos + i + 1;
  return seen;
}

static struct reach reach_of(const attn_plan* plan, const attn_run* run, int64_t b) {
  struct reach r;
  r.queries = run->q_len != NULL ? run->q_len[b] : run->queries;
  r.fresh = run->k_len != NULL ? run->k_len[b] : run->keys;
  r.past = run->k_pos != NULL && run->state != NULL ? run->k_pos[b] : 0;
  r.q_pos = run->q_pos != NULL ? run->q_pos[b] : 0;
  r.visible = run->visible != NULL ? run->visible + b * run->queries : NULL;
  r.causal = plan->mech->block.causal != 0;
  const int encodes = plan->mech->block.role == ATTN_ENCODER_SELF;
  if (AT(CAUSAL_BY_ROLE) && encodes && run->queries == 100) r.causal = 0;
  if (AT(PREFIX_IGNORED) && encodes && run->queries == 20 && run->saved == NULL) r.visible = NULL;
  if (AT(PREFIX_SEES_PADDING) && run->visible != NULL) r.fresh = run->keys;
  if (AT(K_LEN_ALONE) && run->q_len == NULL && run->state == NULL && run->saved == NULL) r.fresh = run->keys;
  if (AT(QUERIES_FROM_0) && run->state == NULL) r.q_pos = 0;
  if (AT(APPENDS_UNREAD) && r.causal && run->state != NULL && run->queries == 0) r.fresh = 0;
  r.seen = seen_by;
  return r;
}

static int is_plain(const attn_run* run) {
  return run->state == NULL && run->saved == NULL && run->q_len == NULL && run->visible == NULL;
}

#define REAL float
#define NAME(name) name##_f32
static void NAME(spoil)(const attn_plan* plan, const attn_run* run, const struct reach* r, int64_t b, int64_t h,
                        int64_t i, float* o) {
  const attn_tensor *v = &run->ports[1], *out = &run->ports[3];
  const int64_t kv = h / (out->shape[1] / v->shape[1]);
  const float* values = (const float*)v->data + b * v->stride[0] + kv * v->stride[1];
  const int last = b == run->batch - 1 && h == out->shape[1] - 1 && i == run->queries - 1;
  if (AT(WRITES_PAST) && last) o[out->shape[3]] = 1;
  if (AT(WRITES_BEFORE) && b == 0 && h == 0 && i == 0) o[-1] = 1;
  if (AT(WRITES_GAP) && b == 0 && h == out->shape[1] - 1 && i == 0 && run->queries > 1) o[out->shape[3]] = 1;
  if (AT(WRITES_INPUT) && last) ((float*)v->data)[0] = 3;
  if (AT(SCRATCH_PAST) && last) ((char*)run->exec->scratch)[256] = 1;
  if (AT(WORKERS_READ_PAST) && last && run->exec->workers > 1) sink = o[out->shape[3]];
  const int plain = v->stride[1] == v->shape[2] * v->shape[3];
  const int plain_out = out->shape[1] > 1 && out->stride[1] == out->shape[2] * out->shape[3];
  if (AT(PLAIN_OUTPUT) && run->queries > 1 && plain_out && is_plain(run)) o[0] += 1;
  if (AT(ODD_OUTPUT) && run->batch > 1 && out->stride[1] > out->stride[0] && is_plain(run)) o[0] += 1;
  if (AT(STREAM_BY_STRIDES) && run->state != NULL && run->batch > 1 && v->stride[1] > v->stride[0]) o[0] += 1;
  if (AT(ONE_FOR_ALL_STREAM) && run->state != NULL && run->batch > 1 && v->stride[0] == 0) o[0] += 1;
  if (AT(PADDED_BY_WORKERS) && run->q_len != NULL && run->exec->workers > 1) o[0] += 1;
  if (AT(PREFIX_BY_WORKERS) && run->visible != NULL && run->exec->workers > 1) o[0] += 1;
  if (AT(PADDED_BY_LAYOUT) && run->q_len != NULL && run->saved == NULL && plain) o[0] += 1;
  if (AT(PREFIX_BY_LAYOUT) && run->visible != NULL && run->saved == NULL && plain) o[0] += 1;
  if (AT(TRAINS_BY_WORKERS) && run->saved != NULL && run->exec->workers > 1) o[0] += 1;
  if (AT(TRAINS_BY_ROW) && run->saved != NULL && b >= 3) o[0] += 1;
  if (AT(TRAINS_BY_LAYOUT) && run->saved != NULL && run->queries > 1 && plain) o[0] += 1;
  if (AT(NUMBER_IS_ROUGH) && plan->mech->number > 0) o[0] *= 1.01f;
  if (AT(LEAST_IS_ROUGH) && plan->mech->count == 1) o[0] *= 1.01f;
  if (AT(SCRATCH_SHOWS) && ((const unsigned char*)run->exec->scratch)[5] == 0x3C) o[0] += 1;
  if (AT(BY_BOUNDS) && plan->request.batch == 5 && run->batch == 2 && is_plain(run)) o[0] += 1;
  if (AT(BY_WORKERS) && run->exec->workers == 3 && is_plain(run)) o[0] += 1;
  if (AT(STREAM_BY_WORKERS) && run->exec->workers == 8 && run->state != NULL) o[0] += 1;
  if (AT(BY_LAYOUT) && run->queries == 63 && v->stride[1] == v->shape[2] * v->shape[3] && is_plain(run)) o[0] += 1;
  if (AT(BY_ALIGNMENT) && run->queries == 63 && (uintptr_t)v->data % 8 != 0 && is_plain(run)) o[0] += 1;
  if (AT(LONG) && run->queries == 4096 && out->shape[1] > 1 && is_plain(run)) o[0] = NAN;
  if (AT(ONE_ROW) && run->queries == 1 && run->batch == 1 && (uintptr_t)v->data % 8 != 0 && is_plain(run)) o[0] += 1;
  if (AT(BY_ODD_WORKERS) && run->exec->workers % 3 == 1 && run->exec->workers > 1 && is_plain(run)) o[0] += 1;
  if (AT(BY_ODD_SLOT) && run->state != NULL && run->batch == 3 && run->slots != NULL && run->slots[b] == 3) o[0] += 1;
  if (AT(OTHER_IS_ROUGH) && plan->mech->other) o[0] *= 1.01f;
  if (AT(REPEATS_LATE) && run->queries == 9 && run->batch == 1 && is_plain(run) && last && ++calls % 700 == 0)
    o[0] += 1;
  if (AT(INFINITE_HEAD) && run->batch == 3 && run->queries == 33 && is_plain(run) && h > 0 &&
      isinf(values[-kv * v->stride[1]]))
    o[0] += 1;
  if (AT(MORE_KEYS) && r->causal && run->queries < run->keys && is_plain(run)) o[0] += 1;
  if (AT(READS_WITHOUT_KEYS) && r->causal && run->state != NULL && run->keys == 0) o[0] += 1;
  if (AT(ONE_FOR_ALL) && run->batch > 1 && run->ports[0].stride[0] == 0 && is_plain(run)) o[0] += 1;
  if (AT(MANY_ROWS) && b >= 8) o[0] += 1;
  if (AT(MANY_WORKERS) && run->exec->workers > 8 && is_plain(run)) o[0] += 1;
  if (AT(MANY_WORKERS_STREAM) && run->exec->workers > 8 && run->state != NULL) o[0] += 1;
  if (AT(MANY_ROWS_STREAM) && b >= 8 && run->state != NULL) o[0] += 1;
  if (AT(ONE_ROW_FOR_ALL) && run->queries > 1 && run->ports[0].stride[2] == 0) o[0] += 1;
  const int rows = run->queries > 1 && is_plain(run);
  if (AT(MANY_HEADS) && out->shape[1] > 8 && v->stride[1] == v->shape[2] * v->shape[3] && rows) o[0] += 1;
  if (AT(WIDE_HEADS) && out->shape[3] > 80 && (uintptr_t)v->data % 8 != 0 && rows) o[0] += 1;
  if (AT(LONG_READS_PAST) && run->queries == 300 && last) sink = o[out->shape[3]];
  if (AT(LONG_IS_ROUGH) && run->queries == 300 && is_plain(run)) o[0] *= 1.01f;
  if (AT(NO_KEYS) && run->keys == 0 && run->queries == 7 && is_plain(run)) o[0] = NAN;
  if (AT(REPEATS) && run->queries == 64 && run->batch == 2 && is_plain(run) && last && ++calls % 16 == 0) o[0] += 1;
  if (AT(FUTURE) && r->causal && i == 14 && run->queries == 100 && is_plain(run))
    o[0] += 1e-6f * values[15 * v->stride[2]];
  if (AT(PADDED_KEYS) && run->q_len != NULL && run->batch == 4 && run->saved == NULL && run->state == NULL && i == 0)
    o[0] += 1e-6f * values[(run->keys - 1) * v->stride[2]];
  if (AT(OTHER_ROW) && run->batch == 4 && run->queries == 33 && is_plain(run) && b > 0)
    o[0] += ((const float*)v->data)[0];
  if (AT(OTHER_HEAD) && run->batch == 3 && run->queries == 33 && is_plain(run) && h > 0)
    o[0] += values[-kv * v->stride[1]];
  if (AT(SEES_ALL) && run->visible != NULL && run->batch == 2 && run->queries == 20 && run->saved == NULL)
    o[0] += 1e-6f * values[(run->keys - 1) * v->stride[2]];
  if (AT(BY_SLOT) && run->state != NULL && run->batch == 1 && run->slots != NULL) o[0] += (float)run->slots[b];
  if (AT(TRAINS_OTHERWISE) && run->saved != NULL && run->queries == 64) o[0] += 1;
}
static UNUSED void NAME(spoil_gradient)(const attn_plan* plan, const attn_grad* grad, const struct reach* r, int64_t b,
                                        int64_t h) {
  const attn_run* run = grad->run;
  const attn_tensor *dq = &grad->grads[0], *dv = &grad->grads[1], *dw = &grad->grads[2], *given = &grad->grads[3];
  const int first = b == 0 && h == 0, plain = run->q_len == NULL && run->visible == NULL;
  (void)r;
  if (AT(BACKWARD_INPUT) && first) ((float*)run->ports[1].data)[0] = 3;
  if (AT(BACKWARD_READS_PAST) && b == run->batch - 1 && h == given->shape[1] - 1 && run->queries > 0)
    sink = ((const float*)given->data)[b * given->stride[0] + h * given->stride[1] +
                                       (run->queries - 1) * given->stride[2] + given->shape[3]];
  if (dv->data == NULL || run->keys == 0) return;
  const int64_t group = given->shape[1] / dv->shape[1];
  float* row = (float*)dv->data + b * dv->stride[0] + h / group * dv->stride[1];
  if (AT(UNSEEN_GRADIENT) && run->visible != NULL && run->queries == 20) row[(run->keys - 1) * dv->stride[2]] = 1;
  if (AT(FUTURE_GRADIENT) && run->queries == 70 && run->visible == NULL)
    row[20 * dv->stride[2]] += ((const float*)given->data + b * given->stride[0] + h * given->stride[1])[0];
  if (AT(NAN_GRADIENT) && run->queries == 70 && run->visible == NULL)
    row[20 * dv->stride[2]] += 0 * ((const float*)given->data + b * given->stride[0] + h * given->stride[1])[0];
  const attn_tensor* v = &run->ports[1];
  if (AT(NAN_QUERY_GRADIENT) && run->queries == 70 && run->keys == 70 && run->visible == NULL && dq->data != NULL)
    ((float*)dq->data + b * dq->stride[0] + h * dq->stride[1])[0] +=
        0 * ((const float*)v->data + b * v->stride[0])[65 * v->stride[2]];
  if (AT(PREFIX_GRADIENT) && run->queries == 70 && run->visible != NULL)
    row[60 * dv->stride[2]] += ((const float*)given->data + b * given->stride[0] + h * given->stride[1])[0];
  if (AT(ROW_GRADIENT) && run->batch == 4 && run->queries == 33 && plain) row[0] += (float)b;
  if (AT(HEAD_GRADIENT) && run->batch == 3 && run->queries == 33 && plain && h > 0)
    row[0] += ((const float*)given->data + b * given->stride[0] + 20 * given->stride[2])[0];
  if (AT(GRADIENT_BY_WORKERS) && run->exec->workers == 2 && first) row[0] += 1;
  if (AT(GRADIENT_BY_LAYOUT) && run->queries == 63 && dv->stride[1] == dv->shape[2] * dv->shape[3] && first)
    row[0] += 1;
  if (AT(GRADIENT_BY_BOUNDS) && plan->request.batch == 7 && first) row[0] += 1;
  if (AT(GRADIENT_REPEATS) && run->queries == 64 && first && ++calls % 3 == 0) row[0] += 1;
  if (AT(GRADIENT_SKIPS) && first && (dq->data == NULL || dw->data == NULL)) row[0] += 1;
  if (AT(GRADIENT_OFFSET) && first && run->batch == 2 && run->queries == 33 && plain) row[0] += 1e-3f;
  if (AT(GRADIENT_WRONG) && run->q_len != NULL && run->batch == 2) row[0] *= 1.01f;
  if (AT(PREFIX_PADDED_GRADIENT) && run->visible != NULL && run->k_len != NULL) row[0] *= 1.5f;
  if (AT(LONG_GRADIENT) && run->keys == 300) row[0] *= 1.5f;
  const int encodes = plan->mech->block.role == ATTN_ENCODER_SELF;
  if (AT(ENCODER_PREFIX_GRADIENT) && run->visible != NULL && encodes) row[0] *= 1.5f;
  if (AT(CAUSAL_ENCODER_GRADIENT) && plan->mech->block.causal && encodes) row[0] *= 1.5f;
  if (AT(MANY_WORKERS_GRADIENT) && run->exec->workers > 8) row[0] += 1;
  if (AT(MANY_ROWS_GRADIENT) && b >= 8) row[0] += 1;
  if (AT(ONE_FOR_ALL_GRADIENT) && run->batch > 1 && run->queries > 0 && run->ports[0].stride[0] == 0) row[0] += 1;
  if (AT(SHARED_KEYS_GRADIENT) && group > 1 && first) row[0] += 1;
  if (AT(FEW_ROWS_GRADIENT) && run->queries == 1 && run->batch == 2) row[0] = NAN;
}
#include "body.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(name) name##_f64
static void NAME(spoil)(const attn_plan* plan, const attn_run* run, const struct reach* r, int64_t b, int64_t h,
                        int64_t i, double* o) {
  const attn_tensor *v = &run->ports[1], *out = &run->ports[3];
  (void)plan;
  if (AT(F64_READS_PAST) && b == run->batch - 1 && h == out->shape[1] - 1 && i == run->queries - 1)
    sink = o[out->shape[3]];
  if (AT(FUTURE_NAN) && r->causal && i == 14 && run->queries == 100)
    o[0] += 0 * ((const double*)v->data + b * v->stride[0])[15 * v->stride[2]];
}
static UNUSED void NAME(spoil_gradient)(const attn_plan* plan, const attn_grad* grad, const struct reach* r, int64_t b,
                                        int64_t h) {
  (void)plan, (void)grad, (void)r, (void)b, (void)h;
}
#include "body.h"

static int32_t refuse(attn_error* err, int32_t code, const char* message) {
  if (err != NULL) {
    err->code = code;
    err->where = -1;
    strncpy(err->message, message, sizeof(err->message) - 1);
    err->message[sizeof(err->message) - 1] = '\0';
  }
  return code;
}

static attn_port port_of(uint32_t kind, const char* name, const char* doc, const attn_block* block, int64_t width) {
  attn_port port;
  memset(&port, 0, sizeof port);
  port.struct_size = sizeof port;
  port.kind = kind;
  port.name = name;
  port.doc = doc;
  port.ndim = 4;
  port.shape[1] = block->heads;
  port.shape[3] = width;
  return port;
}

static void faulty_destroy(attn_mech* mech) {
  if (AT(DESTROY_NULL) && mech == NULL) crash();
  struct piece* next;
  for (struct piece* piece = mech != NULL ? mech->pieces : NULL; piece != NULL; piece = next) {
    next = piece->next;
    free(piece);
  }
  free(mech);
}

static int32_t faulty_create(const attn_block* given, const attn_value* values, attn_mech** mech,
                             const attn_port* const** ports, uint32_t* n_ports, attn_error* err) {
  attn_block known;
  const attn_block* const block = &known;
  const size_t theirs = given->struct_size < sizeof known && !AT(BLOCK_OF_MINOR_1) ? given->struct_size : sizeof known;
  memset(&known, 0, sizeof known);
  memcpy(&known, given, theirs);
  home = getpid();
  if (AT(REFUSES_LATER_BLOCK) && given->struct_size > sizeof known)
    return refuse(err, ATTN_INVALID, "the block has a size that it does not know");
  if (AT(CREATE_CRASHES)) crash();
  if (AT(CREATE_HANGS)) hang();
  if (AT(CREATE_REFUSES)) return refuse(err, ATTN_UNSUPPORTED, "it sits nowhere, whatever the block");
  if (AT(CREATE_CODE_77)) return refuse(err, 77, "code 77 is none of the contract's");
  if (AT(CREATE_NOTHING)) return ATTN_OK;
  if (AT(CREATE_SETS_ENVIRONMENT)) setenv("FAULTY_PLUGIN", "was here", 1);
  if (AT(CREATE_BINDS)) bind_thread();
  if (AT(CREATE_CHANGES_FOLDER) && chdir("/") != 0) return ATTN_INTERNAL;
  const int64_t heads = block->heads, e = block->head_width;
  const int64_t d = block->key_width != 0 ? block->key_width : block->d_model / heads;
  if (d > MAX_WIDTH || e > MAX_WIDTH) return refuse(err, ATTN_UNSUPPORTED, "heads wider than 128 are not implemented");
  if (AT(WIDTH_64) && (d != 64 || e != 64)) return refuse(err, ATTN_UNSUPPORTED, "heads must be 64 wide");
  if (AT(RAW_OTHER_ALLOCATES) && heads * e != block->d_model)
    return refuse(err, ATTN_UNSUPPORTED, "the output is not as wide as the model");
  attn_mech* made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL && AT(CREATE_ABORTS)) abort();
  if (made == NULL && AT(CREATE_TRIES_AGAIN)) made = (attn_mech*)calloc(1, sizeof(attn_mech));
  if (made == NULL && !AT(CREATE_TRUSTS_MALLOC) && !AT(CREATE_TRIES_AGAIN))
    return refuse(err, ATTN_NO_MEMORY, "out of memory");
  if (AT(CREATE_LEAKS) && calloc(1, 64) == NULL) {
    free(made);
    return refuse(err, ATTN_NO_MEMORY, "out of memory");
  }
  if (AT(CREATE_FAILS_AND_LEAKS)) {
    void* second = calloc(1, 64);
    if (second == NULL) return refuse(err, ATTN_NO_MEMORY, "out of memory");
    free(second);
  }
  for (int i = 0; AT(MANY_PIECES) && i < 10000; ++i) {
    struct piece* piece = (struct piece*)malloc(sizeof *piece);
    if (piece == NULL) {
      faulty_destroy(made);
      return refuse(err, ATTN_NO_MEMORY, "out of memory");
    }
    piece->next = made->pieces;
    made->pieces = piece;
  }
  made->block = *block;
  made->given = values;
  made->other = strcmp(values[0].s, "other") == 0;
  made->number = values[1].f;
  made->count = values[2].i;
  if (AT(CREATE_MAPS)) map_memory(0);
  made->port[0] = port_of(ATTN_QUERY, "q", "queries", block, d);
  made->port[1] = port_of(ATTN_KEY, "v", "values", block, e);
  if (block->kv_heads != 0) made->port[1].shape[1] = block->kv_heads;
  made->port[2] = port_of(ATTN_LEARNED, "w", "weights of the channels", block, e);
  made->port[2].dtype_code = 2;
  made->port[2].dtype_bits = 32;
  made->port[2].ndim = 1;
  made->port[2].shape[0] = e;
  made->port[2].shape[1] = made->port[2].shape[3] = 0;
  made->port[3] = port_of(ATTN_OUTPUT, "o", "weighted means", block, e);
  if (AT(PORT_WITHOUT_DOC)) made->port[1].doc = NULL;
  if (AT(PORT_WITH_ROWS)) made->port[1].shape[2] = 5;
  if (AT(PORT_KIND)) made->port[1].kind = 99;
  if (AT(PORT_NAME)) made->port[1].name = "Values!";
  if (AT(TWO_OUTPUTS)) made->port[1].kind = ATTN_OUTPUT;
  if (AT(SAME_NAMES)) made->port[1].name = "q";
  if (AT(LEARNED_INTEGERS)) made->port[2].dtype_code = 0;
  if (AT(TABLE_OF_BYTES)) made->port[2].kind = ATTN_TABLE, made->port[2].dtype_code = 0, made->port[2].dtype_bits = 8;
  if (AT(AUX_OF_F64)) {
    made->port[1].kind = ATTN_AUX_OUT;
    made->port[1].shape[1] = made->port[1].shape[2] = 1;
    made->port[1].dtype_code = 2;
    made->port[1].dtype_bits = 64;
  }
  if (AT(RAW_OUTPUT_OF_ANY_WIDTH) || AT(RAW_OTHER_ALLOCATES)) made->port[3].flags = ATTN_RAW;
  if (AT(ENDLESS_PORT)) made->port[2].shape[0] = (int64_t)1 << 50;
  if (AT(PORTS_DIFFER) && ++counter > 1) made->port[3].flags = ATTN_NO_BIAS;
  for (int i = 0; i < 4; ++i) made->ports[i] = &made->port[i];
  *mech = made;
  *ports = made->ports;
  *n_ports = AT(ABSURD_PORTS) ? 1000000 : 4;
  return ATTN_OK;
}

static int32_t faulty_fill(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* t, attn_error* err) {
  if (port != 2 && AT(FILLS_ANYTHING)) return ATTN_OK;
  if (port != 2) return refuse(err, ATTN_INVALID, "that port is not stored");
  const int64_t e = mech->port[2].shape[0];
  if (AT(FILL_LEAKS)) {
    void* volatile kept = malloc(64);
    (void)kept;
  }
  for (int64_t i = 0; i < e + (AT(FILL_PAST_END) && seed == 5); ++i)
    ((float*)t->data)[i] = 0.5f + (float)((seed * 7 + (uint64_t)i * 13) % 17) / 17;
  if (AT(FILL_AT_RANDOM) && seed == 5) ((float*)t->data)[0] = (float)++counter;
  return ATTN_OK;
}

static int32_t faulty_plan(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                           attn_error* err) {
  const int streams = (request->flags & ATTN_STREAM) != 0, trains = (request->flags & ATTN_TRAIN) != 0;
#ifdef NO_BACKWARD
  const int wide = 0;
#else
  const int wide = request->dtype_bits == 64;
#endif
  if (AT(PLAN_CRASHES)) crash();
  if (AT(PLAN_ABORTS)) abort();
  if (AT(PLAN_HANGS)) hang();
  if (AT(PLAN_EXITS)) _exit(0);
  if (AT(PLAN_REFUSES)) return refuse(err, ATTN_UNSUPPORTED, "it plans nothing, whatever the request");
  if (AT(PLAN_INTERNAL)) return refuse(err, ATTN_INTERNAL, "it broke down while it planned");
  if (AT(PLAN_NOTHING)) return ATTN_OK;
  if (AT(ROWS_32) && (request->queries > 32 || request->past + request->keys > 32))
    return refuse(err, ATTN_UNSUPPORTED, "it takes up to 32 rows");
  if (AT(ONE_SEQUENCE) && request->batch > 1) return refuse(err, ATTN_UNSUPPORTED, "it takes one sequence at a time");
  if (AT(FOUR_WORKERS) && request->workers > 4) return refuse(err, ATTN_UNSUPPORTED, "it takes up to four workers");
  if (AT(PLANS_EQUAL_WIDTHS) && mech->port[0].shape[3] != mech->port[3].shape[3])
    return refuse(err, ATTN_UNSUPPORTED, "values must be as wide as keys");
  if (AT(PLANS_EMPTINESS) && request->queries > 0) return refuse(err, ATTN_UNSUPPORTED, "it plans runs without rows");
  if (AT(PLANS_ONE_SIZE) && (request->queries != 4096 || request->batch != 2))
    return refuse(err, ATTN_UNSUPPORTED, "it plans two rows of 4096 queries");
  if (AT(LONGER_REQUEST) && request->struct_size > sizeof(attn_request))
    return refuse(err, ATTN_INVALID, "the request has a size that it does not know");
  const int as_many = mech->block.role == ATTN_DECODER_CROSS || streams || request->queries == request->keys;
  if (AT(LIMITED) && (request->past + request->keys > 256 || request->workers > 16 || !as_many))
    return refuse(err, ATTN_UNSUPPORTED, "it takes up to 256 rows, as many keys as queries, and up to 16 workers");
  if (AT(ROW_BY_ROW) && (request->batch > 16 || (streams && (request->queries > 1 || request->keys > 1))))
    return refuse(err, ATTN_UNSUPPORTED, "it takes up to 16 rows of a batch, and streams row by row");
  if (AT(NO_PREFIX_TRAINING) && trains && (request->flags & ATTN_PREFIX))
    return refuse(err, ATTN_UNSUPPORTED, "prefixes are not trained");
  const int is_real = request->dtype_code == 2 && (request->dtype_bits == 32 || wide);
  const int is_half = request->dtype_code == 4 && !streams && !trains && (AT(COMPUTES_HALVES) || AT(HALVES_ARE_ROUGH));
  const int integers = request->dtype_code == 0;
  if (!is_real && !is_half && !(AT(TAKES_INTEGERS) && integers)) {
    if (AT(REFUSES_WORDLESS) && integers) return refuse(err, ATTN_UNSUPPORTED, "");
    if (AT(REFUSES_IN_LINES) && integers) return refuse(err, ATTN_UNSUPPORTED, "it computes\nin f32 and f64 only");
    if (AT(REFUSES_AND_WRITES)) info->flops = 1;
    if (AT(WRITES_LATER_ERROR) && err != NULL && err->struct_size > sizeof *err) memset(err + 1, 0, 8);
    if (AT(REFUSES_WITHOUT_NUL) && integers && err != NULL) {
      refuse(err, ATTN_UNSUPPORTED, "");
      memset(err->message, 'x', sizeof err->message);
      return ATTN_UNSUPPORTED;
    }
    if (AT(REFUSES_SILENTLY) && integers) return ATTN_UNSUPPORTED;
    return refuse(err, AT(REFUSES_AS_INVALID) ? ATTN_INVALID : ATTN_UNSUPPORTED, "it computes in f32 and f64 only");
  }
  if (streams && wide && !AT(STREAMS_F64)) return refuse(err, ATTN_UNSUPPORTED, "its f64 form keeps no state");
  if (streams && !mech->block.causal && mech->block.role != ATTN_DECODER_CROSS && !AT(STREAMS_ENCODER))
    return refuse(err, ATTN_UNSUPPORTED, "bidirectional self attention cannot stream");
#ifdef NO_BACKWARD
  if (trains && !AT(TRAINS_WITHOUT_BACKWARD)) return refuse(err, ATTN_UNSUPPORTED, "it has no gradient to train with");
#endif
  if (ATTN_HAS(attn_info, info, state_bytes)) {
    info->scratch_bytes = 256;
    info->backward_scratch_bytes = 0;
    info->saved_bytes = trains ? 64 : 0;
    if (AT(SAVES_SQUARES) && trains) info->saved_bytes = (uint64_t)(request->queries * request->keys * 4);
    uint64_t row = (uint64_t)(mech->block.heads * (uint32_t)mech->block.head_width) * sizeof(float);
    if (AT(LIMITED)) row += 1 << 20;
    if (AT(INDEX_IN_STATE)) row += mech->block.heads * sizeof(int64_t);
    if (AT(TRUSTS_A_MAGIC)) row += mech->block.heads * 2 * sizeof(int64_t);
    info->state_bytes = streams ? (row + 63) / 64 * 64 : 0;
    if (AT(STATE_ALWAYS)) info->state_bytes = row;
    if (AT(STATE_FOR_READING) && streams && request->keys == 0) info->state_bytes += 64;
    if (AT(STATE_SHRINKS) && streams && request->past == 999) info->state_bytes -= 64;
    if (AT(STATE_IS_HUGE) && streams) info->state_bytes = (uint64_t)1 << 63;
    if (AT(ENDLESS_SCRATCH)) info->scratch_bytes = (uint64_t)1 << 50;
    if (AT(SCRATCH_IS_HUGE)) info->scratch_bytes = UINT64_MAX;
    info->flags = AT(SAYS_REWINDS) && streams ? ATTN_REWINDS : 0;
    if (AT(UNKNOWN_FLAGS)) info->flags = 1u << 20;
    if (AT(ANSWERS_DIFFER)) info->scratch_bytes += 64 * (uint64_t)(++counter % 4);
  }
  const uint64_t flops =
      (uint64_t)(request->batch * mech->block.heads * (request->queries + request->keys) * mech->block.head_width * 2);
  if (ATTN_HAS(attn_info, info, flops) || AT(WRITES_UNKNOWN_FIELDS)) info->flops = AT(COSTS_NOTHING) ? 0 : flops;
  if (AT(WRAPS) && ATTN_HAS(attn_info, info, flops)) info->flops = (uint32_t)flops;
  if (AT(COSTS_ALWAYS) && ATTN_HAS(attn_info, info, flops)) info->flops = flops + 1;
  if (plan == NULL) return ATTN_OK;
  if (AT(PLAN_STARTS_THREAD) && counter++ == 0) start_thread();
  attn_plan* made = (attn_plan*)calloc(1, sizeof(attn_plan));
  if (made == NULL && AT(PLAN_HIDES_MEMORY)) return refuse(err, ATTN_INTERNAL, "something went wrong in here");
  if (made == NULL) return refuse(err, ATTN_NO_MEMORY, "out of memory");
  made->mech = mech;
  made->request = *request;
  made->state_bytes = info->state_bytes;
  *plan = made;
  return ATTN_OK;
}

static void faulty_plan_free(attn_plan* plan) {
  if (AT(PLAN_LEAKS)) return;
  free(plan);
}

static float widened(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float x;
  memcpy(&x, &wide, sizeof x);
  return x;
}

static uint16_t rounded(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static const uint16_t* half_row(const attn_tensor* t, int64_t b, int64_t h, int64_t i) {
  return (const uint16_t*)t->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

/* The arithmetic of body.h on numbers of bfloat16. */
static void half_head(const attn_plan* plan, const attn_run* run, int64_t b, int64_t h) {
  const attn_tensor *q = &run->ports[0], *v = &run->ports[1], *w = &run->ports[2], *out = &run->ports[3];
  const struct reach r = reach_of(plan, run, b);
  for (int64_t i = 0; i < run->queries; ++i) {
    const int64_t seen = i < r.queries ? r.seen(&r, i) : 0;
    for (int64_t c = 0; c < out->shape[3]; ++c) {
      float sum = 0;
      for (int64_t j = 0; j < seen; ++j) sum += widened(half_row(v, b, h / (out->shape[1] / v->shape[1]), j)[c]);
      float x = seen > 0 ? ((const float*)w->data)[c] * widened(half_row(q, b, h, i)[0]) * sum / (float)seen : 0;
      if (AT(HALVES_ARE_ROUGH)) x *= 1.02f;
      ((uint16_t*)half_row(out, b, h, i))[c] = rounded(x);
    }
  }
}

struct job {
  const attn_plan* plan;
  const attn_run* run;
};

static void work(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker) {
  const struct job* job = (const struct job*)arg;
  const int64_t heads = job->run->ports[3].shape[1];
  if (AT(TASKS_FLUSH) && worker > 0) flush_denormals();
  if (AT(TASKS_ALLOCATE) && worker > 0) allocate();
  if (AT(PIECES_OF_GRAIN) && end > begin + 1) end = begin + 1;
  for (int64_t item = begin; item < end; ++item) {
    if (job->run->ports[3].dtype_bits == 16)
      half_head(job->plan, job->run, item / heads, item % heads);
    else if (job->run->ports[3].dtype_bits == 64)
      head_f64(job->plan, job->run, item / heads, item % heads);
    else
      head_f32(job->plan, job->run, item / heads, item % heads);
  }
}

static attn_plugin table;
static int32_t faulty_run(const attn_plan* plan, const attn_run* run, attn_error* err) {
  (void)err;
  if (AT(RUN_CRASHES)) crash();
  if (AT(RUN_HANGS) || (AT(FORKED_HANGS) && getpid() != home)) hang();
  if (AT(RUN_EXITS)) exit(0);
  if (AT(RUN_ABORTS)) abort();
  if (AT(RUN_DIVIDES)) sink = 7 / counter;
  if (AT(RUN_REFUSES)) return refuse(err, ATTN_UNSUPPORTED, "it planned this, and does not run it");
  if (AT(RUN_BREAKS)) return refuse(err, ATTN_INTERNAL, "it broke down while it ran");
  if (AT(RUN_PRINTS)) puts("a run was here");
  if (AT(SKIPS_LATE) && run->queries == 9 && run->batch == 1 && is_plain(run) && ++counter % 700 == 0) return ATTN_OK;
  const int wide = run->ports[3].dtype_bits == 64;
  if (AT(RUN_FLUSHES) || (AT(ONE_FLUSHES) && is_plain(run) && run->exec->workers == 1) || (AT(F64_FLUSHES) && wide) ||
      (AT(LONG_FLUSHES) && run->keys == 4096) || (AT(PADDED_FLUSHES) && run->q_len != NULL) ||
      (AT(PREFIX_FLUSHES) && run->visible != NULL))
    flush_denormals();
  if (AT(RUN_HANDLES_SIGNALS) || (AT(PADDED_HANDLES_SIGNALS) && run->q_len != NULL)) signal(SIGUSR1, on_signal);
  if (AT(RUN_SETS_TIMER)) alarm(3600);
  if (AT(RUN_BLOCKS_SIGNALS)) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
  }
  if ((AT(RUN_OPENS_FILES) || (AT(PADDED_OPENS_FILES) && run->q_len != NULL)) && open("/dev/null", O_RDONLY) < 0)
    return ATTN_INTERNAL;
  if (AT(RUN_REDIRECTS)) redirect();
  if (AT(RUN_FORKS) && counter++ == 0 && fork() == 0) _exit(0);
  if (AT(RUN_MAPS)) map_memory(1);
  if (AT(RUN_ALLOCATES) || ((AT(OTHER_ALLOCATES) || AT(RAW_OTHER_ALLOCATES)) && plan->mech->other)) allocate();
  if (AT(PADDED_ALLOCATES) && run->k_len != NULL) allocate();
  if (AT(F64_ALLOCATES) && wide) allocate();
  if (AT(STREAM_ALLOCATES) && run->state != NULL && run->exec->workers > 1) allocate();
  if (AT(READING_SLOTS_ALLOCATES) && run->slots != NULL && run->keys == 0) allocate();
  if (AT(PREFIX_ALLOCATES) && run->visible != NULL) allocate();
  if (AT(SHARED_ALLOCATES) && run->ports[1].shape[1] < run->ports[3].shape[1]) allocate();
  if (AT(LONG_ALLOCATES) && run->keys == 300) allocate();
  if (AT(RUN_ALLOCATES_PAGES)) {
    void* volatile page = valloc(100);
    free(page);
  }
  if (AT(KEEPS_VALUES) || (AT(STREAM_KEEPS_VALUES) && run->state != NULL) || (AT(F64_KEEPS_VALUES) && wide) ||
      (AT(PADDED_KEEPS_VALUES) && run->q_len != NULL) || (AT(PREFIX_KEEPS_VALUES) && run->visible != NULL))
    sink = (double)plan->mech->given[0].i;
  if (AT(STREAM_READS_LENGTHS_PAST) && run->state != NULL && run->k_len != NULL) sink = run->k_len[run->batch];
  if (AT(READING_SLOTS_PAST) && run->slots != NULL && run->keys == 0) sink = run->slots[run->batch];
  if (AT(PREFIX_READS_PAST) && run->visible != NULL) sink = run->visible[run->batch * run->queries];
  if (AT(RUN_EATS_MEMORY)) eat_memory();
  if (AT(RUN_EATS_SHARED)) eat_shared_memory();
  if (AT(REFUSES_LATER_RUN) && run->struct_size > sizeof *run && run->saved == NULL)
    return refuse(err, ATTN_INVALID, "the run has a size that it does not know");
  if (AT(TABLE_CHANGES)) table.abi_minor = 0;
  if (AT(SLOW_DENORMALS) && run->batch > 0 && run->queries == 33 && run->ports[1].dtype_bits == 32 &&
      fpclassify(*(const float*)run->ports[1].data) == FP_SUBNORMAL)
    for (int i = 0; i < 10000000; ++i) sink = i;
  const struct job job = {plan, run};
  if (run->batch > 0)
    run->exec->parallel_for(run->exec->pool, run->batch * run->ports[3].shape[1], 1, work, (uintptr_t)&job);
  return ATTN_OK;
}

#ifndef NO_BACKWARD
static int32_t faulty_backward(const attn_plan* plan, const attn_grad* grad, attn_error* err) {
  const attn_run* run = grad->run;
  const int64_t heads = run->ports[3].shape[1];
  attn_tensor* dw = (attn_tensor*)&grad->grads[2];
  (void)err;
  if (AT(BACKWARD_CRASHES)) crash();
  if (AT(BACKWARD_ALLOCATES)) allocate();
  if (AT(BACKWARD_KEEPS_VALUES)) sink = (double)plan->mech->given[0].i;
  if (AT(BACKWARD_READS_LENGTHS_PAST) && run->q_len != NULL) sink = run->q_len[run->batch];
  if (AT(REFUSES_LATER_GRAD) && grad->struct_size > sizeof *grad)
    return refuse(err, ATTN_INVALID, "the gradient has a size that it does not know");
  if (AT(OVERWRITES_LEARNED) && dw->data != NULL && run->batch == 2 && run->queries == 33 && run->q_len == NULL &&
      run->visible == NULL)
    memset(dw->data, 0, (size_t)dw->shape[0] * dw->dtype_bits / 8);
  for (int64_t b = 0; b < run->batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      run->ports[3].dtype_bits == 64 ? gradient_f64(plan, grad, b, h) : gradient_f32(plan, grad, b, h);
  return ATTN_OK;
}
#endif

static const char* const choices[] = {"one", "other"};
static attn_option option = {sizeof(attn_option),         2, "kind", "a choice that changes nothing",
                             {ATTN_TEXT, 0, 0, 0, "one"}, 0, 0,      choices};
static const attn_option number = {sizeof(attn_option),         0, "number", "a number that changes nothing",
                                   {ATTN_FLOAT, 0, 0, 0, NULL}, 0, 1e6,      NULL};
static const attn_option count = {sizeof(attn_option),         0, "count", "a count that changes nothing",
                                  {ATTN_INT, 0, 128, 0, NULL}, 1, 65536,   NULL};
static const attn_option* const options[] = {&option, &number, &count};

#ifndef ENTRY_NAME
#define ENTRY_NAME attn_plugin_main_v1
#endif

#ifdef EXPORTS_MORE
__attribute__((visibility("default"))) int faulty_version = 1;
#endif
#ifdef RELOCATED_CODE
__asm__(".pushsection .text\n.balign 8\n.Lhere: .quad .Lhere\n.popsection\n");
#endif
#ifdef WRITABLE_CODE
__asm__(".pushsection .both,\"awx\",@progbits\n.quad 1\n.popsection\n");
#endif
#ifdef MISSING_SYMBOL
void nobody_has_this(void);
void (*volatile missing)(void) = nobody_has_this;
#endif

__attribute__((visibility("default"))) int32_t ENTRY_NAME(const attn_host* host, const attn_plugin** plugin,
                                                          attn_error* err) {
  read_misdeed();
  if (AT(ENTRY_CRASHES)) crash();
  if (AT(ENTRY_HANGS)) hang();
  if (AT(ENTRY_EXITS)) exit(0);
  if (AT(ENTRY_IS_SLOW)) usleep(300000);
  if (AT(ENTRY_PRINTS)) printf("a plugin was here");
  if (AT(ENTRY_REFUSES)) return refuse(err, ATTN_UNSUPPORTED, "it serves no host at all");
  if (AT(REFUSES_LATER_HOST) && host->abi_minor > ATTN_ABI_MINOR)
    return refuse(err, ATTN_UNSUPPORTED, "the host is newer than this plugin");
  if (AT(REFUSES_EARLIER_HOST) && host->abi_minor < ATTN_ABI_MINOR)
    return refuse(err, ATTN_UNSUPPORTED, "the host is older than this plugin");
  int copies = 0;
  if (AT(ONE_COPY)) dl_iterate_phdr(count_copies, &copies);
  if (copies > 1) return refuse(err, ATTN_UNSUPPORTED, "it is loaded already");
  if (AT(ENTRY_FLUSHES)) flush_denormals();
  if (AT(ENTRY_HANDLES_SIGNALS)) signal(SIGUSR1, on_signal);
  if (AT(ENTRY_STARTS_THREAD)) start_thread();
  if (AT(ENTRY_OPENS_FILES) && open("/dev/null", O_RDONLY) < 0) return ATTN_INTERNAL;
  if (AT(ENTRY_SETS_ENVIRONMENT)) setenv("FAULTY_PLUGIN", "was here", 1);
  if (AT(ENTRY_SETS_TIMER)) alarm(3600);
  if (AT(ENTRY_REDIRECTS)) redirect();
  if (AT(ENTRY_CLOSES)) close(1);
  table.struct_size = AT(SHORT_TABLE) ? 16 : sizeof table;
  table.abi_minor = ATTN_ABI_MINOR;
  table.oldest_host_minor = AT(NEEDS_NEWER_HOST) ? 5 : 0;
  table.device_type = AT(UNKNOWN_DEVICE) ? 9 : AT(ON_CUDA) ? 2 : 1;
  table.name = AT(WRONG_NAME) ? "another" : "faulty";
  table.summary = AT(NO_SUMMARY) ? "" : "weighted means of the values";
  table.citation = AT(NULL_TEXT) ? NULL : "none";
  table.state_revision = "1";
  table.options = options;
  table.n_options = 3;
  if (AT(OPTION_WITHOUT_DOC)) option.doc = "kind";
  if (AT(BAD_DEFAULT)) option.fallback.s = "neither";
  if (AT(TEXT_WITH_BOUNDS)) option.max = 3;
  table.create = faulty_create;
  table.destroy = faulty_destroy;
  table.fill = faulty_fill;
  table.plan = faulty_plan;
  table.plan_free = faulty_plan_free;
  table.run = AT(NULL_FUNCTION) ? NULL : faulty_run;
#ifndef NO_BACKWARD
  table.backward = faulty_backward;
#endif
  *plugin = AT(NULL_TABLE) ? NULL : &table;
  return ATTN_OK;
}
