#include "core/model/model.hpp"

#include <algorithm>

#include "core/base/sha256.hpp"

namespace attnkit::core {

WorkspacePool::Lease Model::lease() const {
  WorkspacePool::Lease lease = idle_.take();
  lease->threads = &runtime_->threads;
  return lease;
}

const Tokenizer* Model::vocabulary(bool target) const {
  return (target ? decoder_.vocabulary : encoder_.vocabulary).get();
}

void Model::check_target(const Ids& ids) const { check_ids(ids, "target", vocabulary(true), manifest_.max_target()); }

std::vector<int64_t> Model::output_shape(const SourceBatch& source, const Ids& target) const {
  if (head_.pools()) return {source.batch, outputs()};
  if (has_decoder()) return {target.batch, target.length, outputs()};
  return {source.batch, source.length, outputs()};
}

void Model::forward(const SourceBatch& source, const Ids& target, float* out, const Probe* probe) const {
  if (has_encoder()) check_source(source);
  if (has_decoder()) check_target(target);
  if (has_encoder() && has_decoder() && source.batch != target.batch)
    fail(ATTN_INVALID, "source has {} rows, target {}: they must be pairs", source.batch, target.batch);
  const WorkspacePool::Lease ws = lease();
  Aux aux;
  float* x = ws->memory.get<float>(source.batch * source_rows(source) * manifest_.d_model);
  if (has_encoder()) encoder_.run(*ws, source, x, aux, probe);
  if (head_.pools()) {
    if (out) head_.judge(*ws, x, aux, out);
    return;
  }
  if (has_decoder()) {
    predict(*ws, source.ids, source.stride, x);
    x = decode(*ws, target, x, aux, probe);
  }
  if (out) score(*ws, x, has_decoder() ? target : source.as_ids(), out);
}

// Source by source, so that neither padding nor other rows matter.
void Model::predict(Workspace& ws, const int32_t* ids, int64_t stride, const float* memory) const {
  ws.predicted.clear();
  if (!length_ || !has_encoder()) return;
  for (const int32_t n : ws.source.lengths) {
    ws.predicted.push_back(length_->predict(*ws.threads, ws.length, {ids, memory, n}));
    if (ids) ids += stride;
    memory += ws.source.length * manifest_.d_model;
  }
}

float* Model::decode(Workspace& ws, const Ids& target, const float* memory, Aux& aux, const Probe* probe) const {
  Side& side = ws.target;
  side.reset(target.length);
  for (int64_t b = 0; b < target.batch; ++b) side.lengths.push_back(static_cast<int32_t>(target.length_of(b)));
  if (manifest_.predict == Predict::reference) side.totals.assign(side.lengths.begin(), side.lengths.end());
  for (int64_t b = 0; length_ && b < target.batch; ++b)
    side.totals.push_back(has_encoder() ? ws.predicted[b] : length_->predict(*ws.threads, ws.length, {}));
  return decoder_.run(ws, target, memory, aux, probe);
}

void Model::score(Workspace& ws, const float* x, const Ids& ids, float* out) const {
  logits(ws, x, ids.batch * ids.length, out);
  for (int64_t b = 0; b < ids.batch; ++b)
    std::fill(out + (b * ids.length + ids.length_of(b)) * outputs(), out + (b + 1) * ids.length * outputs(), 0.0f);
}

void Model::require_pair() const {
  if (!has_encoder() || !has_decoder())
    fail(ATTN_INVALID, "this model has no {}: use forward", has_encoder() ? "decoder" : "encoder");
}

std::unique_ptr<const Encoded> Model::encode(const SourceBatch& source) const {
  require_pair();
  check_source(source);
  const WorkspacePool::Lease ws = lease();
  auto encoded = std::make_unique<Encoded>();
  const int64_t length = source_rows(source);
  float* x = encoded->memory.get<float>(source.batch * length * manifest_.d_model);
  encoder_.run(*ws, source, x, encoded->aux, nullptr);
  predict(*ws, source.ids, source.stride, x);
  encoded->encoder = encoder_identity_;
  encoded->target_lengths = ws->predicted;
  encoded->predictor = length_ ? length_->identity : "";
  encoded->rows = x;
  encoded->length = length;
  encoded->lengths = ws->source.lengths;
  if (source.is_speech()) return encoded;
  encoded->ids.assign(static_cast<size_t>(source.batch * length), 0);
  for (int64_t b = 0; b < source.batch; ++b)
    std::copy_n(source.ids + b * source.stride, source.length_of(b), encoded->ids.data() + b * length);
  return encoded;
}

void Model::check_decode(const Encoded& encoded, const Ids& target) const {
  require_pair();
  require_same(*encoded.encoder, *encoder_identity_, "the sources were encoded by another encoder", "in this model");
  check_target(target);
  if (static_cast<int64_t>(encoded.lengths.size()) != target.batch)
    fail(ATTN_INVALID, "{} rows were encoded, target has {}: they must be pairs", encoded.lengths.size(), target.batch);
}

void Model::decode(const Encoded& encoded, const Ids& target, float* out) const {
  const WorkspacePool::Lease ws = lease();
  ws->source.reset(encoded.length);
  ws->source.lengths = encoded.lengths;
  ws->source.totals.assign(encoded.lengths.begin(), encoded.lengths.end());
  if (length_ && length_->identity != encoded.predictor)
    predict(*ws, encoded.ids.data(), encoded.length, encoded.rows);
  else
    ws->predicted = encoded.target_lengths;
  Aux aux = encoded.aux;  // decoders replace what encoders put out
  score(*ws, decode(*ws, target, encoded.rows, aux, nullptr), target, out);
}

Arena& Model::states(uint32_t role) const {
  return role == ATTN_ENCODER_SELF ? encoder_.stack.states(false) : decoder_.stack.states(role == ATTN_DECODER_CROSS);
}

std::vector<uint64_t> Model::state_bytes(uint32_t role, int64_t length) const {
  std::vector<uint64_t> bytes;
  for (const Block* block : blocks_)
    if (block->choice().role == role && block->streams()) bytes.push_back(block->state_bytes(length));
  return bytes;
}

std::map<std::string, const attn_port*> Model::carried() const {
  std::map<std::string, const attn_port*> last;
  for (const Block* block : blocks_)
    for (const attn_port* port : block->mechanism().ports())
      if (block->choice().role == ATTN_ENCODER_SELF && port->kind == ATTN_AUX_OUT) last[port->name] = port;
  return last;
}

uint64_t Model::carried_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, port] : carried())
    bytes += sizeof(float) * static_cast<uint64_t>(port->shape[2] * port->shape[3]);
  return has_decoder() ? bytes : 0;
}

