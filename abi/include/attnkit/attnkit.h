/* attnkit/attnkit.h: what applications call.  C99, plain exported functions, opaque handles.  Major 1.
 *
 * Order     runtime -> model -> session; runtime -> block.  A handle keeps its parents alive, so handles may be
 *           destroyed in any order.  destroy takes NULL.
 * Shapes    Tensors are contiguous and on the CPU, ids int32.  Outputs overlap no input: checked of blocks alone.
 * Text      UTF-8.  const char* arguments are NUL-terminated.
 * Errors    A fallible function returns an ATTN_ code of plugin.h and fills the nullable err; outputs are untouched
 *           unless it returns ATTN_OK.  Bad manifests, weights, plugins, texts and arguments are errors, never crashes.
 * Threads   runtime, model, encoded, block: any thread, any number of calls at once.  A session: one call at a time (a
 *           second one meanwhile is refused with ATTN_INVALID), different ones at once.  A child of fork(): one thread.
 * Lifetime  Arguments are borrowed until the call returns.  What a function returns through ** is the caller's. */
#ifndef ATTNKIT_H
#define ATTNKIT_H
#include <attnkit/plugin.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define ATTNKIT_API __attribute__((visibility("default")))
#else
#define ATTNKIT_API
#endif

typedef struct attnkit_runtime attnkit_runtime; /* threads and loaded plugins */
typedef struct attnkit_model attnkit_model;     /* a manifest with its weights and plugins, ready to run; immutable */
typedef struct attnkit_encoded attnkit_encoded; /* a batch of sources after the encoder; immutable */
typedef struct attnkit_session attnkit_session; /* one input being decoded; its rows are its beams */
typedef struct attnkit_block attnkit_block;     /* one mechanism by itself: bridges, benchmarks, validators */
typedef struct attnkit_text attnkit_text;       /* an owned UTF-8 document */
typedef struct attnkit_blob attnkit_blob;       /* owned bytes */

/* severities of diagnostics */
#define ATTNKIT_ERROR 1u
#define ATTNKIT_WARNING 2u
/* areas of diagnostics: where the fault lies, for exit codes and the like */
#define ATTNKIT_AREA_MANIFEST 1u
#define ATTNKIT_AREA_PLUGIN 2u
#define ATTNKIT_AREA_WEIGHTS 3u
#define ATTNKIT_AREA_DATA 4u
/* kinds of models */
#define ATTNKIT_ENCODER 1u
#define ATTNKIT_DECODER 2u
#define ATTNKIT_ENCODER_DECODER 3u

/* Options of a runtime.  A zero field means its default. */
typedef struct attnkit_runtime_options {
  uint32_t struct_size, threads; /* threads of one call, its caller included; 0 = one per processor that it may use */
  const char* plugin_path; /* folders separated by ':', searched first; then ATTNKIT_PLUGIN_PATH (ignored in set-uid
                              programs), then <folder of libattnkit>/attnkit/1.  Never the working directory */
  int32_t device_type, device_id; /* where blocks and models run: CPU (1) or CUDA (2); 0 = blocks on the CPU, models
                                     where their manifests say.  device_id is 0 */
} attnkit_runtime_options;

/* One problem of a manifest or of what it names. */
typedef struct attnkit_diagnostic {
  uint32_t struct_size, severity, area;
  int32_t code, line, column; /* AK<code>; line and column from 1, in bytes; 0: no place */
  const char *message, *help; /* help may be NULL */
} attnkit_diagnostic;
/* Receives the diagnostics sorted by place, on the calling thread before the function returns; valid until then. */
typedef void (*attnkit_diagnose)(uintptr_t context, const attnkit_diagnostic* diagnostic);

