// Buffers that running a model needs, one set for each thread of control, and the pool of those that no call is using.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/threads.hpp"
#include "core/length/length.hpp"
#include "core/plugin/mechanism.hpp"

namespace attnkit::core {

class Arena;
class Compute;
class DeviceCompute;

// A sequence that travels from block to block by name (ATTN_AUX_IN, ATTN_AUX_OUT): (batch, 1, rows, width).
struct AuxValue {
  std::vector<float> data;
  int64_t rows = 0, width = 0;  // 0: there is none; its memory waits to be used again
};
using Aux = std::map<std::string, AuxValue, std::less<>>;

// One side of a run, its queries or its keys.  The vectors have an entry for each row of the batch, or none where
// attn_run has NULL.
struct Side {
  int64_t length = 0;  // of every row, padding included
  std::vector<int32_t> lengths, positions, slots;
  std::vector<double> totals;
  const Arena* states = nullptr;  // of the keys; NULL: a run without states

  void reset(int64_t new_length, const Arena* new_states = nullptr) {
    length = new_length;
    states = new_states;
    for (auto* v : {&lengths, &positions, &slots}) v->clear();
    totals.clear();
  }
};

enum class PlanKind { encode, append, step };
using PlanKey = std::tuple<PlanKind, int64_t, int64_t>;  // kind, rows, tokens
using Plans = std::vector<Plan>;                         // of the blocks that run, in their order

struct Projection;

struct Workspace {
  Workspace();
  ~Workspace();
  // Its memory is the device's then, if it computes on one.
  void use(std::unique_ptr<Compute> how, DeviceCompute* device_of = nullptr);

  std::unique_ptr<Compute> compute;
  DeviceCompute* device = nullptr;  // the same; NULL on the CPU
  Threads* threads = nullptr;
  std::vector<Buffer> ports;
  std::vector<attn_tensor> tensors;
  std::vector<Projection> of_queries, of_keys;  // of a block; one list where both sides are the same rows
  attn_exec exec{};
  Buffer scratch, x, normed, y, hidden, memory, scores;
  Buffer input, context;  // of a block, where it computes in 16 bits
  Side source, target;
  std::vector<int32_t> ids;               // (rows, target.length) of a decoding step
  Aux aux;                                // of the rows of a decoding step
  std::map<PlanKey, const Plans*> plans;  // those of the model that it met
  LengthBuffers length;
  std::vector<double> predicted;  // by source: its target's length; empty where nothing predicts it
};

// Taking and giving back neither locks nor, as long as there are no more threads than places, touches what another
// thread touches.  Any thread.
class WorkspacePool {
 public:
  struct GiveBack {
    WorkspacePool* pool;
    void operator()(Workspace* workspace) const { pool->give(workspace); }
  };
  using Lease = std::unique_ptr<Workspace, GiveBack>;

  WorkspacePool() = default;
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;

  // The one that this thread gave back last, else any, else a new one.
  Lease take();

 private:
  // Keeps it, or frees it when all places are full: a burst of threads must not hold memory for ever.
  void give(Workspace* workspace);

  struct alignas(64) Place {  // a cache line each
    std::atomic<Workspace*> idle{nullptr};
  };
  std::array<Place, 64> places_;
};

}  // namespace attnkit::core
