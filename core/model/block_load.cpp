// How a block finds its weights: shared projections with folded adapters, and what the mechanism declares for itself.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/model/block.hpp"

namespace attnkit {
namespace {

std::vector<int64_t> shape_of(const attn_port& port) { return {port.shape, port.shape + port.ndim}; }

// fairseq's: projections into heads are smaller than the one out of them.
const double inward = std::sqrt(0.5);

}  // namespace

Block::Block(const Manifest& manifest, const BlockChoice& choice, const Plugin& plugin, WeightReader& reader)
    : choice_(choice),
      path_(block_path(choice.role, choice.layer)),
      d_model_(manifest.d_model),
      head_norm_(manifest.head_norm),
      streams_(choice.role != ATTN_ENCODER_SELF || (manifest.stream && manifest.encoder.causal)),
      totals_(total_flags(manifest, choice)),
      mechanism_(Mechanism::create(plugin, block_of(manifest, choice), choice.options)) {
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
    switch (mechanism_->ports()[i]->kind) {
      case ATTN_QUERY:
      case ATTN_KEY:
        load_projection(i, reader);
        break;
      case ATTN_OUTPUT:
        load_output(i, reader);
        break;
      case ATTN_LEARNED:
      case ATTN_TABLE:
        load_stored(i, reader);
        break;
    }
  }
}

bool Block::has_aux(uint32_t kind, const std::string& name) const {
  return std::any_of(mechanism_->ports().begin(), mechanism_->ports().end(),
                     [&](const attn_port* p) { return p->kind == kind && p->name == name; });
}

std::vector<std::string> Block::aux_names(uint32_t kind) const {
  std::vector<std::string> names;
  for (const attn_port* p : mechanism_->ports())
    if (p->kind == kind) names.push_back(p->name);
  return names;
}

int64_t Block::aux_width(const std::string& name) const {
  for (const attn_port* p : mechanism_->ports())
    if (p->kind == ATTN_AUX_OUT && p->name == name) return p->shape[3];
  return 0;
}

bool Block::is_shared(const attn_port& port) const {
  const attn_block& b = mechanism_->block();
  const std::string name = port.name;
  if (port.shape[1] != b.heads) return false;
  if (port.kind == ATTN_OUTPUT || name == "v") return port.shape[3] == b.head_width;
  return (name == "q" || name == "k") && port.shape[3] == b.d_model / static_cast<int32_t>(b.heads);
}

std::string Block::own_name(const attn_port& port) const {
  if (port.flags & ATTN_PER_MODEL) return "model." + choice_.mechanism + "." + port.name;
  return path_ + "." + choice_.mechanism + "." + port.name;
}

void Block::load_projection(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  if (port.flags & ATTN_RAW) return;
  const int64_t width = port.shape[1] * port.shape[3];
  const bool shared = is_shared(port), bias = !(port.flags & ATTN_NO_BIAS);
  const std::string name = shared ? path_ + "." + port.name : own_name(port);
  const Owner owner = shared ? Owner::model : Owner::mechanism;
  std::vector<float> w = reader.f32(name + ".weight", {width, d_model_}, xavier(d_model_, width, inward), owner);
  std::vector<float> b(static_cast<size_t>(width));
  if (bias) b = reader.f32(name + ".bias", {width}, constant(0), owner);
  if (adapted_ && shared && port.name != std::string("v")) {
    const std::string adapter = path_ + "." + choice_.mechanism + ".adapter." + port.name;
    const std::vector<float> scale = reader.f32(adapter + "_scale", {width}, constant(1)),
                             shift = reader.f32(adapter + "_shift", {width}, constant(0));
    for (int64_t r = 0; r < width; ++r) {
      for (int64_t c = 0; c < d_model_; ++c) w[r * d_model_ + c] *= scale[r];
      b[r] = b[r] * scale[r] + shift[r];
    }
  }
  projections_[i] = Dense(d_model_, width, w, b);
  parameters_ += width * d_model_ + (bias ? width : 0);
}

void Block::load_output(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  output_ = i;
  out_raw_ = port.flags & ATTN_RAW;
  const int64_t width = port.shape[1] * port.shape[3];
  if (out_raw_) {
    if (width != d_model_)
      fail(ATTN_UNSUPPORTED, "{}: its unprojected output is {} wide, the model {}", choice_.mechanism, width, d_model_);
    return;
  }
  const bool shared = is_shared(port);
  const std::string name = shared ? path_ + ".o" : own_name(port);
  const Owner owner = shared ? Owner::model : Owner::mechanism;
  const bool bias = !(port.flags & ATTN_NO_BIAS);
  std::vector<float> w = reader.f32(name + ".weight", {d_model_, width}, xavier(width, d_model_), owner), b;
  if (bias) b = reader.f32(name + ".bias", {d_model_}, constant(0), owner);
  if (adapted_) {
    const std::vector<float> gain = reader.f32(path_ + "." + choice_.mechanism + ".adapter.gain", {width}, constant(1));
    for (int64_t r = 0; r < d_model_; ++r)
      for (int64_t c = 0; c < width; ++c) w[r * width + c] *= gain[c];
  }
  out_ = Dense(width, d_model_, w, b);
  parameters_ += out_.parameters();
}

void Block::load_stored(size_t i, WeightReader& reader) {
  const attn_port& port = *mechanism_->ports()[i];
  const std::string name = own_name(port);
  if (port.dtype_code == 2 && port.dtype_bits == 32) {
    stored_[i].f32 = reader.f32(
        name, shape_of(port),
        [&](uint64_t seed, std::vector<float>& values) { mechanism_->fill(i, seed, contiguous(port, values.data())); },
        port.flags & ATTN_PER_MODEL ? Owner::all_blocks : Owner::mechanism);
  } else if (port.dtype_code == 0 && (port.dtype_bits == 32 || port.dtype_bits == 64)) {
    stored_[i].raw = reader.integers(name, port.dtype_bits == 64 ? "I64" : "I32", shape_of(port),
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

Plan Block::plan_whole(uint32_t workers, int64_t batch, int64_t queries, int64_t keys) const {
  return mechanism_->plan(cpu_request(totals_, workers, batch, queries, keys, 0));
}

Plan Block::plan_stream(uint32_t workers, int64_t batch, int64_t queries, int64_t keys, int64_t capacity) const {
  return mechanism_->plan(
      cpu_request(totals_ | ATTN_STREAM, workers, batch, queries, keys, std::max<int64_t>(0, capacity - keys)));
}

bool Block::needs_target(int64_t queries, int64_t keys) const {
  if (choice_.role == ATTN_ENCODER_SELF || !(totals_ & ATTN_KNOWS_Q_TOTAL)) return false;
  const uint32_t target = ATTN_KNOWS_Q_TOTAL | (choice_.role == ATTN_DECODER_SELF ? ATTN_KNOWS_K_TOTAL : 0u);
  try {
    mechanism_->plan(cpu_request((totals_ & ~target) | ATTN_STREAM, 1, 1, queries, keys, 1));
    return false;
  } catch (const Error& e) {
    if (e.code() != ATTN_UNSUPPORTED) throw;
    return true;
  }
}

uint64_t Block::state_bytes(int64_t capacity) const {
  const uint64_t bytes = mechanism_->ask(cpu_request(totals_ | ATTN_STREAM, 1, 1, 1, 0, capacity)).state_bytes;
  return (bytes + ATTN_ALIGN - 1) / ATTN_ALIGN * ATTN_ALIGN;
}

}  // namespace attnkit