/* Sizes of a model, from which a host sizes its buffers. */
typedef struct attnkit_model_info {
  uint32_t struct_size, kind;           /* ATTNKIT_ENCODER, ... */
  int32_t source_vocab, target_vocab;   /* 0 where the model has no such side */
  int32_t outputs;                      /* width of a row of logits: target_vocab, or classes */
  int32_t max_length, begin_id, end_id; /* longest source and target, which [model.decoder] may make shorter; what
                                           begins a target (of an encoder alone its [CLS] or <s>), what ends source and
                                           target: <s> and </s> of attnkit's own vocabularies; -1: none */
  uint32_t beams, reserved;             /* what [decode] says; at least 1 */
  uint64_t parameters, state_bytes;     /* state_bytes: one session of one row at max_length on both sides */
  /* Of a model that takes speech, else 0.  source_vocab is 0 there, and max_length counts rows of the encoder. */
  int32_t sample_rate, frame_length, frame_shift; /* samples a second; samples of a frame, and from one to the next */
  int32_t features, subsampling;                  /* numbers of a frame; frames that make one row of the encoder */
  uint32_t speech_reserved;
} attnkit_model_info;

/* answers of a policy of simultaneous decoding */
#define ATTNKIT_READ 1u  /* take the next unit of the source; once it has ended, the same as WRITE */
#define ATTNKIT_WRITE 2u /* write the next token of the target */
#define ATTNKIT_STOP 3u  /* end the call */

/* The progress of simultaneous decoding before a decision. */
typedef struct attnkit_stream_view {
  uint32_t struct_size, ended; /* ended: 1 once the whole source was read */
  int64_t read, written;       /* units of the source; tokens of the target, without <s> */
} attnkit_stream_view;
/* Called on the calling thread before every action and before anything is computed for it; view is valid until then. */
typedef uint32_t (*attnkit_decide)(uintptr_t context, const attnkit_stream_view* view);

/* One action that was taken. */
typedef struct attnkit_stream_event {
  uint32_t struct_size, action; /* ATTNKIT_READ or ATTNKIT_WRITE */
  int64_t read, written;        /* this action included */
  int32_t id;                   /* the token written, or -1 */
  uint32_t ended;
  double seconds; /* wall clock since the call began */
} attnkit_stream_event;
typedef void (*attnkit_observe)(uintptr_t context, const attnkit_stream_event* event);

/* Options of attnkit_session_simulate. */
typedef struct attnkit_stream_options {
  uint32_t struct_size, limit; /* limit: most tokens; 0 = 1.5 * source + 20 */
  attnkit_decide decide;
  uintptr_t decide_context;
  attnkit_observe observe; /* may be NULL */
  uintptr_t observe_context;
  const int64_t* ends; /* where each unit ends in the source, ascending, the last one at S; NULL: each id is a unit, of
                          speech what completes the next row of the encoder, the last with the rest */
  uint64_t units;      /* of ends */
} attnkit_stream_options;

/* Called with each token that is drawn, on the calling thread, before the next one is computed; 0 goes on, anything
 * else ends the call after this token. */
typedef uint32_t (*attnkit_token)(uintptr_t context, int32_t id);

/* Options of attnkit_session_sample.  A zero field means its default; what changes the scores does so in this order. */
typedef struct attnkit_sample_options {
  uint32_t struct_size, limit; /* limit: most tokens; 0 = as attnkit_session_generate */
  double repetition_penalty; /* 0.01 to 100: scores of tokens that were there are divided by it, or times it where they
                                are below 0; 0 = as [decode] says, or 1 */
  double temperature;        /* 0 to 1000: scores are divided by it; 0: the best token, always */
  uint64_t top_k;            /* up to 2^24: only so many of the best; 0 = all */
  double top_p;              /* 0 to 1: only the best that have this probability together; 0 = 1 */
  uint64_t seed, stream;     /* texts of one seed that differ in stream are unrelated */
  const int32_t* seen;       /* tokens beside the prompt and those drawn that the penalty, and no_repeat of [decode],
                                count as there, such as a prompt that was written before; NULL with n_seen 0 */
  uint64_t n_seen;
  attnkit_token token; /* may be NULL; must neither use this session nor throw */
  uintptr_t token_context;
  const char* const* stops; /* texts: the call ends with the token that completes one of them in what is drawn, as
                               attnkit_model_detokenize has it; the output is that before it.  NULL with n_stops 0 */
  uint64_t n_stops;
} attnkit_sample_options;

