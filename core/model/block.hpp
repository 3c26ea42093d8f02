// One attention position of a model: a mechanism, the projections around it, and its stored tensors.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/device/table.hpp"
#include "core/manifest/manifest.hpp"
#include "core/model/dense/dense.hpp"
#include "core/model/layers.hpp"
#include "core/model/rotary.hpp"
#include "core/model/workspace.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/weights/reader.hpp"

namespace attnkit::core {

class Sha256;
struct HeadSteps;

// A bound of plans that are kept: n rounded up to a power of two, so that there are few, but not beyond `most` unless n
// is.
int64_t plan_bound(int64_t n, int64_t most = std::numeric_limits<int64_t>::max());

// The type of the tensors that it is for.
DeviceType type_of(const Plan& plan);

// One run of a block.
struct BlockCall {
  const Side &queries, &keys;
  const void* input;    // (batch, queries.length, D): what QUERY ports project
  DeviceType of_input;  // f32, or as type_of says of the plan
  const void* context;  // (batch, keys.length, D): what KEY ports project, in f32 unless it is the input
  float* sum;           // (batch, queries.length, D): what the block adds to; NULL when there are no queries
  Aux& aux;
  int64_t batch() const { return static_cast<int64_t>(queries.lengths.size()); }
};

class Block {
 public:
  // Problems of the weights go to the reader's diagnostics; a mechanism that refuses throws Error.  rotary: what turns
  // q and k of self attention, or NULL.
  Block(const Manifest& manifest, const BlockChoice& choice, const Plugin& plugin, WeightReader& reader,
        std::shared_ptr<const Rotary> rotary = nullptr);

  const BlockChoice& choice() const { return choice_; }
  const std::string& path() const { return path_; }  // "encoder.self.1"
  const Mechanism& mechanism() const { return *mechanism_; }
  void digest(Sha256& to) const;  // adds all stored tensors
  // Calls f with each Dense, LayerNorm and std::span<const std::byte> that its runs read.
  template <class F>
  void each_stored(F&& f) const {
    for (const Dense& projection : projections_) f(projection);
    for (const auto& [port, norm] : norms_) f(norm);
    for (const Stored& stored : stored_) f(stored.bytes());
    f(out_);
  }
  // The layers of ports of the same rows, in self attention: one product makes them.
  std::vector<const Dense*> made_together() const;
  bool streams() const { return streams_; }           // its runs in sessions carry state
  bool turns() const;                                 // rotary positions have something to turn
  int64_t max_length() const { return max_length_; }  // of what its keys are made of
  int64_t parameters() const { return parameters_; }  // without those of the model
  // Of its dense layers, for so many rows of queries and of keys.
  __int128 multiply_adds(int64_t queries, int64_t keys) const;
  // Numbers of the learned tensors that all blocks of the mechanism have in common (ATTN_PER_MODEL), by name.
  const std::map<std::string, int64_t>& model_parameters() const { return model_parameters_; }

  // Plans are in 16 bits on a device with such weights, where the mechanism takes that for such runs, else in f32.
  Plan plan_whole(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const;
  // Runs of up to these sizes on states of `capacity` keys.
  Plan plan_stream(uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t capacity) const;
  // Would the mechanism refuse to run so in sessions, `queries` reading and `keys` being appended (0: none), without
  // the target's length?  False where it is not given it anyway.
  bool needs_target(int64_t queries, int64_t keys) const;
  // Of one row, a multiple of ATTN_ALIGN; 0 for a capacity of 0.  Up to max_length never more than at max_length.
  uint64_t state_bytes(int64_t capacity) const;

  // Project, attend, normalise heads, project out, add.  plan NULL: one is made for this run.  Any thread, one
  // workspace each.
  void run(Workspace& ws, const Plan* plan, const BlockCall& call) const;
  // weights (heads, queries, keys) of batch row 0: the mechanism's output when its values are unit vectors.
  void attention(Workspace& ws, const BlockCall& call, float* weights) const;

 private:
  struct Stored {
    std::vector<float> f32;
    std::vector<std::byte> raw;
    std::span<const std::byte> bytes() const { return raw.empty() ? std::as_bytes(std::span(f32)) : std::span(raw); }
  };
  template <class Adapt>
  Dense load_dense(const attn_port& port, const std::string& shared_name, int64_t inputs, int64_t outputs, double gain,
                   WeightReader& reader, bool adapted, Adapt&& adapt);
  void load_projection(size_t port, WeightReader& reader);
  LayerNorm load_norm(size_t port, double epsilon, WeightReader& reader);
  void load_output(size_t port, WeightReader& reader);
  void load_stored(size_t port, WeightReader& reader);
  bool is_shared(const attn_port& port) const;
  int64_t heads_of(const attn_port& port) const;
  bool turns(size_t port) const;
  float scale_of(const attn_port& port) const;
  std::string own_name(const attn_port& port) const;
  // A call's inputs in the type of its plan.
  struct Inputs {
    DeviceType type;
    const void *input, *context;
  };
  attn_run prepare(Workspace& ws, const Plan& plan, const BlockCall& call) const;
  // Its projection, if it has one, goes to the lists of ws.
  attn_tensor tensor_of(Workspace& ws, const BlockCall& call, const Inputs& inputs, size_t port) const;
  HeadSteps steps_behind(size_t port) const;
  attn_request request(uint32_t flags, uint32_t workers, int64_t batch, int64_t queries, int64_t keys,
                       int64_t past) const;
  Plan plan(const attn_request& request) const;
  const Plan& kept_plan(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const;
  void hand_on(const Workspace& ws, const BlockCall& call) const;

  BlockChoice choice_;
  std::string path_;
  int64_t d_model_ = 0, kv_heads_ = 0;
  WeightType type_ = WeightType::f32;
  DeviceType attends_in_ = DeviceType::f32;  // if the mechanism does
  std::set<std::string> bias_;
  double query_scale_ = 1;  // what attention_scale leaves to be done beside 1 / sqrt(D)
  bool head_norm_ = false, qk_norm_ = false, adapted_ = false, streams_ = false;
  uint32_t totals_ = 0;
  int64_t max_length_ = 0;
  uint64_t row_bytes_ = 0;  // of a state at max_length; 0 where no run carries state
  std::shared_ptr<const Mechanism> mechanism_;
  std::vector<Dense> projections_;        // by port; empty where the port has none
  std::vector<Stored> stored_;            // by port
  std::map<size_t, LayerNorm> norms_;     // of the heads of ports "q" and "k", where the model has them
  std::shared_ptr<const Rotary> rotary_;  // NULL: q and k do not turn
  size_t output_ = 0;
  Dense out_;
  bool out_raw_ = false;
  int64_t parameters_ = 0;
  std::map<std::string, int64_t> model_parameters_;
  mutable std::mutex mutex_;
  mutable std::map<std::array<int64_t, 3>, Plan> kept_plans_;  // of whole sequences, by batch, queries, keys
};

}  // namespace attnkit::core
