// A transformer around attention blocks: encoder, decoder or both, as the manifest says.  Immutable after loading: any
// thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/session/arena.hpp"
#include "core/model/block.hpp"
#include "core/model/encoded.hpp"
#include "core/speech/frontend.hpp"
#include "core/model/layers.hpp"
#include "core/length/length.hpp"
#include "core/manifest/manifest.hpp"
#include "core/plugin/runtime.hpp"
#include "core/speech/source.hpp"
#include "core/model/vocabulary.hpp"
#include "core/model/workspace_pool.hpp"

namespace attnkit {

struct FeedForward {
  LayerNorm norm;
  Dense in, out;
};

struct Attention {
  LayerNorm norm;
  std::unique_ptr<Block> block;
};

struct Layer {
  Attention self, cross;  // cross.block is NULL in encoders and decoder-only models
  FeedForward feed_forward;
};

struct Transformer {  // one stack
  Embedding embedding;
  std::vector<Layer> layers;
  LayerNorm norm;  // after the last layer of a pre-norm model
};

// Plans for streaming runs within bounds, one per layer.
struct StreamPlans {
  std::vector<Plan> self, cross, append, encode;
};
using PlanKey = std::tuple<int, int64_t, int64_t>;  // kind of run, rows, tokens

// Buffers of one thread of control.
struct ModelWorkspace {
  Workspace block;
  Buffer x, normed, y, hidden, memory;
  Aux aux;  // of the rows of one decoding step
  std::vector<int32_t> ids, lengths, source_lengths, positions, slots, cross_slots, k_positions;
  std::vector<double> totals, source_totals;
  std::map<PlanKey, const StreamPlans*> plans;  // those of the model that it met
  LengthBuffers length;
  std::vector<double> predicted;  // by source: its target's length; empty where nothing predicts it
};

// Which block's attention weights a forward pass should write, and where.
struct Probe {
  uint32_t role;
  int layer;
  float* weights;
};

// A part of a source on its way into the cross states of a slot.
struct SourceRows {
  const float* hidden = nullptr;  // (length - first, D) of the encoder's output
  int64_t first = 0;              // the row that hidden begins with: at most `known`, 0 where any block is filled anew
  int64_t length = 0;             // of the source so far
  int64_t known = 0;              // rows that the states have already
  bool all = false;               // fills every block anew, not only those that replay
  double target_total = 0;
};

// Sessions' rows that take one decoding step together.  Arrays have `rows` entries.
struct Step {
  int64_t rows = 0, length = 0;
  const int32_t *ids = nullptr, *len = nullptr, *position = nullptr, *self_slots = nullptr, *cross_slots = nullptr,
                *source_len = nullptr;
  const double *target_total = nullptr, *source_total = nullptr;
};

class Model : public std::enable_shared_from_this<Model> {
 public:
  // Reads manifest and weights; NULL after diagnostics.failed().
  static std::shared_ptr<const Model> load(std::shared_ptr<Runtime> runtime, const std::string& toml,
                                           const std::string& dir, Diagnostics& diagnostics);

  const Manifest& manifest() const { return manifest_; }
  Runtime& runtime() const { return *runtime_; }
  const Vocabulary* vocabulary(bool target) const;
  const Frontend* frontend() const { return frontend_ ? &*frontend_ : nullptr; }  // NULL: the source is no speech
  bool has_encoder() const { return manifest_.encoder.layers > 0; }
  bool has_decoder() const { return manifest_.decoder.layers > 0; }
  int64_t outputs() const { return head_.outputs(); }
  int64_t parameters() const { return parameters_; }
  const Transformer& encoder() const { return encoder_; }
  const Transformer& decoder() const { return decoder_; }

  // logits: (B, T, outputs), or (B, outputs) for a classifier.  Arguments are checked.  probe may be NULL; out may then
  // be NULL.
  void forward(const RawSource& source, const Ids& target, float* out, const Probe* probe = nullptr) const;

  // forward in two steps, for models with both stacks.  encode: arguments are checked.
  std::unique_ptr<const Encoded> encode(const RawSource& source) const;
  // Throws Error unless decode can take these.
  void check_decode(const Encoded& encoded, const Ids& target) const;
  void decode(const Encoded& encoded, const Ids& target, float* out) const;