/* Returns the minor of the ABI this library was built for.  Any thread. */
ATTNKIT_API uint32_t attnkit_abi_minor(void);
/* Returns the product version, such as "0.1.0"; static.  Any thread. */
ATTNKIT_API const char* attnkit_version(void);

/* Returns the document, NUL-terminated; *bytes, when bytes is not NULL, is the length without the NUL.
 * Lifetime  Valid until destroy. */
ATTNKIT_API const char* attnkit_text_data(const attnkit_text* text, uint64_t* bytes);
ATTNKIT_API void attnkit_text_destroy(attnkit_text* text);
/* Returns the bytes, *bytes of them, which are valid until destroy. */
ATTNKIT_API const void* attnkit_blob_data(const attnkit_blob* blob, uint64_t* bytes);
ATTNKIT_API void attnkit_blob_destroy(attnkit_blob* blob);

/* Starts a runtime: finds and loads every usable plugin of the search path.  options may be NULL.
 * A file that is no usable plugin is skipped with its reason (see describe), which is no error.
 * Errors    INVALID, UNSUPPORTED: impossible options, a struct_size without room for any.  NO_MEMORY.
 * Lifetime  Plugins stay loaded until the process ends. */
ATTNKIT_API int32_t attnkit_runtime_create(const attnkit_runtime_options* options, attnkit_runtime** runtime,
                                           attn_error* err);
ATTNKIT_API void attnkit_runtime_destroy(attnkit_runtime* runtime);
/* Returns JSON "attnkit.runtime/1": this library, the machine, the loaded plugins with options and costs, skipped files
 * with the reason.  docs/hosts.md has every key of this document and of the others. */
ATTNKIT_API int32_t attnkit_runtime_describe(attnkit_runtime* runtime, attnkit_text** json, attn_error* err);
/* Returns JSON "attnkit.plugin-list/1": name, device and file of the loaded plugins, skipped files with the reason.
 * Calls no plugin. */
ATTNKIT_API int32_t attnkit_runtime_list(attnkit_runtime* runtime, attnkit_text** json, attn_error* err);

/* Makes a model from a manifest.  toml is the manifest's text and dir the folder its paths are relative to, so hosts
 * can edit manifests without files; open reads the file at path and takes its folder.  diagnose may be NULL; it
 * receives every problem at once.  model NULL: validate only, the weights included.
 * Errors    INVALID when any diagnostic is an error (err holds the first; its place comes as "line:column: "),
 *           NO_MEMORY.  open: also when the file cannot be read. */
ATTNKIT_API int32_t attnkit_model_create(attnkit_runtime* runtime, const char* toml, const char* dir,
                                         attnkit_diagnose diagnose, uintptr_t context, attnkit_model** model,
                                         attn_error* err);
ATTNKIT_API int32_t attnkit_model_open(attnkit_runtime* runtime, const char* path, attnkit_diagnose diagnose,
                                       uintptr_t context, attnkit_model** model, attn_error* err);
ATTNKIT_API void attnkit_model_destroy(attnkit_model* model);
/* Fills *info up to the struct_size that the caller set.  Never fails for valid handles. */
ATTNKIT_API int32_t attnkit_model_get_info(const attnkit_model* model, attnkit_model_info* info, attn_error* err);
/* Returns JSON "attnkit.model-description/1": what the manifest says, defaults filled in, the grid (per block: role,
 * layer, mechanism, options, both as TOML and as given, line:column of the manifest that decided it, parameters), and,
 * at each of the n lengths, state bytes, scratch bytes and flops of each block and flops of a pass.  A length is both
 * that of the source, in rows of the encoder, and that of the target, in tokens.
 * Errors    INVALID: a length below 1 or above 2^31. */
ATTNKIT_API int32_t attnkit_model_describe(const attnkit_model* model, const int64_t* lengths, uint32_t n,
                                           attnkit_text** json, attn_error* err);
