#include "core/model/block.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/sha256.hpp"
#include "core/model/compute.hpp"
#include "core/model/layers.hpp"
#include "core/session/arena.hpp"

namespace attnkit::core {
namespace {

// fairseq's: projections into heads are smaller than the one out of them.
const double inward = std::sqrt(0.5);

// More than any memory, and so little that the states of all blocks can be added up.
constexpr uint64_t max_state = uint64_t{1} << 48;

DeviceType attention_type(const Manifest& manifest) {
  if (manifest.device_type == 1) return DeviceType::f32;
  if (manifest.weights_type == WeightType::bf16) return DeviceType::bf16;
  return manifest.weights_type == WeightType::f16 ? DeviceType::f16 : DeviceType::f32;
}

template <class T>
void set_type(T& of, DeviceType type) {
  of.dtype_code = type == DeviceType::bf16 ? 4 : 2;
  of.dtype_bits = has_16_bits(type) ? 16 : 32;
}

// (batch, heads, rows, width), the heads of a row side by side; on the CPU.
attn_tensor sequence(const void* data, DeviceType type, int64_t batch, int64_t heads, int64_t rows, int64_t width) {
  const int64_t stride = heads * width;
  attn_tensor t{};
  t.data = const_cast<void*>(data);
  const int64_t shape[4] = {batch, heads, rows, width}, strides[4] = {rows * stride, width, stride, 1};
  std::copy(shape, shape + 4, t.shape);
  std::copy(strides, strides + 4, t.stride);
  set_type(t, type);
  t.dtype_lanes = 1;
  t.ndim = 4;
  t.device_type = 1;
  return t;
}

void* memory_of(Buffer& buffer, DeviceType type, int64_t n) {
  return buffer.get<char>(n * (has_16_bits(type) ? 2 : 4));
}

}  // namespace

int64_t plan_bound(int64_t n, int64_t most) {
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, n))));
  return std::max(n, std::min(rounded, most));
}

DeviceType type_of(const Plan& plan) {
  if (plan.request().dtype_bits == 32) return DeviceType::f32;
  return plan.request().dtype_code == 4 ? DeviceType::bf16 : DeviceType::f16;
}

Block::Block(const Manifest& manifest, const BlockChoice& choice, const Plugin& plugin, WeightReader& reader,
             std::shared_ptr<const Rotary> rotary)
    : choice_(choice),
      path_(block_path(choice.role, choice.layer)),
      d_model_(manifest.d_model),
      kv_heads_(manifest.kv_heads),
      type_(manifest.weights_type),
      attends_in_(attention_type(manifest)),
      bias_(manifest.bias),
      query_scale_(manifest.attention_scale.value_or(1 / std::sqrt(manifest.head_width)) *
                   std::sqrt(manifest.head_width)),
      head_norm_(manifest.head_norm),
      qk_norm_(manifest.qk_norm && choice.role != ATTN_DECODER_CROSS),
      streams_(choice.role != ATTN_ENCODER_SELF || (manifest.stream && manifest.encoder.causal)),
      totals_(total_flags(manifest, choice)),
      max_length_(choice.role == ATTN_DECODER_SELF ? manifest.max_target() : manifest.max_length),
      mechanism_(Mechanism::create(plugin, block_of(manifest, choice), choice.options)) {
  if (streams_) row_bytes_ = state_bytes(max_length_);
  if (choice.role != ATTN_DECODER_CROSS) rotary_ = std::move(rotary);
  const std::string adapter = path_ + "." + choice.mechanism + ".adapter.";
  if (manifest.adapters) {
    for (const char* part : {"q_scale", "q_shift", "k_scale", "k_shift", "gain"})
      adapted_ |= reader.has(adapter + part);
    if (!adapted_ && reader.has_file())
      reader.warn(
          fmt::format("{}: the weights hold no adapters for \"{}\"", path_, choice.mechanism),
          "its projections are used as they are: expect lower quality than a mechanism the model was trained with");
  }
  const size_t n = mechanism_->ports().size();
  projections_.resize(n);
  stored_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t kind = mechanism_->ports()[i]->kind;
    if (kind == ATTN_QUERY || kind == ATTN_KEY) load_projection(i, reader);
    if (qk_norm_ && turns(i)) norms_[i] = load_norm(i, manifest.norm_eps, reader);
    if (kind == ATTN_OUTPUT) load_output(i, reader);
    if (kind == ATTN_LEARNED || kind == ATTN_TABLE) load_stored(i, reader);
  }
}

