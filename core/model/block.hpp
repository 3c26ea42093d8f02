// One attention position of a model: a mechanism, the projections around it, and its stored tensors.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/model/dense.hpp"
#include "core/manifest/manifest.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/base/threads.hpp"
#include "core/weights/reader.hpp"

namespace attnkit {

class Sha256;

// A sequence that travels from block to block by name (ATTN_AUX_IN, ATTN_AUX_OUT): (batch, 1, rows, width).
struct AuxValue {
  std::vector<float> data;
  int64_t rows = 0, width = 0;  // 0: there is none; its memory waits to be used again
};
using Aux = std::map<std::string, AuxValue, std::less<>>;

// What one thread of control needs to run blocks one after another.
struct Workspace {
  std::vector<Buffer> ports;
  std::vector<attn_tensor> tensors;
  Buffer scratch;
};

// One run of a block.  Rows are D wide and contiguous; per-row arrays have `batch` entries or are NULL as in attn_run.
struct BlockCall {
  int64_t batch = 0, queries = 0, keys = 0;
  const float* input = nullptr;    // (batch * queries, D): what QUERY ports project
  const float* context = nullptr;  // (batch * keys, D): what KEY ports project
  const int32_t *q_len = nullptr, *k_len = nullptr, *q_pos = nullptr, *k_pos = nullptr;
  const double *q_total = nullptr, *k_total = nullptr;
  void* state = nullptr;
  uint64_t state_stride = 0;
  const int32_t* slots = nullptr;
  Aux* aux = nullptr;    // NULL: the block has none
  float* out = nullptr;  // (batch * queries, D); may be NULL when queries is 0
};

class Block {
 public:
  // Problems of the weights go to the reader's diagnostics; a mechanism that refuses throws Error.
  Block(const Manifest& manifest, const BlockChoice& choice, const Plugin& plugin, WeightReader& reader);

  const BlockChoice& choice() const { return choice_; }
  const Mechanism& mechanism() const { return *mechanism_; }
  void digest(Sha256& to) const;                      // adds all stored tensors
  bool streams() const { return streams_; }           // its runs in sessions carry state
  int64_t parameters() const { return parameters_; }  // without those of the model
  // Numbers of the learned tensors that all blocks of the mechanism have in common (ATTN_PER_MODEL), by name.
  const std::map<std::string, int64_t>& model_parameters() const { return model_parameters_; }
  // Does the mechanism take or give a sequence of this name from block to block?  kind: ATTN_AUX_IN, ATTN_AUX_OUT.
  bool has_aux(uint32_t kind, const std::string& name) const;
  std::vector<std::string> aux_names(uint32_t kind) const;
  int64_t aux_width(const std::string& name) const;

  Plan plan_whole(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const;
  // Runs of up to these sizes on states of `capacity` keys.
  Plan plan_stream(uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t capacity) const;
  // Would the mechanism refuse to run so in sessions, `queries` reading and `keys` being appended (0: none), if it were
  // not told the target's length?  False where it is not told it anyway.
  bool needs_target(int64_t queries, int64_t keys) const;
  uint64_t state_bytes(int64_t capacity) const;  // of one row, a multiple of ATTN_ALIGN

  // Project, attend, normalise heads, project out.  Any thread, one workspace each.
  void run(Threads& threads, Workspace& workspace, const Plan& plan, const BlockCall& call) const;
  // weights (heads, queries, keys) of batch row 0: the mechanism's output when its values are unit vectors.
  void attention(Threads& threads, Workspace& workspace, const BlockCall& call, float* weights) const;

 private:
  struct Stored {
    std::vector<float> f32;
    std::vector<std::byte> raw;
  };
  void load_projection(size_t port, WeightReader& reader);
  void load_output(size_t port, WeightReader& reader);
  void load_stored(size_t port, WeightReader& reader);
  void project(Threads& threads, Workspace& workspace, const BlockCall& call, std::vector<attn_tensor>& tensors) const;
  void bind_aux(Workspace& workspace, const BlockCall& call, size_t port, attn_tensor& tensor) const;
  attn_run bind(const BlockCall& call, const std::vector<attn_tensor>& tensors, const attn_exec& exec) const;
  bool is_shared(const attn_port& port) const;
  std::string own_name(const attn_port& port) const;

  BlockChoice choice_;
  std::string path_;
  int64_t d_model_ = 0;
  bool head_norm_ = false, adapted_ = false, streams_ = false;
  uint32_t totals_ = 0;
  std::shared_ptr<const Mechanism> mechanism_;
  std::vector<Dense> projections_;  // by port; empty where the port has none
  std::vector<Stored> stored_;      // by port
  size_t output_ = 0;
  Dense out_;
  bool out_raw_ = false;
  int64_t parameters_ = 0;
  std::map<std::string, int64_t> model_parameters_;
};

}  // namespace attnkit