/* Computes the whole model on whole sequences (teacher forcing).
 * Shapes    source (B, S) int32 ids or speech, source_len (B) or NULL; target (B, T) int32 ids, target_len (B) or NULL;
 *           out f32: (B, T, outputs), or (B, outputs) for a classifier.  A side that the model lacks: NULL.
 *           Speech, here and wherever a source is taken: f32 (B, S) samples within [-1, 1], or (B, T, features) frames
 *           as attnkit_model_features makes them; source_len then counts samples or frames, and a remainder at the end
 *           that makes no whole row of the encoder is left out.
 * Numbers   Rows past a length give zeros.  Lengths that mechanisms need are predicted as [length] says.
 * Errors    INVALID: shapes, lengths beyond max_length, ids outside the vocabulary.  UNSUPPORTED, NO_MEMORY. */
ATTNKIT_API int32_t attnkit_model_forward(const attnkit_model* model, const attn_tensor* source,
                                          const int32_t* source_len, const attn_tensor* target,
                                          const int32_t* target_len, const attn_tensor* out, attn_error* err);
/* Computes the encoder's part of attnkit_model_forward alone, once for several decoders, and keeps the AUX sequences
 * that mechanisms of the encoder hand to those of the decoder.
 * Errors    As forward, and so are shapes; INVALID: a model without encoder or decoder, a source without data. */
ATTNKIT_API int32_t attnkit_model_encode(const attnkit_model* model, const attn_tensor* source,
                                         const int32_t* source_len, attnkit_encoded** encoded, attn_error* err);
ATTNKIT_API void attnkit_encoded_destroy(attnkit_encoded* encoded);
/* Computes the rest of attnkit_model_forward.  encoded may come from another model with the same encoder: dimensions of
 * [model], weights file, and the mechanisms with their options in every block of it.
 * Numbers   Bitwise those of forward for that source and this target.
 * Errors    As forward; INVALID: another encoder, another number of rows, a model without an encoder or a decoder. */
ATTNKIT_API int32_t attnkit_model_decode(const attnkit_model* model, const attnkit_encoded* encoded,
                                         const attn_tensor* target, const int32_t* target_len, const attn_tensor* out,
                                         attn_error* err);
/* Computes the attention weights of one block for one input: its output for unit vectors in place of its values
 * (attention is linear in v).  role is ATTN_ENCODER_SELF ...; layer counts from 1.
 * Shapes    source (1, S), target (1, T) as in forward; out f32 (H, N, M), N and M the block's rows for this input
 *           (speech: rows of the encoder).
 * Errors    As forward; UNSUPPORTED for a mechanism without a "v" port. */
ATTNKIT_API int32_t attnkit_model_attention(const attnkit_model* model, uint32_t role, uint32_t layer,
                                            const attn_tensor* source, const attn_tensor* target,
                                            const attn_tensor* out, attn_error* err);
/* Converts text to ids of the source (side 0) or target (side 1) vocabulary: a source with what the vocabulary puts
 * before a text ([CLS], a language), a target without begin_id, both without the token that ends it.
 * Shapes    *n: room in ids on entry, ids needed on return, also when ids is NULL or too small (then INVALID and ids
 *           untouched).
 * Errors    INVALID: a word that the vocabulary cannot spell, named with its place in the text. */
ATTNKIT_API int32_t attnkit_model_tokenize(const attnkit_model* model, uint32_t side, const char* text, int32_t* ids,
                                           uint64_t* n, attn_error* err);
/* Converts ids to text; special tokens are left out.
 * Errors    INVALID: an id outside the vocabulary. */
ATTNKIT_API int32_t attnkit_model_detokenize(const attnkit_model* model, uint32_t side, const int32_t* ids, uint64_t n,
                                             attnkit_text** text, attn_error* err);