bool Block::is_shared(const attn_port& port) const {
  const attn_block& b = mechanism_->block();
  const std::string name = port.name;
  const bool key = port.kind == ATTN_KEY && (name == "k" || name == "v");
  if (port.shape[1] != b.heads && !(key && port.shape[1] == b.kv_heads)) return false;
  if (port.kind == ATTN_OUTPUT || name == "v") return port.shape[3] == b.head_width;
  return (name == "q" || name == "k") && port.shape[3] == b.key_width;
}

// Keys and values of fewer heads than queries are projected once, and repeated for a mechanism that does not share
// them.
int64_t Block::heads_of(const attn_port& port) const {
  return port.kind == ATTN_KEY && is_shared(port) ? kv_heads_ : port.shape[1];
}

std::vector<const Dense*> Block::made_together() const {
  std::vector<const Dense*> all;
  for (const Dense& projection : projections_)
    if (projection.weights() && choice_.role != ATTN_DECODER_CROSS) all.push_back(&projection);
  return all;
}

// Whether the port is q or k of self attention, which positions and norms of heads are for.
bool Block::turns(size_t i) const {
  const attn_port& port = *mechanism_->ports()[i];
  return choice_.role != ATTN_DECODER_CROSS && (port.kind == ATTN_QUERY || port.kind == ATTN_KEY) && is_shared(port) &&
         port.name != std::string_view("v");
}

bool Block::turns() const {
  for (size_t i = 0; i < projections_.size(); ++i)
    if (turns(i)) return true;
  return false;
}

// Of what makes q, the last layer that does: folded into its weights.
float Block::scale_of(const attn_port& port) const {
  const bool query = port.kind == ATTN_QUERY && is_shared(port);
  return query ? static_cast<float>(query_scale_) : 1.0f;
}

LayerNorm Block::load_norm(size_t i, double epsilon, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  const int64_t width = port.shape[3];
  parameters_ += width;
  std::vector<float> weight = reader.f32(fmt::format("{}.{}.norm.weight", path_, port.name), {width}, constant(1));
  for (float& w : weight) w *= scale_of(port);
  return {std::move(weight), {}, epsilon, NormType::rms};
}

std::string Block::own_name(const attn_port& port) const {
  if (port.flags & ATTN_PER_MODEL) return "model." + choice_.mechanism + "." + port.name;
  return path_ + "." + choice_.mechanism + "." + port.name;
}

// A projection; adapt(weight, bias) folds adapters into it.
template <class Adapt>
Dense Block::load_dense(const attn_port& port, const std::string& shared_name, int64_t inputs, int64_t outputs,
                        double gain, WeightReader& reader, bool adapted, Adapt&& adapt) {
  const bool shared = is_shared(port), out = port.kind == ATTN_OUTPUT;
  const bool is_named = shared_name == "q" || shared_name == "k";
  const bool bias = !(port.flags & ATTN_NO_BIAS) && bias_.contains(out ? "o" : is_named ? shared_name : "v");
  const std::string name = shared ? path_ + "." + shared_name : own_name(port);
  const Owner owner = shared ? Owner::model : Owner::mechanism;
  std::vector<float> b(static_cast<size_t>(outputs));
  if (bias) b = reader.f32(name + ".bias", {outputs}, constant(0), owner);
  parameters_ += inputs * outputs + (bias ? outputs : 0);
  const float scale = qk_norm_ ? 1.0f : scale_of(port);
  const WeightType type = reader.type_of(name + ".weight", type_);
  const auto pack = [&] {
    Numbers stored = reader.numbers(name + ".weight", {outputs, inputs}, xavier(inputs, outputs, gain), owner);
    if (adapted || scale != 1) {
      std::vector<float> w(stored.values.begin(), stored.values.end());
      if (adapted) adapt(w, b);
      for (auto* numbers : {&w, &b})
        for (float& x : *numbers) x *= scale;
      stored = Numbers(std::move(w));
    }
    return Dense(inputs, outputs, stored.values, b, type, reader.threads());
  };
  const std::string recipe = fmt::format("{:a} {:a}{}", scale, gain, adapted ? " " + choice_.mechanism : "");
  return packed_once(reader, name, recipe, {inputs, outputs, bias || adapted, type}, pack);
}

