// From manifest and weights file to a Model.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/base/file.hpp"
#include "core/base/sha256.hpp"
#include "core/import/names.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/model/model.hpp"
#include "core/weights/packed_cache.hpp"

namespace attnkit::core {
namespace {

// Hosts learn of attnkit_model_info what ends sources and targets alike, and what begins a target of a source.
void check_vocabularies(const Model& model, Place place, Diagnostics& diagnostics) {
  const Tokenizer *s = model.vocabulary(false), *t = model.vocabulary(true);
  if (model.has_encoder() && t && t->begin_id() < 0)
    diagnostics.add(ak::bad_vocabulary, place, "no token begins the targets of this decoder",
                    "give decoder = { begin = \"...\" }, a token of its vocabulary");
  if (s && t && model.manifest().encoder.ends && s->end_id() != t->end_id())
    diagnostics.add(ak::bad_vocabulary, place,
                    fmt::format("texts end in token {} of the encoder's vocabulary and in token {} of the decoder's",
                                s->end_id(), t->end_id()),
                    "both sides must have </s> at the same place");
}

// Sequences that go from block to block must have the shape that the next block wants.
void check_carried(const std::vector<const Block*>& blocks, Diagnostics& diagnostics) {
  std::map<std::string, std::pair<const Block*, const attn_port*>> latest;
  for (const Block* block : blocks) {
    for (const attn_port* p : block->mechanism().ports()) {
      const auto given = latest.find(p->name);
      if (p->kind != ATTN_AUX_IN || given == latest.end()) continue;
      const attn_port& other = *given->second.second;
      if (p->shape[2] != other.shape[2] || p->shape[3] != other.shape[3])
        diagnostics.add(ak::refused, block->choice().decided,
                        fmt::format("{} cannot be \"{}\": it takes the sequence \"{}\" as {}x{}, and {} gives {}x{}",
                                    block->path(), block->choice().mechanism, p->name, p->shape[2], p->shape[3],
                                    given->second.first->path(), other.shape[2], other.shape[3]),
                        "give the mechanism the same options in both blocks");
    }
    for (const attn_port* p : block->mechanism().ports())
      if (p->kind == ATTN_AUX_OUT) latest[p->name] = {block, p};
  }
}

// A head may pool a sequence that the encoder's mechanisms carry instead of the encoder's output.
void check_pooled(const Model& model, Diagnostics& diagnostics) {
  const Manifest& m = model.manifest();
  const auto carried = model.carried();
  const auto pooled = carried.find(m.pool_of);
  if (m.pool_of.empty() || (pooled != carried.end() && pooled->second->shape[3] == m.d_model)) return;
  diagnostics.add(ak::not_applicable, m.pool_place,
                  fmt::format("[model.head] of = \"{}\": no block of the encoder gives such a sequence {} wide",
                              m.pool_of, m.d_model),
                  carried.empty() ? "remove it: no mechanism of the encoder carries any"
                                  : fmt::format("there is \"{}\"", carried.rbegin()->first));
}

// A tensor that another placement of the same weights uses: "<block>.<mechanism>...." of a mechanism that is not
// chosen there, or a shared projection of a block whose mechanism has no such port.
bool is_of_another_mechanism(const Manifest& manifest, const StoredTensor& tensor) {
  const std::string& name = tensor.name;
  static const std::set<std::string> shared = {"q.weight", "k.weight", "v.weight", "o.weight",
                                               "q.bias",   "k.bias",   "v.bias",   "o.bias"};
  for (const BlockChoice& choice : manifest.blocks) {
    const std::string path = block_path(choice.role, choice.layer) + ".";
    if (!name.starts_with(path)) continue;
    const std::string word = name.substr(path.size(), name.find('.', path.size()) - path.size());
    const std::string rest = name.substr(path.size());
    if (shared.count(rest)) return manifest.bias.contains(word) || !rest.ends_with(".bias");
    if (rest == "q.norm.weight" || rest == "k.norm.weight")
      return manifest.qk_norm && choice.role != ATTN_DECODER_CROSS;
    if (word.size() == 1 || word == "norm") return false;
    // An adapter is ignorable only where the model says that there are none.
    return word != choice.mechanism || (!manifest.adapters && name.starts_with(path + word + ".adapter."));
  }
  // Checkpoints of other libraries begin names with the same word: there a mechanism's own is what their map says.
  if (!name.starts_with("model.") || (manifest.weights_names && tensor.origin.empty())) return false;
  const std::string word = name.substr(6, name.find('.', 6) - 6);
  // If all blocks use it, none is left that could.
  return std::any_of(manifest.blocks.begin(), manifest.blocks.end(),
                     [&](const BlockChoice& choice) { return choice.mechanism != word; });
}

// The file of these weights as packed before; none if nothing is to be kept.
std::optional<PackedCache> cache_of(const Manifest& m, const std::optional<Weights>& weights,
                                    Diagnostics& diagnostics) {
  if (!m.weights_cache || !weights) return {};
  const std::string folder = cache_folder();
  if (folder.empty()) {
    diagnostics.add(ak::packed_cache, m.weights_place, "the cache of packed weights: there is no folder for caches",
                    "set XDG_CACHE_HOME or HOME to one");
    return {};
  }
  const std::string path = std::filesystem::absolute(m.weights_file).lexically_normal().string();
  // Manifests that read one file in other ways have caches of their own.
  const std::string way = fmt::format("{}\n{}\n{}", path, m.weights_seed ? fmt::to_string(*m.weights_seed) : "none",
                                      m.weights_names ? m.weights_names->source : "");
  const std::string name = sha256_hex(std::as_bytes(std::span(way))).substr(0, 16);
  const char* const type = weight_type_name(m.weights_type);
  return PackedCache(fmt::format("{}packed/{}-{}-{}", folder, name, type, packing()),
                     fmt::format("attnkit {}, {}, {}, seed {}, {}", ATTNKIT_VERSION, packing(), type,
                                 m.weights_seed ? fmt::to_string(*m.weights_seed) : "none", weights->identity()));
}

// Integers are multiplied on every machine, and fast where bytes are (docs/benchmarks/rivals.md).
void check_speed(const Manifest& m, Diagnostics& diagnostics) {
  const bool integers = m.weights_type == WeightType::int8 || m.weights_type == WeightType::int4;
  const ByteKernel kernel = fastest_bytes();
  if (!integers || (kernel != ByteKernel::avx2 && kernel != ByteKernel::neon && kernel != ByteKernel::plain)) return;
  const bool plain = kernel == ByteKernel::plain;
  diagnostics.add(
      ak::slow_type, m.weights_place,
      fmt::format("type \"{}\": this processor has no {}, so that many rows at once take {} f32",
                  weight_type_name(m.weights_type),
                  plain ? "instructions for it" : "products of bytes (VNNI, AVX-VNNI, AMX, Arm's dot products)",
                  plain ? "five to ten times as long as with" : "at best two thirds of the time with"),
      plain ? "f32 or bf16 is faster here"
            : "the weights are as small as they should be, and one row at a time is faster");
}

// A model opens with the cache or without; what was wrong with it is said once, since it is made anew.
void keep(const PackedCache& cache, const Manifest& m, Diagnostics& diagnostics) {
  std::string wrong = cache.problem();
  if (cache.wants_writing()) {
    const std::string failed = cache.write();
    if (!failed.empty()) wrong = failed;
  }
  if (!wrong.empty())
    diagnostics.add(ak::packed_cache, m.weights_place, fmt::format("the cache of packed weights: {}", wrong),
                    "the layers were packed anew");
}

}  // namespace

Model::Model(std::shared_ptr<Runtime> runtime, Manifest manifest)
    : runtime_(std::move(runtime)),
      manifest_(std::move(manifest)),
      encoder_(manifest_),
      decoder_(manifest_),
      head_(manifest_) {}

void Model::load(WeightReader& weights, Diagnostics& diagnostics) {
  LayerReader from{weights, manifest_.weights_type, manifest_.norm_eps, manifest_.norm_type};
  if (manifest_.positions == Positions::rotary)
    rotary_ = std::make_shared<const Rotary>(manifest_.rotary, manifest_.max_length);
  if (has_encoder()) encoder_.load(from);
  if (has_decoder()) decoder_.load(from);
  check_vocabularies(*this, manifest_.decoder.place, diagnostics);
  for (const BlockChoice& choice : manifest_.blocks) load_block(choice, from, diagnostics);
  check_carried(blocks_, diagnostics);
  const bool source_scores =
      !has_decoder() || (are_tied(manifest_, "source", "output") && !manifest_.tied.contains("target"));
  head_.load(from, source_scores ? encoder_.embedding : decoder_.embedding);
  if (head_.pools()) check_pooled(*this, diagnostics);
  parameters_ = from.parameters;
  std::map<std::string, int64_t> common;  // learned tensors that several blocks use
  for (const Block* block : blocks_) {
    parameters_ += block->parameters();
    common.insert(block->model_parameters().begin(), block->model_parameters().end());
  }
  for (const auto& [name, size] : common) parameters_ += size;
  weights.finish([this](const StoredTensor& tensor) { return is_of_another_mechanism(manifest_, tensor); });
}

void Model::load_block(const BlockChoice& choice, LayerReader& from, Diagnostics& diagnostics) {
  Transformer& stack = choice.role == ATTN_ENCODER_SELF ? encoder_.stack : decoder_.stack;
  Layer& layer = stack.layers.at(static_cast<size_t>(choice.layer) - 1);
  Attention& to = choice.role == ATTN_DECODER_CROSS ? layer.cross : layer.self;
  const std::string path = block_path(choice.role, choice.layer);
  to.norm = from.norm(path + ".norm", manifest_.d_model);
  const Plugin* plugin = runtime_->registry.find(choice.mechanism, manifest_.device_type);
  try {
    to.block = std::make_unique<Block>(manifest_, choice, *plugin, from.weights, rotary_);
    blocks_.push_back(to.block.get());
    check_positions(choice, *to.block, diagnostics);
    if (choice.role == ATTN_DECODER_CROSS && measures_by_target_.empty() && to.block->needs_target(0, 1))
      measures_by_target_ = path;
    if (choice.role != ATTN_ENCODER_SELF) {
      const uint32_t flags = to.block->plan_stream(1, 1, 1, 1, to.block->max_length()).info().flags;
      within_total_ |= (flags & ATTN_WITHIN_TOTAL) != 0;
      if (choice.role == ATTN_DECODER_SELF) rewinds_ &= (flags & ATTN_REWINDS) != 0;
    }
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY) throw;
    diagnostics.add(ak::refused, choice.decided,
                    fmt::format("{} cannot be \"{}\": {}", path, choice.mechanism, e.what()), {},
                    e.code() == ATTN_INTERNAL ? ATTNKIT_AREA_PLUGIN : ATTNKIT_AREA_MANIFEST);
  }
}