/* Computes the frames that a model which takes speech makes of samples: logarithms of mel energies, not normalised.
 * Shapes    samples (1, S) f32 within [-1, 1]; *n on return: the number of whole frames in S; frames f32
 *           (1, *n, features), or NULL.  Of a model of whole recordings (Whisper) *n counts their silence too.
 * Errors    INVALID: a model that takes text, another shape, samples that are not numbers or beyond 16, more than such a
 *           model takes at once: split the recording. */
ATTNKIT_API int32_t attnkit_model_features(const attnkit_model* model, const attn_tensor* samples,
                                           const attn_tensor* frames, uint64_t* n, attn_error* err);

/* Starts an empty session of `rows` beams; 0 = as [decode] in the manifest says.
 * Errors    NO_MEMORY, UNSUPPORTED (an encoder; a mechanism that cannot stream), INVALID. */
ATTNKIT_API int32_t attnkit_session_create(const attnkit_model* model, uint32_t rows, attnkit_session** session,
                                           attn_error* err);
ATTNKIT_API void attnkit_session_destroy(attnkit_session* session);
/* Makes an independent copy, which continues bitwise like the original. */
ATTNKIT_API int32_t attnkit_session_clone(const attnkit_session* session, attnkit_session** copy, attn_error* err);
/* Replaces row i by row parents[i], all at once.
 * Errors    INVALID: a parent that is no row. */
ATTNKIT_API int32_t attnkit_session_reorder(attnkit_session* session, const uint32_t* parents, attn_error* err);
/* Reads the source, or more of it.  last 1: it is complete; 0: it goes on, which needs [stream] in the manifest. Tokens
 * may be written between reads.  A causal encoder takes the new part alone; another runs anew over all of the source,
 * and states that depend on it are filled anew (see describe).  Predicts the target's length where [length] says so,
 * anew at each read from the source so far.  Speech that makes no whole row of the encoder yet waits.
 * Shapes    source (1, S) int32 ids, S >= 1, </s> included in the last; speech: (1, S) samples or (1, T, features)
 *           frames, the same of the two in all reads, S or T 0 only in the last.
 * Numbers   After the last read of a bidirectional encoder bitwise those of one read of the whole source; speech: any
 *           split gives the encoder the same rows, bitwise.
 * Errors    INVALID: ids, samples that are not numbers or beyond 16, length, a source that was complete, last 0 without
 *           [stream], the last of speech too short for one row, keys that depend on a target length that only the host
 *           knows and has not set.  The session is then as before, except after NO_MEMORY or a failing plugin in a
 *           second read: it then refuses all but destroy. */
ATTNKIT_API int32_t attnkit_session_read(attnkit_session* session, const attn_tensor* source, uint32_t last,
                                         attn_error* err);
/* Reads the sources of n different sessions of one model, or more of them, and encodes them together.  Since minor 1.
 * Shapes    source (n, S) or frames (n, T, features) as in read; source_len (n): how much of each row is real, or NULL =
 *           all; last (n) or NULL = all 1.
 * Numbers   Bitwise those of attnkit_session_read for each session alone.
 * Errors    As read; where: which session.  INVALID: sessions of different models, a session twice.  No
 *           session has then changed: leave out the one at fault and call again.  After NO_MEMORY or a failing plugin
 *           none has read anything, and those whose second read it was refuse all but destroy. */
ATTNKIT_API int32_t attnkit_sessions_read(attnkit_session* const* sessions, uint32_t n, const attn_tensor* source,
                                          const int32_t* source_len, const uint32_t* last, attn_error* err);
/* Sets the target's whole length (</s> included; may be fractional) for mechanisms that need it, over a prediction.
 * Errors    INVALID: not positive and finite, tokens were written, a source was read whose keys depend on another. */