void Block::load_projection(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  if ((port.flags & ATTN_RAW) && port.shape[3] != d_model_)
    fail(ATTN_UNSUPPORTED,
         "{} takes the sequence itself and cannot be where heads have a width of their own: leave out "
         "head_width, or use another mechanism",
         choice_.mechanism);
  if (port.flags & ATTN_RAW) return;
  const int64_t width = heads_of(port) * port.shape[3];
  const bool adapted = adapted_ && is_shared(port) && port.name != std::string("v");
  std::vector<float> scales, shifts;
  if (adapted) {
    const std::string adapter = path_ + "." + choice_.mechanism + ".adapter." + port.name;
    scales = reader.f32(adapter + "_scale", {width}, constant(1));
    shifts = reader.f32(adapter + "_shift", {width}, constant(0));
  }
  projections_[i] = load_dense(port, port.name, d_model_, width, inward, reader, adapted, [&](auto& w, auto& b) {
    for (int64_t r = 0; r < width; ++r) {
      for (int64_t c = 0; c < d_model_; ++c) w[r * d_model_ + c] *= scales[r];
      b[r] = b[r] * scales[r] + shifts[r];
    }
  });
}

void Block::load_output(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  output_ = i;
  out_raw_ = port.flags & ATTN_RAW;
  const int64_t width = port.shape[1] * port.shape[3];
  if (out_raw_ && width != d_model_)
    fail(ATTN_UNSUPPORTED, "{}: its unprojected output is {} wide, the model {}", choice_.mechanism, width, d_model_);
  if (out_raw_) return;
  std::vector<float> gains;
  if (adapted_) gains = reader.f32(path_ + "." + choice_.mechanism + ".adapter.gain", {width}, constant(1));
  out_ = load_dense(port, "o", width, d_model_, 1, reader, adapted_, [&](auto& w, auto&) {
    for (int64_t r = 0; r < d_model_; ++r)
      for (int64_t c = 0; c < width; ++c) w[r * width + c] *= gains[c];
  });
}

void Block::load_stored(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  const std::string name = own_name(port);
  const std::vector<int64_t> shape(port.shape, port.shape + port.ndim);
  if (port.dtype_code == 2 && port.dtype_bits == 32) {
    stored_[i].f32 = reader.f32(
        name, shape,
        [&](uint64_t seed, std::vector<float>& values) { mechanism_->fill(i, seed, contiguous(port, values.data())); },
        port.flags & ATTN_PER_MODEL ? Owner::all_blocks : Owner::mechanism);
  } else if (port.dtype_code == 0 && (port.dtype_bits == 32 || port.dtype_bits == 64)) {
    stored_[i].raw = reader.integers(name, port.dtype_bits == 64 ? "I64" : "I32", shape,
                                     [&](uint64_t seed, std::vector<std::byte>& bytes) {
                                       mechanism_->fill(i, seed, contiguous(port, bytes.data()));
                                     });
  } else {
    fail(ATTN_UNSUPPORTED, "{}: tensor \"{}\" has type {}:{}; f32, int32 and int64 can be stored", choice_.mechanism,
         port.name, port.dtype_code, port.dtype_bits);
  }
  if (port.kind != ATTN_LEARNED) return;
  const auto size = static_cast<int64_t>(stored_[i].f32.size());
  if (port.flags & ATTN_PER_MODEL)
    model_parameters_[name] = size;
  else
    parameters_ += size;
}

attn_request Block::request(uint32_t flags, uint32_t workers, int64_t batch, int64_t queries, int64_t keys,
                            int64_t past) const {
  attn_request r = cpu_request(flags, workers, batch, queries, keys, past);
  r.device_type = mechanism_->plugin().table.device_type;
  return r;
}

Plan Block::plan(const attn_request& request) const {
  if (attends_in_ == DeviceType::f32) return mechanism_->plan(request);
  attn_request in_16_bits = request;
  set_type(in_16_bits, attends_in_);
  try {
    return mechanism_->plan(in_16_bits);
  } catch (const Error& e) {
    if (e.code() != ATTN_UNSUPPORTED) throw;
  }
  return mechanism_->plan(request);
}