// Nothing else would say that the order of tokens counts for less than in the model as it was.
void Model::check_positions(const BlockChoice& choice, const Block& block, Diagnostics& diagnostics) const {
  if (choice.role == ATTN_DECODER_CROSS) return;
  const std::string owner = manifest_.weights_names ? manifest_.weights_names->positions : "";
  std::string why;
  if (rotary_ && !block.turns())
    why = "has no q and k of the block's heads, which rotary positions would turn";
  else if (!owner.empty() && choice.mechanism != owner)
    why = fmt::format("does not read the tensors of \"{}\", in which this model has its positions", owner);
  if (!why.empty())
    diagnostics.add(ak::lost_positions, choice.decided,
                    fmt::format("{}: \"{}\" {}", block.path(), choice.mechanism, why),
                    "the order of tokens counts there only as far as the mechanism knows it by itself");
}

std::vector<std::byte> Model::weights() const {
  const CurrentDevice current(device());
  Diagnostics diagnostics;
  std::map<std::string, WeightReader::Kept> kept;
  const auto reject = [&] {
    for (const Diagnostic& d : diagnostics.sorted())
      if (d.severity == ATTNKIT_ERROR) fail(ATTN_INVALID, "{}", d.message);
  };
  try {
    std::optional<Weights> file;
    if (!manifest_.weights_file.empty())
      file = Weights::open(manifest_.weights_file, manifest_.weights_sha256, manifest_.weights_names);
    if (file && file->identity() != weights_identity_)
      fail(ATTN_INVALID, "{}: was changed since the model was loaded", manifest_.weights_file);
    WeightReader reader(file ? &*file : nullptr, manifest_.weights_seed, diagnostics, manifest_.weights_place);
    reader.keep(&kept);
    Model(runtime_, manifest_).load(reader, diagnostics);
  } catch (const Stopped&) {
    reject();
  }
  reject();
  std::vector<StoredTensor> tensors;
  for (const auto& [name, t] : kept) tensors.push_back({name, t.dtype, t.shape, t.bytes});
  return to_safetensors(tensors);
}