ATTNKIT_API int32_t attnkit_session_set_length(attnkit_session* session, double target_length, attn_error* err);
/* Appends tokens to n different sessions of one model, each at its own position.
 * Shapes    tokens (R, T) int32, R = rows of all sessions in order; len (R) tokens that are real or NULL = all T;
 *           logits f32 (R, T, outputs) or NULL.
 * Numbers   Bitwise those of each session alone.  Tokens that [decode] suppresses, or that are not the forced one, have
 *           -infinity unless the model made a NaN; those of attnkit_model_forward are as the model makes them.
 * Errors    INVALID: ids, a target beyond max_length or the decoder's own, no source read yet, sessions of different
 *           models, a session twice; under [stream] tokens after </s>.  No session has then changed.  After NO_MEMORY
 * or a failing plugin they refuse all but destroy, unless all of decoder.self says ATTN_REWINDS. */
ATTNKIT_API int32_t attnkit_session_write(attnkit_session* const* sessions, uint32_t n, const attn_tensor* tokens,
                                          const int32_t* len, const attn_tensor* logits, attn_error* err);
/* Continues from where the session stands until </s> or `limit` tokens: greedy with one row, beam search with more, as
 * [decode] says, whose penalties look back at what this call writes.  An empty session begins with <s>.  The next
 * call goes on behind greedy tokens; beams stop before their last ones, and what was returned need not be among them.
 * Shapes    ids: room for limit; 0 means that of [decode], else 1.5 * source + 20, of a decoder alone what max_length
 *           leaves: then room for max_length.  *n on return: tokens written, </s> included when it was reached.
 * Errors    As write; INVALID: [decode] leaves no token that may come. */
ATTNKIT_API int32_t attnkit_session_generate(attnkit_session* session, uint32_t limit, int32_t* ids, uint64_t* n,
                                             attn_error* err);
/* Continues n different sessions of one model together, each as generate does, until one of them has ended, or for at
 * most `steps` tokens where that is not 0.  Given again, beside any others, those that have not ended go on, under the
 * limit of their first call; after a write or reorder in between, and as copies or saved, they begin anew.  Minor 1.
 * Shapes    ids (n, width), width at least every limit, max_length for 0; lengths (n), 0 where one has not ended.
 * Numbers   Bitwise those of each session alone.
 * Errors    As write and generate.  where of several: which session; the others lose nothing: call again without it. */
ATTNKIT_API int32_t attnkit_sessions_generate(attnkit_session* const* sessions, uint32_t n, uint32_t limit,
                                              uint32_t steps, int32_t* ids, uint64_t width, uint64_t* lengths,
                                              attn_error* err);
/* Writes a prompt and draws tokens behind it, until </s>, the limit, a stop or the callback.  The session, of one row,
 * may stand anywhere; an empty one without a prompt begins with <s>.  Since minor 1.
 * Shapes    prompt: n_prompt ids, taken as they are, or NULL with 0; ids and *n as in generate.
 * Numbers   The same tokens for the same options, prompt and position of the session; those of generate at temperature 0
 *           without a penalty.
 * Errors    INVALID: options out of their bounds, a stop that is empty or no UTF-8, ids outside the vocabulary, a prompt
 *           beyond max_length, rows, under [stream] a prompt or target that ends in </s>: the session is as before.
 *           INTERNAL: scores that are not numbers. */
ATTNKIT_API int32_t attnkit_session_sample(attnkit_session* session, const int32_t* prompt, uint64_t n_prompt,
                                           const attnkit_sample_options* options, int32_t* ids, uint64_t* n,
                                           attn_error* err);
/* Saves the whole session as bytes from which any process with the same model can continue, bitwise on a machine of the
 * same kind.  They identify the model by its dimensions, its mechanisms with options and state revisions, and a digest
 * of its weights, so the files may lie elsewhere; the format is described in core/session/blob.hpp. */
ATTNKIT_API int32_t attnkit_session_save(const attnkit_session* session, attnkit_blob** blob, attn_error* err);
/* Makes a session from saved bytes.  They must come from someone you trust: a checksum guards them against damage only.
 * Errors    INVALID: bytes that are damaged, truncated, from another model or of a later format. */
ATTNKIT_API int32_t attnkit_session_load(const attnkit_model* model, const void* bytes, uint64_t n,
                                         attnkit_session** session, attn_error* err);
