#include "core/model/model.hpp"

#include <algorithm>

#include "core/base/sha256.hpp"
#include "core/model/device_compute.hpp"

namespace attnkit::core {

namespace {
int64_t rows_of(const Side& side) { return static_cast<int64_t>(side.lengths.size()) * side.length; }
}  // namespace

WorkspacePool::Lease Model::lease() const {
  WorkspacePool::Lease lease = idle_.take();
  lease->threads = &runtime_->threads;
  if (!lease->compute && tensors_) {
    auto compute = std::make_unique<DeviceCompute>(tensors_);
    DeviceCompute* const device = compute.get();
    lease->use(std::move(compute), device);
  } else if (!lease->compute) {
    lease->use(std::make_unique<HostCompute>(runtime_->threads));
  }
  if (lease->device) lease->device->begin();
  return lease;
}

const Device* Model::device() const { return tensors_ ? tensors_->device().get() : nullptr; }

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
  if (probe && ws->device)
    fail(ATTN_UNSUPPORTED, "what layers put out and attention weights are shown on the CPU alone: run the model there");
  Aux aux;
  float* x = ws->memory.get<float>(source.batch * source_rows(source) * manifest_.d_model);
  if (has_encoder()) encoder_.run(*ws, source, x, aux, probe);
  if (head_.pools()) {
    if (out) judge(*ws, x, aux, out);
    return;
  }
  if (has_decoder()) {
    predict(*ws, source.ids, source.stride, x);
    x = decode(*ws, target, x, aux, probe);
  }
  if (out) score(*ws, x, has_decoder() ? target : source.as_ids(), out);
}

// On the CPU, wherever x lies.
void Model::judge(Workspace& ws, const float* x, const Aux& aux, float* out) const {
  if (!ws.device) return head_.judge(ws, x, aux, out);
  std::vector<float> room;
  Workspace host;
  host.threads = ws.threads;
  host.use(std::make_unique<HostCompute>(*ws.threads));
  host.source = ws.source;
  head_.judge(host, seen_by_host(ws, x, rows_of(ws.source) * manifest_.d_model, room), aux, out);
}

// Source by source, so that neither padding nor other rows matter.
void Model::predict(Workspace& ws, const int32_t* ids, int64_t stride, const float* memory) const {
  ws.predicted.clear();
  if (!length_ || !has_encoder()) return;
  std::vector<float> room;
  if (length_->needs_rows) memory = seen_by_host(ws, memory, rows_of(ws.source) * manifest_.d_model, room);
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
  for (int64_t b = 0; within_total_ && b < std::ssize(side.totals); ++b)
    if (side.lengths[b] > side.totals[b])
      fail(ATTN_UNSUPPORTED,
           "target: row {} has {} tokens, and a mechanism was told a length of {:g} and allows none beyond", b,
           side.lengths[b], side.totals[b]);
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
  const int64_t numbers = source.batch * length * manifest_.d_model;
  float* const x = encoded->memory.get<float>(numbers);
  float* const there = ws->device ? ws->memory.get<float>(numbers) : x;
  encoder_.run(*ws, source, there, encoded->aux, nullptr);
  if (ws->device) ws->device->to_host(x, there, numbers);
  predict(*ws, source.ids, source.stride, there);
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
  if (const Tokenizer* source = vocabulary(false))  // of the same encoder; a table of lengths is read by ids
    for (const int32_t id : encoded.ids)
      if (id >= source->size())
        fail(ATTN_INVALID, "the sources hold the token {}, and the source vocabulary of this model has {}", id,
             source->size());
  if (static_cast<int64_t>(encoded.lengths.size()) != target.batch)
    fail(ATTN_INVALID, "{} rows were encoded, target has {}: they must be pairs", encoded.lengths.size(), target.batch);
}

void Model::decode(const Encoded& encoded, const Ids& target, float* out) const {
  const WorkspacePool::Lease ws = lease();
  const float* memory = encoded.rows;
  ws->source.reset(encoded.length);
  ws->source.lengths = encoded.lengths;
  ws->source.totals.assign(encoded.lengths.begin(), encoded.lengths.end());
  if (ws->device) {
    const int64_t numbers = rows_of(ws->source) * manifest_.d_model;
    float* const there = ws->memory.get<float>(numbers);
    ws->device->from_host(there, encoded.rows, numbers);
    memory = there;
  }
  if (length_ && length_->identity != encoded.predictor)
    predict(*ws, encoded.ids.data(), encoded.length, memory);
  else
    ws->predicted = encoded.target_lengths;
  Aux aux = encoded.aux;  // decoders replace what encoders put out
  score(*ws, decode(*ws, target, memory, aux, nullptr), target, out);
}

