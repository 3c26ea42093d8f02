// The functions of a library that computes models on a device: libattnkit_cuda.so for CUDA.  libattnkit loads it when a
// runtime asks for that device, so a machine without CUDA needs none of it.  Both libraries are of one build: a table
// of another version is refused, so this is no ABI and may change with each.
//
// Tensors are in device memory, contiguous and row by row, and f32 where they are floats; where they are void their
// type is said, f32, bf16 or f16.  Per-row arrays (ids, lengths, positions) are device memory too.  A function enqueues
// on `stream` and does not wait unless it says so; none but allocate allocates, so a stream can be captured.  Fallible
// functions return ATTN_OK or a code, and then fill the error: ATTN_DEVICE with CUDA's own words, ATTN_NO_MEMORY with
// the bytes that were wanted and free.  Any thread, with a stream of its own.
#pragma once

#include <attnkit/plugin.h>

#include <cstdint>

namespace attnkit::core {

struct DeviceHandle;  // one device, opened
struct DeviceGraph;   // work that was captured

// Of products and tensors; tf32, of products alone: f32 weights, rounded while multiplying.
enum class DeviceType : uint32_t { f32, tf32, bf16, f16 };
constexpr bool has_16_bits(DeviceType type) { return type == DeviceType::bf16 || type == DeviceType::f16; }

constexpr int64_t kMostOfTop = 256;

enum class DeviceActivation : uint32_t { none, relu, gelu, gelu_tanh, quick_gelu, silu };

struct DeviceInfo {
  char name[128];
  uint64_t memory, free;  // bytes
  int32_t multiprocessors, major, minor;
};

// y = f(W x + b), y += W x + b with add.  W (outputs, inputs) in f32, bf16 or f16; inputs in f32 are rounded to that
// type in scratch, sums are f32.
struct DeviceDense {
  const void* weight;
  const float* bias;  // NULL: none
  int64_t inputs, outputs;
  DeviceType type;
  const void* rounded_bias = nullptr;  // in 16 bits: the bias in `type`, for y in `type`; NULL where bias is
};

// As LayerNorm of core/model/layers.hpp.
struct DeviceNorm {
  const float *weight, *bias;  // bias NULL: none
  int64_t width;
  double epsilon;
  bool rms;
};

// x = scale * table[id] + positions[p], zeros behind the ids of a row; the norm is not part of it.
struct DeviceEmbedding {
  const float *table, *positions;  // (vocabulary, width), (max_length, width); positions NULL: none
  int64_t width;
  float scale;
  bool zero_begin;  // zeros in place of table[id] at position 0
};

// As Rotary of core/model/rotary.hpp; turns (max_length, pairs, 2): cosine and sine of each position and pair.
struct DeviceRotary {
  const float* turns;
  int64_t max_length, pairs, first, second;  // how far apart pairs, and the two of a pair, are
};

// Heads that a dense layer made beside others, and where they go; as `turn` and `repeat_heads` say.
struct DeviceHeads {
  void* to;  // (rows, heads, width)
  int64_t made, heads, width;
  bool turns;
};
constexpr int64_t kMostHeads = 4;

struct DeviceTable {
  uint32_t struct_size;
  int32_t device_type;  // 2 for CUDA
  const char* version;  // ATTNKIT_VERSION of its build

  // Devices.  open waits.  Errors: no driver, a driver too old, no such device, one of another architecture; in words.
  int32_t (*open)(int32_t id, DeviceHandle** device, attn_error* err);
  void (*close)(DeviceHandle* device);
  int32_t (*describe)(const DeviceHandle* device, DeviceInfo* info, attn_error* err);
  // Makes the device the one of the calling thread, which plugins count on; former: the one before.  No other function
  // changes it for longer than the call.
  int32_t (*make_current)(const DeviceHandle* device, int32_t* former, attn_error* err);
  void (*make_former_current)(int32_t former);

  // Memory and streams.  to_host and wait wait for the stream; from_host has taken the bytes when it returns unless
  // they are of allocate_host.  Addresses are multiples of 256.
  int32_t (*make_stream)(DeviceHandle* device, uintptr_t* stream, attn_error* err);
  void (*free_stream)(DeviceHandle* device, uintptr_t stream);
  int32_t (*wait)(DeviceHandle* device, uintptr_t stream, attn_error* err);
  int32_t (*allocate)(DeviceHandle* device, uint64_t bytes, void** memory, attn_error* err);
  void (*release)(DeviceHandle* device, void* memory);
  int32_t (*allocate_host)(DeviceHandle* device, uint64_t bytes, void** memory, attn_error* err);  // pinned
  void (*release_host)(DeviceHandle* device, void* memory);
  int32_t (*from_host)(DeviceHandle* device, uintptr_t stream, void* to, const void* from, uint64_t bytes,
                       attn_error* err);
  int32_t (*to_host)(DeviceHandle* device, uintptr_t stream, void* to, const void* from, uint64_t bytes,
                     attn_error* err);
  int32_t (*copy)(DeviceHandle* device, uintptr_t stream, void* to, const void* from, uint64_t bytes, attn_error* err);
  int32_t (*zero)(DeviceHandle* device, uintptr_t stream, void* memory, uint64_t bytes, attn_error* err);

