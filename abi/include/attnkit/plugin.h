/* attnkit/plugin.h: the contract between an attention mechanism and its host.  C99.  Major 1.
 *
 * One library is one mechanism on one device type and exports one symbol, attn_plugin_main_v1.
 * Shapes    B batch rows, H heads, N queries, M keys, D query/key width per head, E value width per head.
 *
 * Growth    A struct that begins with struct_size only grows at its end, one minor at a time.  Test a field with
 *           ATTN_HAS before reading it; a larger size is never an error; zero in a field means "as before it was
 *           there".  Such structs travel by pointer or as arrays of pointers.  attn_tensor and attn_value have no
 *           struct_size: they never change within a major.  There is no other extension mechanism.
 * Errors    A fallible function returns ATTN_OK or a code below, and fills the nullable caller-owned attn_error.
 *           Every refusal precedes the first write; after that only ATTN_DEVICE can happen, and then the outputs
 *           and the state of that call are undefined.  No exception, signal or longjmp crosses the boundary.
 * Checks    The host passes nothing that this header rules out: it checks requests, tensors, per-row arrays, exec and
 *           state before a call, and then what the plugin answered.  A plugin refuses what it cannot do, in create
 *           and plan (see Errors there); it may look at more, and need not.
 * Memory    All of it is the host's and stays valid until the call returns (CUDA: until the stream has passed it).
 *           scratch, saved, state rows: aligned to ATTN_ALIGN bytes.  Tensors: aligned to one element.  Inputs and
 *           outputs never overlap.  A running call never allocates, locks, logs, waits or starts threads.
 * Threads   A mechanism and a plan never change after they are made: any thread, any number of calls at once.  Two
 *           runs at once may not share scratch, saved, an output, or a state row to which either of them appends.
 * Numbers   Accumulation is f32 whatever the tensors' type, f64 under an f64 plan.  So is state, unless an option of the
 *           mechanism says that it is rounded.  NaN and infinity spread within their batch row and head, in causal runs
 *           to later positions, and nowhere else.  No result depends on other rows, on padding, on the number of
 *           workers, or on how a stream was split beyond rounding; equal splits give equal bits.
 * CUDA      The host makes the device current; a run enqueues on exec->stream alone, without synchronising.  Every
 *           array and tensor of a run, state included, is device memory, so a captured graph replays a whole decode
 *           while the host updates lengths and positions between replays.  Only the structs themselves and the
 *           tensor descriptors are read on the CPU, during the call.  Plans may own library handles (cuDNN). */
#ifndef ATTN_PLUGIN_H
#define ATTN_PLUGIN_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_ABI_MINOR 1u
#define ATTN_ALIGN 64u
#define ATTN_HAS(type, p, field) ((p)->struct_size >= offsetof(type, field) + sizeof((p)->field))

/* codes of every fallible function, here and in attnkit.h */
#define ATTN_OK 0
#define ATTN_INVALID 1     /* the caller broke the contract or passed a wrong value */
#define ATTN_UNSUPPORTED 2 /* a well-formed request this mechanism refuses; the message is the reason, one sentence */
#define ATTN_NO_MEMORY 3
#define ATTN_DEVICE 4
#define ATTN_INTERNAL 5
/* roles: where in a transformer a block sits */
#define ATTN_ENCODER_SELF 1u
#define ATTN_DECODER_SELF 2u
#define ATTN_DECODER_CROSS 3u
/* option types */
#define ATTN_INT 1u
#define ATTN_FLOAT 2u
#define ATTN_BOOL 3u
#define ATTN_TEXT 4u
/* port kinds.  Sequence ports are (B, heads, rows, width), declared as shape {0, heads, 0, width}, ndim 4. */
#define ATTN_QUERY 1u   /* the host projects the block's input; rows = N */
#define ATTN_KEY 2u     /* the host projects the context (self attention: the block's input); rows = M */
#define ATTN_OUTPUT 3u  /* exactly one; rows = N; the host applies the output projection to it */
#define ATTN_LEARNED 4u /* trained with the model; f32 (f64 when the plan is f64) */
#define ATTN_TABLE 5u   /* stored with the model, never trained: random features, index tables; f32, int32 or int64 */
#define ATTN_AUX_IN 6u  /* (B, 1, rows, width): the latest value of this name in execution order */
#define ATTN_AUX_OUT 7u /* same shape; replaces the value of this name for the blocks that follow */
/* AUX ports are declared as shape {0, 1, rows, width}; f64 when the plan is f64.  Execution order of AUX is encoder,
 * then decoder.  AUX_IN with data NULL: no value yet, the mechanism starts from its own learned one.  Residual and norm
 * of an AUX sequence are the mechanism's.  While a stream lasts, every run of a row gets the same AUX_IN, so that state
 * may hold what was made of it, and gives the same AUX_OUT once its keys are appended, whatever the queries.  What
 * blocks of decoder.self give never reaches blocks of decoder.cross in a stream: these take in the source before there
 * is a target. */