void Model::logits(Workspace& ws, const float* x, int64_t rows, float* out) const {
  if (!ws.device) return head_.score(ws, x, rows, out);
  float* const scores = ws.scores.get<float>(rows * outputs());
  head_.score(ws, x, rows, scores);
  ws.device->to_host(out, scores, rows * outputs());
}

void Model::step(Workspace& ws, const StepResult& result) const {
  const Ids ids = decoder_.begin_step(ws);
  const auto enqueue = [&] {
    const float* const x = decoder_.step(ws, ids);
    float* const scores = ws.scores.get<float>(ids.batch * outputs());
    head_.score(ws, x, ids.batch, scores);
    ws.device->enqueue(result, scores, ids.batch, outputs());
  };
  // Sequences between blocks pass through the host, which no graph does.
  if (carries_) return enqueue();
  uint64_t states = decoder_.stack.states(false).moves();
  if (has_encoder()) states += decoder_.stack.states(true).moves();
  ws.device->replay(ids.batch, result, states, enqueue);
}

Arena::Pins Model::pin_states() const {
  if (!tensors_) return {};
  Arena::Pins pins;
  for (const auto& [stack, cross] :
       {std::pair(&encoder_.stack, false), std::pair(&decoder_.stack, false), std::pair(&decoder_.stack, true)})
    if (!stack->layers.empty() && (cross ? has_encoder() : stack == &decoder_.stack || encoder_.appends()))
      pins.push_back(stack->states(cross).pin());
  return pins;
}

void Model::move_to(const std::shared_ptr<const Device>& device) {
  auto tensors = std::make_shared<DeviceTensors>(device);
  const auto add = [&](const auto& tensor) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(tensor)>, Dense>)
      tensors->add(tensor, manifest_.tf32);
    else
      tensors->add(tensor);
  };
  const auto add_floats = [&](const std::vector<float>& floats) { tensors->add(std::as_bytes(std::span(floats))); };
  if (rotary_) tensors->add(*rotary_, manifest_.max_length);
  if (!head_.pools()) {
    add(head_.out);
    add_floats(head_.bias);
  }
  for (Transformer* stack : {&encoder_.stack, &decoder_.stack}) {
    stack->device = device;
    for (const Layer& layer : stack->layers) {
      for (const Attention* attention : {&layer.self, &layer.cross}) {
        if (!attention->block) continue;
        add(attention->norm);
        tensors->add_together(attention->block->made_together(), manifest_.tf32);
        attention->block->each_stored(add);
        for (const attn_port* port : attention->block->mechanism().ports())
          carries_ |= port->kind == ATTN_AUX_IN || port->kind == ATTN_AUX_OUT;
      }
      const FeedForward& ffn = layer.feed_forward;
      add(ffn.norm);
      if (manifest_.gated) tensors->add_together({&ffn.gate, &ffn.in}, manifest_.tf32);
      for (const Dense* dense : {&ffn.in, &ffn.out}) add(*dense);
    }
    if (manifest_.final_norm && !stack->layers.empty()) add(stack->norm);
  }
  for (const Embedding* embedding : {&encoder_.embedding, &decoder_.embedding}) add(*embedding);
  tensors->wait();
  tensors_ = std::move(tensors);
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

__int128 Model::multiply_adds(int64_t sources, int64_t targets) const {
  __int128 all = frontend() ? frontend()->multiply_adds(sources) : 0;
  for (const auto& [stack, rows] : {std::pair(&encoder_.stack, sources), std::pair(&decoder_.stack, targets)})
    for (const Layer& layer : stack->layers) {
      all += layer.self.block->multiply_adds(rows, rows);
      if (layer.cross.block) all += layer.cross.block->multiply_adds(rows, sources);
      for (const Dense* dense : {&layer.feed_forward.in, &layer.feed_forward.gate, &layer.feed_forward.out})
        all += dense->multiply_adds(rows);
    }
  const int64_t rows = head_.pools() ? 1 : has_decoder() ? targets : sources;
  return all + head_.hidden.multiply_adds(rows) + head_.out.multiply_adds(rows);
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