  // Graphs: what is enqueued between begin and end is not run but kept; launch enqueues it.
  int32_t (*begin_capture)(DeviceHandle* device, uintptr_t stream, attn_error* err);
  int32_t (*end_capture)(DeviceHandle* device, uintptr_t stream, DeviceGraph** graph, attn_error* err);
  int32_t (*launch)(DeviceHandle* device, uintptr_t stream, const DeviceGraph* graph, attn_error* err);
  void (*free_graph)(DeviceGraph* graph);

  // Layers.
  // W (outputs, inputs) of the host in f32 to `type` at `to` (device, 2 or 4 bytes each).  Waits.
  int32_t (*pack)(DeviceHandle* device, uintptr_t stream, DeviceType type, const float* from, int64_t count, void* to,
                  attn_error* err);
  uint64_t (*dense_scratch)(const DeviceDense* layer, int64_t rows);  // bytes, for x in f32
  // x (rows, inputs), y (rows, outputs), each in f32 or the layer's type, y in 16 bits without f and add; they do not
  // overlap.  The rows of a call are independent.
  int32_t (*dense)(DeviceHandle* device, uintptr_t stream, const DeviceDense* layer, const void* x, DeviceType of_x,
                   void* y, DeviceType of_y, int64_t rows, DeviceActivation f, bool add, void* scratch,
                   attn_error* err);
  // To bf16 or f16.
  int32_t (*round_to_16_bits)(DeviceHandle* device, uintptr_t stream, DeviceType type, const float* from, int64_t count,
                              void* to, attn_error* err);
  // y may be x.
  int32_t (*norm)(DeviceHandle* device, uintptr_t stream, const DeviceNorm* layer, const float* x, void* y,
                  DeviceType of_y, int64_t rows, attn_error* err);
  // ids (batch, length), lengths (batch); first (batch): position of a row's first id, NULL: 0.  x (batch, length,
  // width).
  int32_t (*embed)(DeviceHandle* device, uintptr_t stream, const DeviceEmbedding* layer, const int32_t* ids,
                   const int32_t* lengths, const int32_t* first, int64_t batch, int64_t length, float* x,
                   attn_error* err);
  // Zeros behind the first lengths[b] of the `length` rows of each b.
  int32_t (*clear_padding)(DeviceHandle* device, uintptr_t stream, float* x, const int32_t* lengths, int64_t batch,
                           int64_t length, int64_t width, attn_error* err);
  int32_t (*add)(DeviceHandle* device, uintptr_t stream, float* x, const void* y, DeviceType of_y, int64_t n,
                 attn_error* err);  // x += y
  // to (rows, width) = f(x) * y, y NULL: f(x); rows of x and y are `next` apart.  to may be x if that is the width.
  int32_t (*gate)(DeviceHandle* device, uintptr_t stream, const float* x, const float* y, int64_t next,
                  DeviceActivation f, void* to, DeviceType of_to, int64_t rows, int64_t width, attn_error* err);
  // x (rows, width) = scale * x + bias (width), NULL: none.
  int32_t (*scale)(DeviceHandle* device, uintptr_t stream, float* x, float scale, const float* bias, int64_t rows,
                   int64_t width, attn_error* err);
  // As normalise_heads of core/model/layers.hpp.
  int32_t (*normalise_heads)(DeviceHandle* device, uintptr_t stream, void* o, DeviceType of_o, int64_t rows,
                             int64_t heads, int64_t width, attn_error* err);
  // x, y (batch, length, heads, width); row i of b stands at min(first[b] + i, max_length - 1), first NULL: 0.  y may
  // be x.
  int32_t (*turn)(DeviceHandle* device, uintptr_t stream, const DeviceRotary* layer, const float* x, void* y,
                  DeviceType of_y, const int32_t* first, int64_t batch, int64_t length, int64_t heads, int64_t width,
                  attn_error* err);
  // to (rows, heads, width) from (rows, kv_heads, width): head h takes h / (heads / kv_heads).
  int32_t (*repeat_heads)(DeviceHandle* device, uintptr_t stream, const float* from, void* to, DeviceType of_to,
                          int64_t rows, int64_t kv_heads, int64_t heads, int64_t width, attn_error* err);
  // x (batch * length, made heads of all parts side by side) to each of up to kMostHeads parts; layer NULL: none turns.
  int32_t (*spread)(DeviceHandle* device, uintptr_t stream, const DeviceHeads* parts, int64_t count,
                    const DeviceRotary* layer, const float* x, DeviceType of_to, const int32_t* first, int64_t batch,
                    int64_t length, attn_error* err);

  // Scores (rows, outputs) of the tokens that may follow.
  // best[r]: the id of the highest score, the first among equals, -1 where one is NaN.
  int32_t (*best)(DeviceHandle* device, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs,
                  int32_t* best, attn_error* err);
  // The `count` highest of each row, best first, the lower id first among equals: ids and scores (rows, count); norms
  // (rows): log(sum of exp(scores)), NaN where a score is.  count <= min(outputs, kMostOfTop).
  int32_t (*top)(DeviceHandle* device, uintptr_t stream, const float* scores, int64_t rows, int64_t outputs,
                 int64_t count, int32_t* ids, float* top, float* norms, attn_error* err);
};

// The one symbol of the library, "attnkit_device_table".
using DeviceTableFn = const DeviceTable* (*)();

}  // namespace attnkit::core
