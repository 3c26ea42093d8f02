#include "core/model/device_compute.hpp"

#include <array>
#include <cmath>
#include <cstring>

namespace attnkit::core {
namespace {

DeviceActivation activation_of(Activation f) {
  switch (f) {
    case Activation::relu:
      return DeviceActivation::relu;
    case Activation::gelu:
      return DeviceActivation::gelu;
    case Activation::gelu_tanh:
      return DeviceActivation::gelu_tanh;
    case Activation::quick_gelu:
      return DeviceActivation::quick_gelu;
    case Activation::silu:
      return DeviceActivation::silu;
  }
  return DeviceActivation::none;
}

DeviceType type_of(const Dense& layer, bool tf32) {
  if (layer.type() == WeightType::bf16) return DeviceType::bf16;
  if (layer.type() == WeightType::f16) return DeviceType::f16;
  if (layer.type() != WeightType::f32)
    fail(ATTN_UNSUPPORTED, "[weights] type = \"{}\": weights on a device are f32, bf16 or f16",
         weight_type_name(layer.type()));
  return tf32 ? DeviceType::tf32 : DeviceType::f32;
}

void check_range(std::span<const float> numbers) {
  constexpr float most = 65504;
  for (const float x : numbers)
    if (std::abs(x) > most)
      fail(ATTN_UNSUPPORTED, "[weights] type = \"f16\": there is a weight {}, and f16 ends at {}: set \"bf16\"", x,
           most);
}

}  // namespace

void* DeviceTensors::upload(const void* key, std::span<const std::byte> bytes) {
  DeviceMemory memory(*device_, bytes.size());
  stream_.from_host(memory.data(), bytes.data(), bytes.size());
  return memory_.insert_or_assign(key, std::move(memory)).first->second.data();
}

const void* DeviceTensors::pack(const void* key, DeviceType type, const std::vector<float>& numbers) {
  if (type == DeviceType::f16) check_range(numbers);
  DeviceMemory memory(*device_, numbers.size() * (has_16_bits(type) ? 2 : 4));
  device_->call(&DeviceTable::pack, stream_.get(), type, static_cast<const float*>(numbers.data()),
                static_cast<int64_t>(numbers.size()), static_cast<void*>(memory.data()));
  return memory_.insert_or_assign(key, std::move(memory)).first->second.data();
}

void DeviceTensors::add(std::span<const std::byte> bytes) {
  if (!bytes.empty() && !memory_.contains(bytes.data())) upload(bytes.data(), bytes);
}

void DeviceTensors::add(const LayerNorm& norm) {
  add(std::as_bytes(std::span(norm.weight)));
  add(std::as_bytes(std::span(norm.bias)));
}

void DeviceTensors::add(const Dense& layer, bool tf32) {
  if (layer.weights() && !dense_.contains(layer.weights().get())) add_all({&layer}, type_of(layer, tf32));
}

void DeviceTensors::add_together(const std::vector<const Dense*>& layers, bool tf32) {
  if (layers.size() < 2) return;
  std::vector<const DenseWeights*> key;
  for (const Dense* layer : layers) {
    key.push_back(layer->weights().get());
    if (layer->inputs() != layers[0]->inputs() || layer->type() != layers[0]->type() || dense_.contains(key.back()))
      return;
  }
  together_[key] = add_all(layers, type_of(*layers[0], tf32));
}

DeviceDense DeviceTensors::add_all(const std::vector<const Dense*>& layers, DeviceType type) {
  const int64_t inputs = layers[0]->inputs(), bytes = has_16_bits(type) ? 2 : 4;
  std::vector<float> numbers, biases;
  bool has_bias = false;
  for (const Dense* layer : layers) {
    const size_t from = numbers.size();
    numbers.resize(from + static_cast<size_t>(inputs * layer->outputs()));
    for (int64_t o = 0; o < layer->outputs(); ++o) layer->row(o, numbers.data() + from + o * inputs);
    biases.resize(biases.size() + static_cast<size_t>(layer->outputs()));
    if (!layer->has_bias()) continue;
    has_bias = true;
    const std::vector<float> nothing(static_cast<size_t>(inputs));  // W 0 + b
    Threads alone(1);
    layer->apply(alone, nothing.data(), inputs, biases.data() + biases.size() - layer->outputs(), layer->outputs(), 1);
  }
  const auto* const key = reinterpret_cast<const char*>(layers[0]->weights().get());
  DeviceDense all{pack(key, type, numbers), nullptr, inputs, std::ssize(biases), type};
  if (has_bias) {
    all.bias = static_cast<const float*>(upload(key + 1, std::as_bytes(std::span<const float>(biases))));
    if (has_16_bits(type)) all.rounded_bias = pack(key + 2, type, biases);
  }
  int64_t from = 0;
  for (const Dense* layer : layers) {
    DeviceDense one = all;
    const auto at = [&](const void* begin, int64_t n) { return static_cast<const char*>(begin) + n; };
    one.weight = at(all.weight, from * inputs * bytes);
    one.bias = layer->has_bias() ? all.bias + from : nullptr;
    one.rounded_bias = layer->has_bias() && all.rounded_bias ? at(all.rounded_bias, from * bytes) : nullptr;
    one.outputs = layer->outputs();
    dense_[layer->weights().get()] = one;
    from += layer->outputs();
  }
  return all;
}

void DeviceTensors::add(const Embedding& embedding) {
  add(std::as_bytes(std::span(embedding.positions)));
  add(embedding.norm);
  const int64_t rows = embedding.vocabulary();
  if (rows == 0) return;
  if (!embedding.table.empty()) return add(std::as_bytes(std::span(embedding.table.values)));
  const auto shared = dense_.find(embedding.packed.weights().get());
  if (shared != dense_.end() && !has_16_bits(shared->second.type)) return;
  std::vector<float> numbers(static_cast<size_t>(rows * embedding.width));
  for (int64_t id = 0; id < rows; ++id) embedding.row(id, numbers.data() + id * embedding.width);
  upload(&embedding, std::as_bytes(std::span<const float>(numbers)));
}

void DeviceTensors::add(const Rotary& rotary, int64_t max_length) {
  const std::vector<float> table = rotary.table(max_length);
  upload(&rotary, std::as_bytes(std::span(table)));
}

const DeviceDense& DeviceTensors::dense(const Dense& layer) const { return dense_.at(layer.weights().get()); }

const DeviceDense* DeviceTensors::together(const std::vector<const Dense*>& layers) const {
  std::vector<const DenseWeights*> key;
  for (const Dense* layer : layers) key.push_back(layer->weights().get());
  const auto found = together_.find(key);
  return found == together_.end() ? nullptr : &found->second;
}

const void* DeviceTensors::at(const void* tensor) const { return memory_.at(tensor).data(); }

const float* DeviceTensors::table(const Embedding& embedding) const {
  for (const void* key : {static_cast<const void*>(&embedding), static_cast<const void*>(embedding.table.data())})
    if (const auto found = memory_.find(key); found != memory_.end())
      return reinterpret_cast<const float*>(found->second.data());
  return static_cast<const float*>(dense(embedding.packed).weight);
}

DeviceCompute::DeviceCompute(std::shared_ptr<const DeviceTensors> tensors)
    : tensors_(std::move(tensors)),
      device_(tensors_->device().get()),
      stream_(*device_),
      pinned_(*device_),
      seen_(*device_) {}

void* DeviceCompute::allocate(size_t bytes) {
  ++allocations_;
  void* memory = nullptr;
  device_->call(&DeviceTable::allocate, static_cast<uint64_t>(bytes), &memory);
  return memory;
}

void DeviceCompute::settle() noexcept {
  try {
    stream_.wait();
  } catch (...) {  // the device is lost, and with it the work
  }
}

void DeviceCompute::end() noexcept {
  settle();
  current_.reset();
}

// Work that reads it may be on its way.
void DeviceCompute::release(void* memory) noexcept {
  settle();
  device_->release(memory);
}

attn_exec DeviceCompute::exec(void* scratch, uint64_t bytes) {
  attn_exec exec{};
  exec.struct_size = sizeof exec;
  exec.workers = 1;
  exec.scratch = scratch;
  exec.scratch_bytes = bytes;
  exec.stream = stream_.get();
  return exec;
}

// All arrays in one copy, in an order that depends on their sizes alone, so that a graph finds them again.
void DeviceCompute::place(std::initializer_list<const Side*> sides, const Ids* ids) {
  packed_.clear();
  const auto put = [&](const auto& values) {
    const size_t at = packed_.size(), bytes = values.size() * sizeof(values[0]);
    packed_.resize(at + (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN);
    if (bytes > 0) std::memcpy(packed_.data() + at, values.data(), bytes);
    return at;
  };
  std::vector<std::array<size_t, 4>> at;
  for (const Side* side : sides)
    at.push_back({put(side->totals), put(side->lengths), put(side->positions), put(side->slots)});
  const size_t ids_at = packed_.size();
  for (int64_t b = 0; ids && b < ids->batch; ++b) {
    const size_t row = packed_.size();
    packed_.resize(row + static_cast<size_t>(ids->length) * sizeof(int32_t));
    if (const int64_t n = ids->length_of(b); n > 0)
      std::memcpy(packed_.data() + row, ids->data + b * ids->stride, static_cast<size_t>(n) * sizeof(int32_t));
  }
  placed_.clear();
  if (packed_.empty())
    for (const Side* side : sides) placed_[side] = {};
  if (packed_.empty()) return;
  if (packed_.size() > arrays_.bytes()) placed_bytes_ = 0;  // other memory, whatever its address
  char* const to = arrays_.get<char>(static_cast<int64_t>(packed_.size()));
  if (packed_.size() != placed_bytes_ || placed_to_ != to ||
      std::memcmp(packed_.data(), pinned_.data(), packed_.size()) != 0) {
    if (in_flight_) stream_.wait();
    placed_bytes_ = 0;
    std::memcpy(pinned_.get(packed_.size()), packed_.data(), packed_.size());
    stream_.from_host(to, pinned_.data(), packed_.size());
    placed_bytes_ = packed_.size();
    placed_to_ = to;
    in_flight_ = true;
  }
  auto offsets = at.begin();
  for (const Side* side : sides) {
    const auto& [totals, lengths, positions, slots] = *offsets++;
    const auto found = [&](const auto& values, size_t offset) {
      return values.empty() ? nullptr : reinterpret_cast<decltype(values.data())>(to + offset);
    };
    placed_[side] = {found(side->lengths, lengths), found(side->positions, positions), found(side->slots, slots),
                     found(side->totals, totals)};
  }
  placed_ids_ = reinterpret_cast<const int32_t*>(to + ids_at);
}

void DeviceCompute::norm(const LayerNorm& layer, const float* x, void* y, DeviceType of_y, int64_t rows) {
  if (rows == 0) return;
  const DeviceNorm norm{tensors_->floats(layer.weight), tensors_->floats(layer.bias),
                        static_cast<int64_t>(layer.weight.size()), layer.epsilon, layer.type == NormType::rms};
  device_->call(&DeviceTable::norm, stream_.get(), &norm, x, y, of_y, rows);
}

void DeviceCompute::dense(const DeviceDense& layer, const void* x, DeviceType of_x, void* y, DeviceType of_y,
                          int64_t rows, DeviceActivation f, bool add) {
  if (rows == 0) return;
  const uint64_t bytes = has_16_bits(of_x) ? 0 : device_->table().dense_scratch(&layer, rows);
  void* const scratch = bytes > 0 ? scratch_.get<char>(static_cast<int64_t>(bytes)) : nullptr;
  device_->call(&DeviceTable::dense, stream_.get(), &layer, x, of_x, y, of_y, rows, f, add, scratch);
}

DeviceType DeviceCompute::takes(const Dense& layer) const {
  const DeviceType type = tensors_->dense(layer).type;
  return has_16_bits(type) ? type : DeviceType::f32;
}

void DeviceCompute::dense(const Dense& layer, const float* x, float* y, int64_t rows) {
  dense(tensors_->dense(layer), x, DeviceType::f32, y, DeviceType::f32, rows, DeviceActivation::none, false);
}

void DeviceCompute::dense_add(const Dense& layer, const void* x, DeviceType of_x, float* y, int64_t rows) {
  dense(tensors_->dense(layer), x, of_x, y, DeviceType::f32, rows, DeviceActivation::none, true);
}

void DeviceCompute::feed_forward(const Dense* gate, const Dense& in, const Dense& out, const void* x, DeviceType of_x,
                                 float* y, int64_t rows, Activation f, Buffer& room) {
  float* const hidden = room.get<float>(rows * in.outputs() * (gate ? 2 : 1));
  const DeviceType type = takes(out);
  dense_add(out, inner(gate, in, x, of_x, hidden, type, rows, f), type, y, rows);
}

// f(gate x) * in x, or f(in x) where there is no gate, in that type; in `hidden` or in other memory that lasts until
// the next call.  One kernel behind the products activates, multiplies and rounds.
const void* DeviceCompute::inner(const Dense* gate, const Dense& in, const void* x, DeviceType of_x, float* hidden,
                                 DeviceType type, int64_t rows, Activation f) {
  const int64_t width = in.outputs();
  const bool rounds = has_16_bits(type);
  const auto product = [&](const DeviceDense& layer, float* y, DeviceActivation of_y) {
    dense(layer, x, of_x, y, DeviceType::f32, rows, of_y, false);
  };
  if (!gate && !rounds) {
    product(tensors_->dense(in), hidden, activation_of(f));
    return hidden;
  }
  const DeviceDense* const both = gate ? tensors_->together({gate, &in}) : nullptr;
  float* const plain = gate ? hidden + (both ? width : rows * width) : nullptr;
  if (both) {
    product(*both, hidden, DeviceActivation::none);
  } else {
    product(tensors_->dense(gate ? *gate : in), hidden, DeviceActivation::none);
    if (gate) product(tensors_->dense(in), plain, DeviceActivation::none);
  }
  void* const to = inner_.get<char>(rows * width * (rounds ? 2 : 4));
  if (rows > 0)
    device_->call(&DeviceTable::gate, stream_.get(), static_cast<const float*>(hidden),
                  static_cast<const float*>(plain), both ? 2 * width : width, activation_of(f), to, type, rows, width);
  return to;
}

const void* DeviceCompute::rounded(const float* x, int64_t n, DeviceType type, Buffer& room) {
  if (type == DeviceType::f32 || n == 0) return x;
  void* const to = room.get<uint16_t>(n);
  device_->call(&DeviceTable::round_to_16_bits, stream_.get(), type, x, n, to);
  return to;
}

DeviceRotary DeviceCompute::turns_of(const Rotary& rotary, int64_t max_length) const {
  return {static_cast<const float*>(tensors_->at(&rotary)), max_length, rotary.pairs(), rotary.first(),
          rotary.second()};
}

// One product, and one kernel that takes each step of all of them, but for norms; of many rows without steps the
// products write what is wanted themselves.
void DeviceCompute::project(std::span<const Projection> all, const void* x, DeviceType type, int64_t rows,
                            const Side& side) {
  std::vector<const Dense*> layers;
  bool has_norm = false, pays = rows <= 256;
  for (const Projection& one : all) {
    layers.push_back(one.layer);
    has_norm |= one.steps.norm != nullptr;
    pays |= one.steps.rotary || one.steps.made < one.steps.heads;
  }
  const DeviceDense* const made =
      has_norm || !pays || std::ssize(all) > kMostHeads ? nullptr : tensors_->together(layers);
  if (!made) {
    for (const Projection& one : all) project(one, x, type, rows, side);
    return;
  }
  float* const heads = heads_.get<float>(rows * made->outputs);
  dense(*made, x, type, heads, DeviceType::f32, rows, DeviceActivation::none, false);
  DeviceHeads parts[kMostHeads];
  std::optional<DeviceRotary> turns;
  for (size_t i = 0; i < all.size(); ++i) {
    const HeadSteps& steps = all[i].steps;
    parts[i] = {all[i].y, steps.made, steps.heads, steps.width, steps.rotary != nullptr};
    if (steps.rotary) turns = turns_of(*steps.rotary, steps.max_length);
  }
  device_->call(&DeviceTable::spread, stream_.get(), static_cast<const DeviceHeads*>(parts), std::ssize(all),
                turns ? &*turns : static_cast<const DeviceRotary*>(nullptr), static_cast<const float*>(heads), type,
                this->rows(side).positions, rows / side.length, side.length);
}

// Only the last step rounds.
void DeviceCompute::project(const Projection& one, const void* x, DeviceType type, int64_t rows, const Side& side) {
  const auto& [norm_of, rotary, made, heads, width, max_length] = one.steps;
  const DeviceDense& layer = tensors_->dense(*one.layer);
  void* const y = one.y;
  if (!norm_of && !rotary && made == heads) return dense(layer, x, type, y, type, rows, DeviceActivation::none, false);
  const bool in_place = made == heads && type == DeviceType::f32;
  float* const to = in_place ? static_cast<float*>(y) : heads_.get<float>(rows * made * width);
  dense(layer, x, type, to, DeviceType::f32, rows, DeviceActivation::none, false);
  if (norm_of) {
    const bool is_last = !rotary && made == heads;
    norm(*norm_of, to, is_last ? y : to, is_last ? type : DeviceType::f32, rows * made);
  }
  if (rotary) {
    const bool is_last = made == heads;
    const DeviceRotary turns = turns_of(*rotary, max_length);
    device_->call(&DeviceTable::turn, stream_.get(), &turns, static_cast<const float*>(to), is_last ? y : to,
                  is_last ? type : DeviceType::f32, this->rows(side).positions, rows / side.length, side.length, made,
                  width);
  }
  if (made < heads)
    device_->call(&DeviceTable::repeat_heads, stream_.get(), static_cast<const float*>(to), y, type, rows, made, heads,
                  width);
}

void DeviceCompute::embed(const Embedding& layer, const Ids& ids, const Side& side, float* x) {
  if (ids.batch == 0 || ids.length == 0) return;
  const DeviceEmbedding made{tensors_->table(layer), tensors_->floats(layer.positions), layer.width, layer.scale,
                             layer.zero_begin};
  const RowArrays arrays = rows(side);
  device_->call(&DeviceTable::embed, stream_.get(), &made, placed_ids_, arrays.lengths, arrays.positions, ids.batch,
                ids.length, x);
  if (layer.norm.weight.empty()) return;
  norm(layer.norm, x, x, DeviceType::f32, ids.batch * ids.length);
  device_->call(&DeviceTable::clear_padding, stream_.get(), x, arrays.lengths, ids.batch, ids.length, layer.width);
}

void DeviceCompute::add(float* x, const void* y, DeviceType of_y, int64_t n) {
  if (n > 0) device_->call(&DeviceTable::add, stream_.get(), x, y, of_y, n);
}

void DeviceCompute::normalise_heads(void* o, DeviceType type, int64_t rows, int64_t heads, int64_t width) {
  if (rows > 0) device_->call(&DeviceTable::normalise_heads, stream_.get(), o, type, rows, heads, width);
}

void DeviceCompute::scale(float* x, float by, const std::vector<float>& bias, int64_t rows, int64_t width) {
  if (rows > 0) device_->call(&DeviceTable::scale, stream_.get(), x, by, tensors_->floats(bias), rows, width);
}

const float* DeviceCompute::given(const AuxValue& value, Buffer& room) {
  const auto n = static_cast<int64_t>(value.data.size());
  float* const to = room.get<float>(n);
  from_host(to, value.data.data(), n);
  return to;
}

void DeviceCompute::take(const float* from, int64_t n, std::vector<float>& to) {
  to.resize(static_cast<size_t>(n));
  to_host(to.data(), from, n);
}

void DeviceCompute::to_host(float* to, const float* from, int64_t n) {
  stream_.to_host(to, from, bytes_of<float>(n));
  in_flight_ = in_flight_ && n == 0;
}

const float* DeviceCompute::fetched(const float* from, int64_t n) {
  auto* const to = reinterpret_cast<float*>(seen_.get(bytes_of<float>(n)));
  to_host(to, from, n);
  return to;
}

void DeviceCompute::reserve(const StepResult& result, int64_t rows) {
  const bool one = result.kind == StepResult::best;
  const int64_t count = one ? rows : rows * result.count;
  ids_.resize(static_cast<size_t>(count));
  top_.resize(static_cast<size_t>(one ? 0 : count));
  norms_.resize(static_cast<size_t>(one ? 0 : rows));
  const int64_t all = one ? rows : 2 * count + rows;
  results_.get<float>(all);
  seen_.get(bytes_of<float>(all));
}

// Ids, then scores, then norms.
void DeviceCompute::enqueue(const StepResult& result, const float* scores, int64_t rows, int64_t outputs) {
  const int64_t count = rows * result.count;
  if (result.kind == StepResult::best)
    device_->call(&DeviceTable::best, stream_.get(), scores, rows, outputs, results_.get<int32_t>(rows));
  if (result.kind == StepResult::top) {
    auto* const ids = results_.get<int32_t>(2 * count + rows);
    auto* const top = reinterpret_cast<float*>(ids + count);
    device_->call(&DeviceTable::top, stream_.get(), scores, rows, outputs, result.count, ids, top, top + count);
  }
}

void DeviceCompute::fetch() {
  const int64_t all = std::ssize(ids_) + std::ssize(top_) + std::ssize(norms_);
  const auto* from = reinterpret_cast<const char*>(fetched(results_.get<float>(all), all));
  const auto take = [&from](auto& to) {
    const size_t bytes = to.size() * sizeof(to[0]);
    if (bytes > 0) std::memcpy(to.data(), from, bytes);
    from += bytes;
  };
  take(ids_);
  take(top_);
  take(norms_);
}

std::vector<Ranked> DeviceCompute::top(int64_t row) const {
  const size_t count = ids_.size() / norms_.size(), from = static_cast<size_t>(row) * count;
  std::vector<Ranked> highest(count);
  for (size_t i = 0; i < count; ++i) highest[i] = {ids_[from + i], top_[from + i]};
  return highest;
}

float* on_host(const Workspace& ws, float* x, int64_t n, std::vector<float>& room) {
  if (!ws.device) return x;
  room.resize(static_cast<size_t>(n));
  return room.data();
}

const float* seen_by_host(const Workspace& ws, const float* x, int64_t n, std::vector<float>& room) {
  if (!ws.device) return x;
  ws.device->take(x, n, room);
  return room.data();
}

}  // namespace attnkit::core