Plan Block::plan_whole(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const {
  return plan(request(totals_, workers, batch, queries, keys, 0));
}

// In 16 bits a plan may have compiled kernels, and it must live until a device has run them.
const Plan& Block::kept_plan(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const {
  const std::array bounds{plan_bound(batch), plan_bound(queries, max_length_), plan_bound(keys, max_length_)};
  std::lock_guard lock(mutex_);
  if (const auto found = kept_plans_.find(bounds); found != kept_plans_.end()) return found->second;
  return kept_plans_.emplace(bounds, plan_whole(workers, bounds[0], bounds[1], bounds[2])).first->second;
}

Plan Block::plan_stream(uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t capacity) const {
  Plan plan =
      this->plan(request(totals_ | ATTN_STREAM, workers, batch, queries, keys, std::max<int64_t>(0, capacity - keys)));
  const uint64_t needed = plan.info().state_bytes, room = state_bytes(std::max(capacity, keys));
  if (needed > room)
    fail(
        ATTN_INTERNAL,
        "{}: \"{}\" needs {} bytes of state for {} keys when it appends {}, and {} when it appends none: the plugin is "
        "faulty",
        path_, choice_.mechanism, needed, std::max(capacity, keys), keys, room);
  return plan;
}

bool Block::needs_target(int64_t queries, int64_t keys) const {
  if (choice_.role == ATTN_ENCODER_SELF || !(totals_ & ATTN_KNOWS_Q_TOTAL)) return false;
  const uint32_t target = ATTN_KNOWS_Q_TOTAL | (choice_.role == ATTN_DECODER_SELF ? ATTN_KNOWS_K_TOTAL : 0u);
  try {
    mechanism_->plan(request((totals_ & ~target) | ATTN_STREAM, 1, 1, queries, keys, 1));
    return false;
  } catch (const Error& e) {
    if (e.code() != ATTN_UNSUPPORTED) throw;
    return true;
  }
}

uint64_t Block::state_bytes(int64_t capacity) const {
  if (capacity == 0) return 0;
  if (capacity == max_length_ && row_bytes_ > 0) return row_bytes_;
  const uint64_t bytes = mechanism_->ask(request(totals_ | ATTN_STREAM, 1, 1, 1, 0, capacity)).state_bytes;
  if (bytes > max_state)
    fail(ATTN_UNSUPPORTED, "{}: \"{}\" needs {} bytes of state for {} keys, at most {} are possible: lower max_length",
         path_, choice_.mechanism, bytes, capacity, max_state);
  const uint64_t rounded = (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
  if (capacity < max_length_ && rounded > row_bytes_)
    fail(ATTN_INTERNAL, "{}: \"{}\" needs {} bytes of state for {} keys and {} for {}: the plugin is faulty", path_,
         choice_.mechanism, bytes, capacity, row_bytes_, max_length_);
  return rounded;
}

__int128 Block::multiply_adds(int64_t queries, int64_t keys) const {
  __int128 all = out_.multiply_adds(queries);
  for (size_t i = 0; i < projections_.size(); ++i)
    all += projections_[i].multiply_adds(mechanism_->ports()[i]->kind == ATTN_KEY ? keys : queries);
  return all;
}

void Block::digest(Sha256& to) const {
  for (const Dense& projection : projections_) projection.digest(to);
  for (const auto& [port, norm] : norms_) to.add_numbers(std::span(norm.weight));
  for (const Stored& stored : stored_) {
    to.add_numbers(std::span(stored.f32));
    to.add(stored.raw);
  }
  out_.digest(to);
}

void Block::run(Workspace& ws, const Plan* plan, const BlockCall& call) const {
  const int64_t batch = call.batch(), queries = call.queries.length, keys = call.keys.length;
  if (batch == 0 || (queries == 0 && keys == 0)) return;
  if (!plan && attends_in_ != DeviceType::f32)
    return run(ws, &kept_plan(ws.compute->workers(), batch, queries, keys), call);
  if (!plan) {
    const Plan made = plan_whole(ws.compute->workers(), batch, queries, keys);
    return run(ws, &made, call);
  }
  plan->run(prepare(ws, *plan, call));
  hand_on(ws, call);
  if (queries == 0) return;
  const attn_port& port = *mechanism_->ports()[output_];
  void* o = ws.tensors[output_].data;
  const DeviceType type = type_of(*plan);
  const int64_t rows = batch * queries;
  if (out_raw_) {
    ws.compute->add(call.sum, o, type, rows * d_model_);
    return;
  }
  if (head_norm_) ws.compute->normalise_heads(o, type, rows, port.shape[1], port.shape[3]);
  ws.compute->dense_add(out_, o, type, call.sum, rows);
}

// The run of a call whose inputs are projected; it borrows from ws.
attn_run Block::prepare(Workspace& ws, const Plan& plan, const BlockCall& call) const {
  while (ws.ports.size() < projections_.size()) ws.ports.emplace_back(ws.compute->memory());
  ws.tensors.resize(projections_.size());
  Inputs inputs{type_of(plan), nullptr, nullptr};
  const auto rounded = [&](const void* x, const Side& side, Buffer& room) {
    return ws.compute->rounded(static_cast<const float*>(x), call.batch() * side.length * d_model_, inputs.type, room);
  };
  inputs.input = call.of_input == inputs.type ? call.input : rounded(call.input, call.queries, ws.input);
  inputs.context = call.context == call.input ? inputs.input : rounded(call.context, call.keys, ws.context);
  ws.of_queries.clear();
  ws.of_keys.clear();
  for (size_t i = 0; i < ws.tensors.size(); ++i) {
    ws.tensors[i] = tensor_of(ws, call, inputs, i);
    ws.tensors[i].device_type = plan.request().device_type;
  }
  for (const auto& [all, x, side] :
       {std::tuple(&ws.of_queries, inputs.input, &call.queries), std::tuple(&ws.of_keys, inputs.context, &call.keys)})
    if (!all->empty()) ws.compute->project(*all, x, inputs.type, call.batch() * side->length, *side);
  const uint64_t scratch = plan.info().scratch_bytes;
  ws.exec = ws.compute->exec(plan.scratch(ws.scratch, scratch), scratch);
  const RowArrays of_queries = ws.compute->rows(call.queries), of_keys = ws.compute->rows(call.keys);
  attn_run run{};
  run.struct_size = sizeof run;
  run.exec = &ws.exec;
  run.batch = call.batch();
  run.queries = call.queries.length;
  run.keys = call.keys.length;
  run.ports = ws.tensors.data();
  run.q_len = of_queries.lengths;
  run.k_len = of_keys.lengths;
  run.q_pos = of_queries.positions;
  run.k_pos = of_keys.positions;
  if (totals_ & ATTN_KNOWS_Q_TOTAL) run.q_total = of_queries.totals;
  if (totals_ & ATTN_KNOWS_K_TOTAL) run.k_total = of_keys.totals;
  if (const Arena* states = call.keys.states) {
    const size_t index = static_cast<size_t>(choice_.layer) - 1;
    run.state = states->base(index);
    run.state_stride = states->stride(index);
    run.slots = of_keys.slots;
  }
  return run;
}

attn_tensor Block::tensor_of(Workspace& ws, const BlockCall& call, const Inputs& inputs, size_t i) const {
  const attn_port& port = *mechanism_->ports()[i];
  const int64_t batch = call.batch(), heads = port.shape[1], width = port.shape[3];
  switch (port.kind) {
    case ATTN_QUERY:
    case ATTN_KEY: {
      const bool query = port.kind == ATTN_QUERY;
      const int64_t rows = query ? call.queries.length : call.keys.length;
      const void* x = query ? inputs.input : inputs.context;
      if (port.flags & ATTN_RAW) return sequence(x, inputs.type, batch, 1, rows, d_model_);
      void* y = memory_of(ws.ports[i], inputs.type, batch * rows * heads * width);
      if (rows > 0)
        (query || &call.queries == &call.keys ? ws.of_queries : ws.of_keys)
            .push_back({&projections_[i], y, steps_behind(i)});
      return sequence(y, inputs.type, batch, heads, rows, width);
    }
    case ATTN_OUTPUT: {
      const int64_t rows = call.queries.length;
      void* o = memory_of(ws.ports[i], inputs.type, batch * rows * heads * width);
      return sequence(o, inputs.type, batch, heads, rows, width);
    }
    case ATTN_LEARNED:
    case ATTN_TABLE:
      return contiguous(port, ws.compute->stored(stored_[i].bytes().data()));
    default: {
      const int64_t rows = port.shape[2];
      const auto carried = [&](const float* data) { return sequence(data, DeviceType::f32, batch, 1, rows, width); };
      if (port.kind == ATTN_AUX_OUT) return carried(ws.ports[i].get<float>(batch * rows * width));
      const auto found = call.aux.find(std::string_view(port.name));
      if (found == call.aux.end() || found->second.rows == 0) return carried(nullptr);
      const AuxValue& value = found->second;
      if (value.rows != rows || value.width != width)
        fail(ATTN_UNSUPPORTED, "{}: \"{}\" wants the sequence \"{}\" as {}x{}, the block before gives {}x{}", path_,
             choice_.mechanism, port.name, rows, width, value.rows, value.width);
      return carried(ws.compute->given(value, ws.ports[i]));
    }
  }
}

HeadSteps Block::steps_behind(size_t i) const {
  const attn_port& port = *mechanism_->ports()[i];
  const auto norm = norms_.find(i);
  return {norm == norms_.end() ? nullptr : &norm->second,
          rotary_ && turns(i) ? rotary_.get() : nullptr,
          heads_of(port),
          port.shape[1],
          port.shape[3],
          max_length_};
}

// Sequences that the mechanism gave out become inputs of the next blocks.
void Block::hand_on(const Workspace& ws, const BlockCall& call) const {
  for (size_t i = 0; i < ws.tensors.size(); ++i) {
    if (mechanism_->ports()[i]->kind != ATTN_AUX_OUT) continue;
    const attn_tensor& t = ws.tensors[i];
    const float* data = static_cast<const float*>(t.data);
    const std::string_view name = mechanism_->ports()[i]->name;
    auto at = call.aux.find(name);
    if (at == call.aux.end()) at = call.aux.try_emplace(std::string(name)).first;
    ws.compute->take(data, call.batch() * t.shape[2] * t.shape[3], at->second.data);
    at->second.rows = t.shape[2];
    at->second.width = t.shape[3];
  }
}

void Block::attention(Workspace& ws, const BlockCall& call, float* weights) const {
  const int v = mechanism_->port("v");
  if (v < 0 || mechanism_->ports()[v]->kind != ATTN_KEY)
    fail(ATTN_UNSUPPORTED, "{}: \"{}\" has no values \"v\" whose weights could be shown", path_, choice_.mechanism);
  const int64_t kv_heads = mechanism_->ports()[v]->shape[1], width = mechanism_->ports()[v]->shape[3];
  const attn_port& out = *mechanism_->ports()[output_];
  const int64_t heads = out.shape[1];
  if (heads != mechanism_->block().heads || heads % kv_heads != 0 || out.shape[3] != width)
    fail(ATTN_UNSUPPORTED, "{}: the output of \"{}\" is not shaped like its values, so its weights cannot be read off",
         path_, choice_.mechanism);
  const int64_t queries = call.queries.length, keys = call.keys.length;
  const Plan plan = plan_whole(ws.compute->workers(), 1, queries, keys);
  const attn_run run = prepare(ws, plan, call);
  float* values = ws.ports[v].get<float>(keys * kv_heads * width);
  const float* o = static_cast<const float*>(ws.tensors[output_].data);
  // Each pass shows the weights of `width` keys: their values are the unit vectors, all others zero.
  for (int64_t first = 0; first < keys; first += width) {
    std::fill(values, values + keys * kv_heads * width, 0.0f);
    const int64_t n = std::min(width, keys - first);
    for (int64_t j = 0; j < n; ++j)
      for (int64_t h = 0; h < kv_heads; ++h) values[((first + j) * kv_heads + h) * width + j] = 1.0f;
    plan.run(run);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < queries; ++i)
        std::copy(o + (i * heads + h) * width, o + (i * heads + h) * width + n,
                  weights + (h * queries + i) * keys + first);
  }
}

}  // namespace attnkit::core