/* port flags */
#define ATTN_RAW 1u       /* unprojected.  QUERY, KEY: the sequence, (1, d_model); OUTPUT: heads * width = d_model */
#define ATTN_NO_BIAS 2u   /* the projection has no bias even where the model's have */
#define ATTN_PER_MODEL 4u /* LEARNED, TABLE: one tensor for all blocks of the model that use this mechanism */
/* request flags */
#define ATTN_STREAM 1u         /* runs carry state */
#define ATTN_TRAIN 2u          /* runs fill saved, backward may follow */
#define ATTN_PREFIX 4u         /* runs carry visible (wait-k offline); excludes STREAM and causal blocks */
#define ATTN_KNOWS_Q_TOTAL 8u  /* runs carry q_total */
#define ATTN_KNOWS_K_TOTAL 16u /* runs carry k_total; absent under STREAM: the source is still growing */
/* info flags */
#define ATTN_REWINDS 1u      /* a run with a smaller k_pos undoes the appends after it; else the host snapshots */
#define ATTN_WITHIN_TOTAL 2u /* the host must refuse rows with q_pos + q_len > q_total before it runs them */

/* Filled by the function that fails; the caller sets struct_size.  Untouched on success. */
typedef struct attn_error {
  uint32_t struct_size;
  int32_t code;
  int32_t where;     /* create: index of the option at fault; run: index of the port; otherwise -1 */
  char message[500]; /* UTF-8, NUL-terminated, one line: the thing, its value, the limit, what to do */
} attn_error;

/* A strided view; frozen.  ndim <= 4; entry ndim - 1 of shape and stride is the innermost dimension, whose stride is 1.
 */
typedef struct attn_tensor {
  void* data;                     /* NULL = absent */
  int64_t shape[4], stride[4];    /* strides count elements */
  uint8_t dtype_code, dtype_bits; /* DLPack codes: int 0, float 2, bfloat 4; bits per element */
  uint16_t dtype_lanes;           /* 1 */
  uint32_t ndim;
  int32_t device_type, device_id; /* DLPack: CPU 1, CUDA 2 */
} attn_tensor;

/* An option's value; frozen.  type says which field counts. */
typedef struct attn_value {
  uint32_t type, reserved;
  int64_t i;     /* INT; BOOL: 0 or 1 */
  double f;      /* FLOAT */
  const char* s; /* TEXT: UTF-8, NUL-terminated */
} attn_value;

/* The schema of one option of a mechanism.  The host checks values against it before create sees them. */
typedef struct attn_option {
  uint32_t struct_size, n_choices;
  const char *name, *doc;
  attn_value fallback;        /* the default; its type is the option's type */
  double min, max;            /* INT, FLOAT: inclusive bounds; min == max: any finite value */
  const char* const* choices; /* TEXT: the allowed values; n_choices 0: any text */
} attn_option;

/* One tensor that every run of this mechanism takes or gives, with concrete widths.
 * A QUERY or KEY port named "q", "k" or "v" with the block's own heads (k, v: or its kv_heads) and standard width (q,
 * k: D; v: E) uses the projection that all mechanisms of the block share.  Any other projection, and every LEARNED or
 * TABLE tensor, is stored under "<block>.<mechanism>.<name>", or "model.<mechanism>.<name>" with ATTN_PER_MODEL. */
typedef struct attn_port {
  uint32_t struct_size, kind, flags;
  uint8_t dtype_code, dtype_bits; /* LEARNED, TABLE, AUX; 0 for QUERY, KEY, OUTPUT: the plan's type */
  uint16_t ndim;
  const char *name, *doc; /* [a-z0-9_]{1,255}, unique within the mechanism; an AUX_IN and an AUX_OUT may share one */
  int64_t shape[4];
} attn_port;