/* Decodes a source that arrives unit by unit (words, chunks of speech) simultaneously and greedily, in an empty session
 * of one row: calls options->decide, does as it answers, reports that to options->observe, until </s>, the limit or
 * STOP. Units that were read reach the model together before the next token is computed, so that they cost one pass,
 * and a source that is read whole before the first token needs no model that can take a growing one.  The callbacks
 * must neither use this session nor throw.
 * Shapes    source (1, S) int32 ids, </s> included, or speech; ids: room for limit, or for max_length when it is 0;
 *           *n on return: tokens made, </s> included when reached; the session lacks the last: write it to go on.
 * Errors    INVALID: as read; ends that do not ascend to S, units without ends; a policy that answers something else, or
 *           that writes before it has read anything.  UNSUPPORTED: as read; a model without an encoder. */
ATTNKIT_API int32_t attnkit_session_simulate(attnkit_session* session, const attn_tensor* source,
                                             const attnkit_stream_options* options, int32_t* ids, uint64_t* n,
                                             attn_error* err);
/* Returns JSON "attnkit.session/1": rows, source and target position, predicted target length, tokens beyond it, state
 * bytes per block and of all; of the source whether it is complete, how often it was read, what ran anew because it
 * grew, and the bytes kept for that; of speech the amounts that were read and that wait. */
ATTNKIT_API int32_t attnkit_session_describe(const attnkit_session* session, attnkit_text** json, attn_error* err);

/* Calls one mechanism by itself.  options_toml: an inline table's content such as "guard = 'add', eps = 1e-6", or NULL.
 * The calls are those of attn_plugin with all arguments checked that plugin.h has rules for, overlaps and alignment
 * included, but for the slots of a state and, on CUDA, per-row arrays; request and run carry the same bounds.
 * run, and grad.run of backward: exec NULL uses the runtime's threads and scratch of its own, on the CPU.
 * Threads   Any number of calls at once. */
ATTNKIT_API int32_t attnkit_block_create(attnkit_runtime* runtime, const char* mechanism, const attn_block* where,
                                         const char* options_toml, attnkit_block** block, attn_error* err);
ATTNKIT_API void attnkit_block_destroy(attnkit_block* block);
ATTNKIT_API const attn_port* const* attnkit_block_ports(const attnkit_block* block, uint32_t* n);
ATTNKIT_API int32_t attnkit_block_fill(const attnkit_block* block, uint32_t port, uint64_t seed,
                                       const attn_tensor* tensor, attn_error* err);
ATTNKIT_API int32_t attnkit_block_plan(const attnkit_block* block, const attn_request* request, attn_info* info,
                                       attn_error* err);
ATTNKIT_API int32_t attnkit_block_run(const attnkit_block* block, const attn_request* request, const attn_run* run,
                                      attn_error* err);
ATTNKIT_API int32_t attnkit_block_backward(const attnkit_block* block, const attn_request* request,
                                           const attn_grad* grad, attn_error* err);

/* Returns the bytes of a safetensors file with all tensors of a model, as read or as made from the seed, in f32.
 * Errors    INVALID: the weights file was changed since. */
ATTNKIT_API int32_t attnkit_model_weights(const attnkit_model* model, attnkit_blob** safetensors, attn_error* err);
/* Computes forward on the inputs in a file of golden activations and compares, layer by layer, what comes out.  Returns
 * JSON "attnkit.verification/1": per layer, in the order they run, the largest difference, where it is, and the largest
 * expected number.  The file is safetensors: source, source_len, target, target_len as in forward; every other tensor
 * is what the layer of that name puts out, f32: "encoder.self.1", "encoder.ffn.1", "encoder" (after the last norm),
 * "logits".
 * Errors    As forward; INVALID: the file, its shapes, a name that is no layer. */
ATTNKIT_API int32_t attnkit_model_verify(const attnkit_model* model, const char* golden, attnkit_text** json,
                                         attn_error* err);

#ifdef __cplusplus
}
#endif
#endif