std::shared_ptr<const Model> Model::load(std::shared_ptr<Runtime> runtime, const std::string& toml,
                                         const std::string& dir, Diagnostics& diagnostics) {
  Runtime& r = *runtime;
  Manifest manifest = read_manifest(toml, dir, r.registry, r.asked_device, diagnostics);
  if (diagnostics.failed()) return nullptr;
  std::shared_ptr<const Device> device;
  if (manifest.device_type != 1) {
    if (manifest.stream)
      fail(ATTN_UNSUPPORTED,
           "[stream]: sources that grow are read on the CPU alone: remove it, or run the model there");
    device = r.device();
  }
  const CurrentDevice current(device.get());
  std::shared_ptr<Model> model(new Model(std::move(runtime), std::move(manifest)));
  const Manifest& m = model->manifest_;
  try {
    std::optional<Weights> weights;
    if (!m.weights_file.empty()) weights = Weights::open(m.weights_file, m.weights_sha256, m.weights_names);
    if (weights) model->weights_identity_ = weights->identity();
    WeightReader reader(weights ? &*weights : nullptr, m.weights_seed, diagnostics, m.weights_place, &r.threads);
    std::optional<PackedCache> cache = cache_of(m, weights, diagnostics);
    if (cache) reader.use(&*cache);
    check_speed(m, diagnostics);
    model->load(reader, diagnostics);
    if (cache && !diagnostics.failed()) keep(*cache, m, diagnostics);
    if (device && !diagnostics.failed()) model->move_to(device);
    if (weights) weights->release();
    model->length_ = make_length(m, model->vocabulary(false), diagnostics);
    if (model->has_encoder())
      model->encoder_identity_ =
          std::make_shared<const EncoderIdentity>(encoder_identity(m, r.registry, model->weights_identity_));
  } catch (const Stopped&) {
    return nullptr;
  } catch (const std::bad_alloc&) {
    fail(ATTN_NO_MEMORY,
         "out of memory while \"{}\" was loaded (d_model {}, ffn {}, {} + {} layers): smaller widths, fewer layers or "
         "[weights] type = \"int8\" take less",
         m.name, m.d_model, m.ffn, m.encoder.layers, m.decoder.layers);
  } catch (const Error& e) {
    if (e.code() == ATTN_NO_MEMORY || e.code() == ATTN_DEVICE) throw;
    diagnostics.add(ak::weights_do_not_fit, m.weights_place, e.what());
  }
  if (diagnostics.failed()) return nullptr;
  return model;
}

}  // namespace attnkit::core