/* The place that a mechanism is asked to take. */
typedef struct attn_block {
  uint32_t struct_size, role, causal, heads; /* causal 1: a query sees keys at its position and before */
  int32_t d_model, head_width; /* D = d_model / heads (heads divides d_model) unless key_width says otherwise;
                                  head_width = E, equal to D unless the model says otherwise */
  uint32_t kv_heads; /* minor 1: heads of the model's keys and values, a divisor of heads; 0 = heads.  Head h of queries
                        goes with head h / (heads / kv_heads) of them.  The shape of a port "k" or "v" says how it takes
                        them: kv_heads heads as they are, or `heads`, for which the host repeats each */
  int32_t key_width; /* minor 1: D, where it is not d_model / heads; 0 = d_model / heads.  Before minor 1 a plugin gets
                        d_model = heads * D instead */
} attn_block;

/* Upper bounds of the runs that follow.  Any run within them is legal; equal requests get equal answers. */
typedef struct attn_request {
  uint32_t struct_size, flags;
  int32_t device_type, device_id;
  uint8_t dtype_code, dtype_bits;
  uint16_t dtype_lanes;
  uint32_t workers;                   /* most threads that parallel_for will use, >= 1 */
  int64_t batch, queries, keys, past; /* past: keys already in the state; the state's capacity is past + keys */
} attn_request;

/* The answer: exact bytes, and the cost of one run at the bounds.  The caller sets struct_size; no field past it is
 * written. */
typedef struct attn_info {
  uint32_t struct_size, flags;
  uint64_t scratch_bytes, backward_scratch_bytes, saved_bytes;
  uint64_t state_bytes; /* per row; the bytes for a capacity are a prefix of those for any larger capacity */
  uint64_t flops, bytes_read,
      bytes_written; /* a multiply-add is 2 flops; bytes of tensors and state, each counted once */
} attn_info;

/* Work on [begin, end) by worker, a number below exec->workers that no other thread of the same loop has meanwhile. */
typedef void (*attn_task)(uintptr_t arg, int64_t begin, int64_t end, uint32_t worker);

/* The means of a run.  One per thread of control; shared by all blocks that it runs one after another. */
typedef struct attn_exec {
  uint32_t struct_size, workers;
  void* scratch; /* at least info.scratch_bytes; contents undefined before and after */
  uint64_t scratch_bytes;
  uintptr_t stream; /* CUstream; 0 on the CPU */
  uintptr_t pool;   /* first argument of parallel_for */
  /* Runs fn over [0, n) in pieces of at least grain, returns when all are done.  Never nested.  NULL on CUDA. */
  void (*parallel_for)(uintptr_t pool, int64_t n, int64_t grain, attn_task fn, uintptr_t arg);
} attn_exec;

/* One call: M key rows are appended to what each row b knows, then its N query rows are read.  Either may be 0.
 * Query i of row b stands at position q_pos[b] + i, key j at k_pos[b] + j (from 0).  It sees: in a causal block the
 * keys at positions <= its own; with visible, the first visible[b,i] keys; otherwise all keys of its row.  In a causal
 * run q_pos[b] >= k_pos[b], or, when M = 0, q_pos[b] + 1 >= k_pos[b].  A query that sees no key gives a zero row.
 * Per-row arrays have B entries, live where the tensors live, and are checked by the host, never by the plugin. */
typedef struct attn_run {
  uint32_t struct_size, reserved;
  const attn_exec* exec;
  int64_t batch, queries, keys; /* B, N, M */
  const attn_tensor* ports;     /* one per port, in the order create gave */
  const int32_t *q_len, *k_len; /* rows that are real, at the front; NULL = all.  Rows of OUTPUT past q_len become 0 */
  const int32_t *q_pos, *k_pos; /* queries read and keys appended before this call (also when M = 0); NULL = 0 */
  const double *q_total, *k_total; /* length of the whole query and key sequence, true or predicted (may be fractional);
                                      self attention: the same */
  const int32_t* visible;          /* (B, N), non-decreasing in N; only without state */
  void* state; /* NULL = one whole sequence.  All-zero bytes are the empty state; it holds no pointers and no positions,
                  so copying its bytes copies the past: clone, reorder, save, move */
  uint64_t state_stride; /* bytes from slot to slot, >= info.state_bytes, a multiple of ATTN_ALIGN */
  const int32_t* slots;  /* row b uses slot slots[b]; NULL = b.  Rows may share a slot if and only if M = 0 */
  void* saved;           /* TRAIN only: info.saved_bytes, kept by the host until backward */
} attn_run;

/* One backward call, for the run that it names. */
typedef struct attn_grad {
  uint32_t struct_size, reserved;
  const attn_run* run; /* as it was, with its outputs and saved; exec may differ (backward_scratch_bytes) */
  const attn_tensor*
      grads; /* by port.  OUTPUT, AUX_OUT: given.  Others: overwritten; LEARNED: added to; data NULL: skipped */
} attn_grad;