bool Model::keeps_ids() const { return !frontend() && (!encoder_.appends() || (length_ && length_->needs_ids)); }

bool Model::keeps_rows() const {
  const bool replays = std::any_of(blocks_.begin(), blocks_.end(), [](const Block* b) { return b->choice().replays; });
  return encoder_.appends() && (replays || (length_ && length_->needs_rows));
}

// All tensors, wherever they came from: what saved sessions are compared by.
const std::string& Model::digest() const {
  std::call_once(digested_, [this] {
    Sha256 all;
    const auto add = [&](std::span<const float> numbers) { all.add_numbers(numbers); };
    const auto add_norm = [&](const LayerNorm& norm) {
      add(norm.weight);
      add(norm.bias);
    };
    if (frontend()) frontend()->digest(all);
    for (const auto& [embedding, stack] :
         {std::pair(&encoder_.embedding, &encoder_.stack), std::pair(&decoder_.embedding, &decoder_.stack)}) {
      std::vector<float> token(static_cast<size_t>(embedding->width));
      for (int64_t id = 0; id < embedding->vocabulary(); ++id) {
        embedding->row(id, token.data());
        add(token);
      }
      if (manifest_.positions == Positions::learned || manifest_.token_types > 0) add(embedding->positions);
      add_norm(embedding->norm);
      for (const Layer& layer : stack->layers) {
        for (const Attention* attention : {&layer.self, &layer.cross}) {
          if (!attention->block) continue;
          add_norm(attention->norm);
          attention->block->digest(all);
        }
        add_norm(layer.feed_forward.norm);
        layer.feed_forward.in.digest(all);
        layer.feed_forward.gate.digest(all);
        layer.feed_forward.out.digest(all);
      }
      add_norm(stack->norm);
    }
    head_.hidden.digest(all);
    head_.out.digest(all);
    add(head_.bias);
    digest_ = hex(all.digest());
  });
  return digest_;
}

}  // namespace attnkit::core