  // Everything below serves sessions.
  // hidden (length, D): the encoder's output for one source; aux: the sequences that it gave out.
  void encode_one(ModelWorkspace& ws, const SourcePiece& source, const float*& hidden, Aux& aux) const;
  // The encoder takes a source piece by piece, with states of its own.
  bool encoder_appends() const { return manifest_.stream && manifest_.encoder.causal; }
  // Some block of decoder.cross is filled anew whenever the source grows.
  bool replays() const;
  // The same for a piece at `position`, whose predecessors are in the encoder's states of `slot`.
  void encode_more(ModelWorkspace& ws, const SourcePiece& more, int64_t position, int32_t slot, const float*& hidden,
                   Aux& aux) const;
  // Fills the cross states of `slot` with the keys of a source.  Gives the number of keys that states had before.
  int64_t append_source(ModelWorkspace& ws, const SourceRows& rows, int32_t slot, Aux aux) const;
  // x (rows, length, D): the decoder's final hidden rows; lives in ws, whose aux holds the sequences for these rows.
  const float* step(ModelWorkspace& ws, const Step& step) const;
  void logits(const float* x, int64_t rows, float* out) const;
  // What predicts the target's length; NULL: nothing does.
  const Length* length() const { return length_.get(); }
  // What sessions keep of a source that goes on: its ids, the encoder's rows.
  bool keeps_ids() const { return !frontend_ && (!encoder_appends() || (length_ && length_->needs_ids())); }
  bool keeps_rows() const { return encoder_appends() && (replays() || (length_ && length_->needs_rows())); }
  // "decoder.cross.1": the first block whose keys depend on the target's length; empty: none.
  const std::string& measures_by_target() const { return measures_by_target_; }
  Arena& self_arena() const;
  Arena& cross_arena() const;
  Arena& encoder_arena() const;
  // Bytes of each decoder layer's state at a length, self and cross; of the encoder's, where it has states.
  std::vector<uint64_t> self_bytes(int64_t length) const;
  std::vector<uint64_t> cross_bytes(int64_t length) const;
  std::vector<uint64_t> encoder_bytes(int64_t length) const;
  const std::string& digest() const;  // of all tensors, 64 hexadecimal digits
  bool within_total() const { return within_total_; }
  void check_ids(const Ids& ids, bool target) const;
  // What the model takes, and only that, with at most max_length rows of the encoder.
  void check_source(const RawSource& source) const;
  int64_t source_rows(const RawSource& source) const;  // columns of the encoder's batch

  struct Lease;  // a workspace that goes back by itself
  Lease lease() const;

 private:
  Model() = default;
  friend class ModelLoader;
  // Puts the lengths of the source into ws.
  void encode(ModelWorkspace& ws, const RawSource& source, float* x, Aux& aux, const Probe* probe) const;
  void run_encoder(ModelWorkspace& ws, int64_t length, float* x, Aux& aux, const Probe* probe) const;
  // memory (target.batch, source_length, D): what encode put out; its lengths are in ws.
  float* decode(ModelWorkspace& ws, const Ids& target, const float* memory, int64_t source_length, Aux& aux,
                const Probe* probe) const;
  // Puts the length of each source's target into ws.  memory: what encode put out.
  void predict(ModelWorkspace& ws, const Ids& source, int64_t length, const float* memory) const;
  void score(const float* x, const Ids& ids, float* out) const;
  void require_pair() const;
  void embed(const Transformer& stack, const Ids& ids, const int32_t* position, float* x) const;
  void embed_speech(const RawSource& source, std::vector<int32_t>& lengths, float* x) const;
  void embed_piece(const SourcePiece& piece, int64_t position, float* x) const;
  void pool(ModelWorkspace& ws, int64_t length, const float* x, const Aux& aux, float* pooled) const;
  void classify(ModelWorkspace& ws, int64_t length, const float* x, const Aux& aux, float* out) const;
  template <class F>
  void residual(ModelWorkspace& ws, const LayerNorm& norm, float* x, int64_t rows, F&& f) const;
  void feed_forward(ModelWorkspace& ws, const FeedForward& ffn, float* x, int64_t rows) const;
  void finish(const Transformer& stack, float* x, int64_t rows) const;
  void attend(ModelWorkspace& ws, const Attention& attention, float* x, BlockCall call, const Plan* plan,
              const Probe* probe) const;
  template <class F>
  const StreamPlans& planned(ModelWorkspace& ws, const PlanKey& key, F&& make) const;
  const StreamPlans& plans(ModelWorkspace& ws, int64_t rows, int64_t queries, int64_t past) const;
  const StreamPlans& append_plans(ModelWorkspace& ws, int64_t keys, int64_t past) const;
  const StreamPlans& encode_plans(ModelWorkspace& ws, int64_t tokens, int64_t past) const;
  int64_t bound(int64_t length, int64_t past) const;

  std::shared_ptr<Runtime> runtime_;
  Manifest manifest_;
  std::optional<Vocabulary> source_vocabulary_, target_vocabulary_;
  std::optional<Frontend> frontend_;
  Transformer encoder_, decoder_;
  Dense head_, head_hidden_;                                 // head_hidden_: of classifiers that have one
  std::shared_ptr<const EncoderIdentity> encoder_identity_;  // NULL without an encoder
  std::unique_ptr<const Length> length_;
  std::string measures_by_target_;
  int64_t parameters_ = 0;
  bool within_total_ = false;
  mutable std::once_flag digested_;
  mutable std::string digest_;
  mutable std::mutex mutex_;
  mutable std::map<PlanKey, std::unique_ptr<StreamPlans>> plans_;
  mutable std::unique_ptr<Arena> self_arena_, cross_arena_, encoder_arena_;
  mutable WorkspacePool idle_;
};

struct Model::Lease {
  explicit Lease(const Model& m) : model(m), workspace(m.idle_.take()) {}
  ~Lease() { model.idle_.give(std::move(workspace)); }
  Lease(const Lease&) = delete;
  ModelWorkspace& operator*() const { return *workspace; }
  const Model& model;
  std::unique_ptr<ModelWorkspace> workspace;
};

}  // namespace attnkit