typedef struct attn_mech attn_mech; /* one mechanism in one block with its options */
typedef struct attn_plan attn_plan; /* a mechanism ready for runs within a request */

/* The table a plugin returns.  It and all it points to stay valid and unchanged until the process ends.  Any slot of a
 * function that a later minor adds may be NULL. */
typedef struct attn_plugin {
  uint32_t struct_size, abi_minor, oldest_host_minor; /* the minor it was built for; the oldest host it accepts */
  int32_t device_type;
  const char *name, *summary, *citation; /* name = folder = file = manifest key, [a-z][a-z0-9_]* */
  const char* state_revision;            /* changes whenever the meaning of the state's bytes does */
  const attn_option* const* options;
  uint32_t n_options, reserved;

  /* Makes the mechanism for one block: fixes its options and lists its ports.
   * Shapes    values: n_options of them, in the order of options, type-checked, within bounds, defaults filled in.
   *           ports: exactly one OUTPUT; at least one QUERY or KEY; equal for equal blocks and values.
   * Errors    UNSUPPORTED or INVALID: options that contradict each other or the block (where = option index or -1); the
   *           outputs are untouched.  NO_MEMORY.
   * Threads   Any.
   * Lifetime  The caller destroys *mech.  ports are valid until then; block and values until the call returns. */
  int32_t (*create)(const attn_block* block, const attn_value* values, attn_mech** mech, const attn_port* const** ports,
                    uint32_t* n_ports, attn_error* err);
  /* Frees a mechanism whose plans were freed before.  NULL is allowed.
   * Threads   Any, once. */
  void (*destroy)(attn_mech* mech);
  /* Writes the initial content of LEARNED or TABLE port `port`.  NULL is allowed where no port is one.
   * Shapes    tensor: a contiguous CPU tensor of the declared shape and type.
   * Numbers   The same bytes for the same seed on every machine.
   * Errors    INVALID: not such a port.
   * Threads   Any. */
  int32_t (*fill)(const attn_mech* mech, uint32_t port, uint64_t seed, const attn_tensor* tensor, attn_error* err);
  /* Answers whether the mechanism takes the request, what memory it needs and what a run costs.
   * Without a plan (plan NULL) bounds of 0 ask for any size, and sizes that grow with them are 0; with a plan, 0 allows
   * none.  The plan holds for every run within the bounds, so decoding plans once.
   * Errors    UNSUPPORTED with the reason (role, causal, streaming, unknown totals, dtype, device, size);  NO_MEMORY.
   *           The outputs are then untouched.
   * Threads   Any; may allocate.
   * Lifetime  The caller frees *plan before it destroys mech. */
  int32_t (*plan)(const attn_mech* mech, const attn_request* request, attn_info* info, attn_plan** plan,
                  attn_error* err);
  /* Frees a plan.  NULL is allowed. */
  void (*plan_free)(attn_plan* plan);
  /* Computes one attn_run; see there for shapes, positions and visibility.
   * Shapes    Ports as declared with B, N, M of the run; any stride but the innermost, which is 1.
   * Numbers   Writes every element of OUTPUT and AUX_OUT; deterministic.
   * Errors    INVALID or UNSUPPORTED before the first write; DEVICE after.
   * Threads   Any number at once on one plan with distinct scratch, outputs and state rows.  Never allocates. */
  int32_t (*run)(const attn_plan* plan, const attn_run* run, attn_error* err);
  /* Computes the gradients of a run under an ATTN_TRAIN plan.  NULL: plan refuses ATTN_TRAIN.
   * Errors    As run.
   * Threads   As run. */
  int32_t (*backward)(const attn_plan* plan, const attn_grad* grad, attn_error* err);
} attn_plugin;

/* The host's versions. */
typedef struct attn_host {
  uint32_t struct_size, abi_minor, oldest_plugin_minor, reserved;
} attn_host;

/* Returns the plugin's table, or a refusal whose message says which side to update; does no other work (no threads, no
 * environment, no files).
 * Threads   Called once per process and library, on one thread, before anything else. */
typedef int32_t (*attn_plugin_main_fn)(const attn_host* host, const attn_plugin** plugin, attn_error* err);
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int32_t
attn_plugin_main_v1(const attn_host* host, const attn_plugin** plugin, attn_error* err);

#ifdef __cplusplus
}
#endif
#endif
