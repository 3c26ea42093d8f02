// A transformer around attention blocks: encoder, decoder or both, as the manifest says.  Immutable after loading: any
// thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/length/length.hpp"
#include "core/manifest/manifest.hpp"
#include "core/model/decoder.hpp"
#include "core/model/encoded.hpp"
#include "core/model/encoder.hpp"
#include "core/model/head.hpp"
#include "core/model/workspace.hpp"
#include "core/plugin/runtime.hpp"

namespace attnkit::core {

class DeviceTensors;
struct StepResult;

class Model {
 public:
  // Reads manifest and weights; NULL after diagnostics.failed().
  static std::shared_ptr<const Model> load(std::shared_ptr<Runtime> runtime, const std::string& toml,
                                           const std::string& dir, Diagnostics& diagnostics);

  const Manifest& manifest() const { return manifest_; }
  Runtime& runtime() const { return *runtime_; }
  const Tokenizer* vocabulary(bool target) const;                                                 // NULL: there is none
  const Frontend* frontend() const { return encoder_.frontend ? &*encoder_.frontend : nullptr; }  // NULL: no speech
  bool has_encoder() const { return manifest_.encoder.layers > 0; }
  bool has_decoder() const { return manifest_.decoder.layers > 0; }
  int64_t outputs() const { return head_.outputs(); }
  int64_t parameters() const { return parameters_; }
  const std::vector<const Block*>& blocks() const { return blocks_; }  // in the order in which they run
  // Of all dense layers, for one source and one target of so many rows.
  __int128 multiply_adds(int64_t sources, int64_t targets) const;
  const std::string& digest() const;       // of all tensors, 64 hexadecimal digits
  std::vector<std::byte> weights() const;  // all tensors, read or made anew, as safetensors
  // Throw Error (ATTN_INVALID) unless the model takes these.
  void check_source(const SourceBatch& source) const { encoder_.check(source); }
  void check_target(const Ids& ids) const;
  int64_t source_rows(const SourceBatch& source) const { return encoder_.rows(source); }  // of the encoder's batch

  std::vector<int64_t> output_shape(const SourceBatch& source, const Ids& target) const;  // of logits

  // logits: (B, T, outputs), or (B, outputs) for a classifier.  Arguments are checked.  probe may be NULL; out may then
  // be NULL.
  void forward(const SourceBatch& source, const Ids& target, float* out, const Probe* probe = nullptr) const;
  // forward in two steps, for models with both stacks.  encode: arguments are checked.
  std::unique_ptr<const Encoded> encode(const SourceBatch& source) const;
  // Throws Error unless decode can take these.
  void check_decode(const Encoded& encoded, const Ids& target) const;
  void decode(const Encoded& encoded, const Ids& target, float* out) const;

  // Everything below serves sessions.
  WorkspacePool::Lease lease() const;
  // Their parts: encode a part of a source, fill cross states with its keys, take the next tokens (Encoder::run,
  // Decoder::append, Decoder::step).
  const Encoder& encoder() const { return encoder_; }
  const Decoder& decoder() const { return decoder_; }
  void logits(Workspace& ws, const float* x, int64_t rows, float* out) const;  // out: on the host
  bool on_device() const { return tensors_ != nullptr; }
  const Device* device() const;  // NULL: on the CPU
  // On a device: takes the next tokens, one for each row, and leaves their scores in ws.scores.
  void step(Workspace& ws, const StepResult& result) const;
  Arena::Pins pin_states() const;                         // for as long as work on states is under way
  const Length* length() const { return length_.get(); }  // what predicts the target's length; NULL: nothing does
  // The states of the blocks of a role, one for each layer, and the bytes of each at a length; empty where these blocks
  // have none.
  Arena& states(uint32_t role) const;
  std::vector<uint64_t> state_bytes(uint32_t role, int64_t length) const;
  // The sequences that the encoder gives to the decoder's blocks, by name; their bytes in one session.
  std::map<std::string, const attn_port*> carried() const;
  uint64_t carried_bytes() const;
  // Sessions keep these of a source that goes on: its ids, the encoder's rows.
  bool keeps_ids() const;
  bool keeps_rows() const;
  // "decoder.cross.1": the first block whose keys depend on the target's length; empty: none.
  const std::string& measures_by_target() const { return measures_by_target_; }
  bool within_total() const { return within_total_; }
  // Whether the states of a target go on from any position that was written, whatever came after it.
  bool rewinds() const { return rewinds_; }

 private:
  Model(std::shared_ptr<Runtime> runtime, Manifest manifest);
  void load(WeightReader& weights, Diagnostics& diagnostics);
  void load_block(const BlockChoice& choice, LayerReader& from, Diagnostics& diagnostics);
  void check_positions(const BlockChoice& choice, const Block& block, Diagnostics& diagnostics) const;
  void require_pair() const;
  // Puts the length of each source's target into ws; memory: what the encoder put out.
  void predict(Workspace& ws, const int32_t* ids, int64_t stride, const float* memory) const;
  float* decode(Workspace& ws, const Ids& target, const float* memory, Aux& aux, const Probe* probe) const;
  void score(Workspace& ws, const float* x, const Ids& ids, float* out) const;
  void judge(Workspace& ws, const float* x, const Aux& aux, float* out) const;
  void move_to(const std::shared_ptr<const Device>& device);

  std::shared_ptr<Runtime> runtime_;
  Manifest manifest_;
  std::shared_ptr<const DeviceTensors> tensors_;  // NULL: on the CPU
  Encoder encoder_;
  Decoder decoder_;
  Head head_;
  std::shared_ptr<const Rotary> rotary_;  // which all blocks share; NULL: positions are not rotary
  std::vector<const Block*> blocks_;
  std::shared_ptr<const EncoderIdentity> encoder_identity_;  // NULL without an encoder
  std::unique_ptr<const Length> length_;
  std::string measures_by_target_;
  int64_t parameters_ = 0;
  bool within_total_ = false, rewinds_ = true;
  bool carries_ = false;          // on a device: sequences go from block to block
  std::string weights_identity_;  // of its file as it was loaded; empty: none
  mutable std::once_flag digested_;
  mutable std::string digest_;
  mutable WorkspacePool idle_;
};

}  // namespace attnkit::core
