// From manifest and weights file to a Model.
#include <cmath>
#include <map>
#include <set>

#include "core/manifest/diagnostics.hpp"
#include "core/model/model.hpp"

namespace attnkit {

class ModelLoader {
 public:
  ModelLoader(Model& model, WeightReader& reader, Diagnostics& diagnostics)
      : model_(model), manifest_(model.manifest_), reader_(reader), diagnostics_(diagnostics) {}

  void load() {
    if (manifest_.speech) load_frontend(*manifest_.speech);
    if (manifest_.encoder.layers > 0)
      load_stack("encoder", manifest_.encoder, model_.source_vocabulary_, model_.encoder_);
    if (manifest_.decoder.layers > 0)
      load_stack("decoder", manifest_.decoder, model_.target_vocabulary_, model_.decoder_);
    check_vocabularies();
    for (const BlockChoice& choice : manifest_.blocks) load_block(choice);
    check_carried();
    load_head();
    reader_.finish([this](const std::string& name) { return of_another_mechanism(name); });
  }

 private:
  std::vector<float> take(const std::string& name, const std::vector<int64_t>& shape, const Initial& initial) {
    std::vector<float> values = reader_.f32(name, shape, initial);
    model_.parameters_ += static_cast<int64_t>(values.size());
    return values;
  }

  LayerNorm norm(const std::string& name) {
    return {take(name + ".weight", {manifest_.d_model}, constant(1)),
            take(name + ".bias", {manifest_.d_model}, constant(0))};
  }

  Dense dense(const std::string& name, int64_t in, int64_t out) {
    const std::vector<float> weight = take(name + ".weight", {out, in}, xavier(in, out));
    return Dense(in, out, weight, take(name + ".bias", {out}, constant(0)));
  }

  void load_frontend(const SpeechTable& speech) {
    const int64_t bins = speech.features.bins, channels = speech.channels;
    FrontendWeights weights;
    weights.mean = take("encoder.features.mean", {bins}, constant(0));
    weights.scale = take("encoder.features.scale", {bins}, constant(1));
    for (int l = 1; l <= speech.layers; ++l) {
      const std::string conv = "encoder.frontend.conv." + std::to_string(l);
      const int64_t in = l == 1 ? bins : channels;
      weights.conv_weight.push_back(
          take(conv + ".weight", {channels, in, speech.kernel}, xavier(in * speech.kernel, channels)));
      weights.conv_bias.push_back(take(conv + ".bias", {channels}, constant(0)));
    }
    weights.out_weight =
        take("encoder.frontend.out.weight", {manifest_.d_model, channels}, xavier(channels, manifest_.d_model));
    weights.out_bias = take("encoder.frontend.out.bias", {manifest_.d_model}, constant(0));
    model_.frontend_.emplace(speech, manifest_.d_model, manifest_.activation, weights);
  }

  void load_stack(const std::string& name, const Stack& stack, std::optional<Vocabulary>& vocabulary, Transformer& to) {
    const Initial embedded = normal(1 / std::sqrt(static_cast<double>(manifest_.d_model)));
    to.embedding.width = manifest_.d_model;
    to.embedding.scale = manifest_.embed_scale ? std::sqrt(static_cast<float>(manifest_.d_model)) : 1.0f;
    if (!stack.vocab.empty()) {
      vocabulary = Vocabulary::open(stack.vocab, stack.lowercase);
      to.embedding.table = take(name + ".embed.weight", {vocabulary->size(), manifest_.d_model}, embedded);
    }
    if (manifest_.positions == Positions::sinusoidal)
      to.embedding.positions = sinusoidal_positions(manifest_.max_length, manifest_.d_model);
    if (manifest_.positions == Positions::learned)
      to.embedding.positions = take(name + ".positions.weight", {manifest_.max_length, manifest_.d_model}, embedded);
    to.layers.resize(static_cast<size_t>(stack.layers));
    for (int l = 1; l <= stack.layers; ++l) {
      const std::string ffn = name + ".ffn." + std::to_string(l);
      to.layers[l - 1].feed_forward = {norm(ffn + ".norm"), dense(ffn + ".in", manifest_.d_model, manifest_.ffn),
                                       dense(ffn + ".out", manifest_.ffn, manifest_.d_model)};
    }
    if (manifest_.norm == Norm::pre) to.norm = norm(name + ".norm");
  }

  // Hosts learn one pair of ids from attnkit_model_info and end sources and begin targets with it.
  void check_vocabularies() {
    const std::optional<Vocabulary>&s = model_.source_vocabulary_, &t = model_.target_vocabulary_;
    if (s && t && (s->begin_id() != t->begin_id() || s->end_id() != t->end_id()))
      diagnostics_.error(
          ak::bad_vocabulary, manifest_.decoder.place,
          fmt::format("<s> and </s> are tokens {} and {} of the encoder's vocabulary and {} and {} of the decoder's",
                      s->begin_id(), s->end_id(), t->begin_id(), t->end_id()),
          "both sides must have them at the same places", ATTNKIT_AREA_DATA);
  }

  void load_block(const BlockChoice& choice) {
    Transformer& stack = choice.role == ATTN_ENCODER_SELF ? model_.encoder_ : model_.decoder_;
    Layer& layer = stack.layers.at(static_cast<size_t>(choice.layer) - 1);
    Attention& to = choice.role == ATTN_DECODER_CROSS ? layer.cross : layer.self;
    to.norm = norm(block_path(choice.role, choice.layer) + ".norm");
    const Plugin* plugin = model_.runtime_->registry.find(choice.mechanism, model_.runtime_->device_type);
    try {
      to.block = std::make_unique<Block>(manifest_, choice, *plugin, reader_);
      model_.parameters_ += to.block->parameters();
      for (const auto& [name, size] : to.block->model_parameters())
        if (counted_.insert(name).second) model_.parameters_ += size;
      if (choice.role == ATTN_DECODER_CROSS && model_.measures_by_target_.empty() && to.block->needs_target(0, 1))
        model_.measures_by_target_ = block_path(choice.role, choice.layer);
      if (choice.role != ATTN_ENCODER_SELF)
        model_.within_total_ |=
            (to.block->plan_stream(1, 1, 1, 1, manifest_.max_length).info().flags & ATTN_WITHIN_TOTAL) != 0;
    } catch (const Error& e) {
      diagnostics_.error(
          ak::refused, choice.decided,
          fmt::format("{} cannot be \"{}\": {}", block_path(choice.role, choice.layer), choice.mechanism, e.what()), {},
          e.code() == ATTN_INTERNAL ? ATTNKIT_AREA_PLUGIN : ATTNKIT_AREA_MANIFEST);
    }
  }

  // Sequences that go from block to block must have the shape that the next block wants.
  void check_carried() {
    struct Giver {
      std::string path;
      const attn_port* port;
    };
    std::map<std::string, Giver> latest;
    for (const BlockChoice& choice : manifest_.blocks) {
      const Transformer& stack = choice.role == ATTN_ENCODER_SELF ? model_.encoder_ : model_.decoder_;
      const Layer& layer = stack.layers[static_cast<size_t>(choice.layer) - 1];
      const Block* block = (choice.role == ATTN_DECODER_CROSS ? layer.cross : layer.self).block.get();
      if (!block) continue;
      const std::string path = block_path(choice.role, choice.layer);
      for (const attn_port* p : block->mechanism().ports()) {
        const auto given = latest.find(p->name);
        if (p->kind != ATTN_AUX_IN || given == latest.end()) continue;
        const attn_port& other = *given->second.port;
        if (p->shape[2] != other.shape[2] || p->shape[3] != other.shape[3])
          diagnostics_.error(
              ak::refused, choice.decided,
              fmt::format("{} cannot be \"{}\": it takes the sequence \"{}\" as {}x{}, and {} gives {}x{}", path,
                          choice.mechanism, p->name, p->shape[2], p->shape[3], given->second.path, other.shape[2],
                          other.shape[3]),
              "give the mechanism the same options in both blocks");
      }
      for (const attn_port* p : block->mechanism().ports())
        if (p->kind == ATTN_AUX_OUT) latest[p->name] = {path, p};
    }
  }

  void load_head() {
    const int64_t d = manifest_.d_model;
    if (manifest_.head == HeadType::classifier) {
      const int64_t hidden = manifest_.head_hidden;
      if (hidden > 0) model_.head_hidden_ = dense("head.hidden", d, hidden);
      model_.head_ = dense("head", hidden > 0 ? hidden : d, manifest_.classes);
      check_pooled();
      return;
    }
    const bool decoder = manifest_.decoder.layers > 0;
    const std::vector<float>& embedding = decoder ? model_.decoder_.embedding.table : model_.encoder_.embedding.table;
    const int64_t vocabulary = static_cast<int64_t>(embedding.size()) / d;
    model_.head_ =
        Dense(d, vocabulary,
              manifest_.tie_embeddings ? embedding : take("head.weight", {vocabulary, d}, xavier(d, vocabulary)), {});
  }

  // A classifier may pool a sequence that the encoder's mechanisms carry instead of the encoder's output.
  void check_pooled() {
    const std::string& name = manifest_.pool_of;
    if (name.empty()) return;
    std::string known;
    for (const Layer& layer : model_.encoder_.layers)
      if (layer.self.block) {
        for (const std::string& given : layer.self.block->aux_names(ATTN_AUX_OUT)) {
          if (given == name && layer.self.block->aux_width(name) == manifest_.d_model) return;
          known = given;
        }
      }
    diagnostics_.error(
        ak::not_applicable, manifest_.pool_place,
        fmt::format("[model.head] of = \"{}\": no block of the encoder gives such a sequence {} wide", name,
                    manifest_.d_model),
        known.empty() ? "remove it: no mechanism of the encoder carries any" : fmt::format("there is \"{}\"", known));
  }

  // A tensor that another placement of the same weights uses: "<block>.<mechanism>...." of a mechanism that is not
  // chosen there, or a shared projection of a block whose mechanism has no such port.
  bool of_another_mechanism(const std::string& name) const {
    static const std::set<std::string> shared = {"q.weight", "k.weight", "v.weight", "o.weight",
                                                 "q.bias",   "k.bias",   "v.bias",   "o.bias"};
    for (const BlockChoice& choice : manifest_.blocks) {
      const std::string path = block_path(choice.role, choice.layer) + ".";
      if (name.rfind(path, 0) != 0) continue;
      const std::string word = name.substr(path.size(), name.find('.', path.size()) - path.size());
      if (shared.count(name.substr(path.size()))) return true;
      if (word.size() == 1 || word == "norm") return false;
      // An adapter is ignorable only where the model says that there are none.
      return word != choice.mechanism || (!manifest_.adapters && name.rfind(path + word + ".adapter.", 0) == 0);
    }
    if (name.rfind("model.", 0) != 0) return false;
    const std::string word = name.substr(6, name.find('.', 6) - 6);
    return std::none_of(manifest_.blocks.begin(), manifest_.blocks.end(),
                        [&](const BlockChoice& choice) { return choice.mechanism == word; });
  }

  Model& model_;
  const Manifest& manifest_;
  WeightReader& reader_;
  Diagnostics& diagnostics_;
  std::set<std::string> counted_;  // learned tensors of the model that several blocks use
};

std::shared_ptr<const Model> Model::load(std::shared_ptr<Runtime> runtime, const std::string& toml,
                                         const std::string& dir, Diagnostics& diagnostics) {
  std::shared_ptr<Model> model(new Model);
  model->runtime_ = std::move(runtime);
  model->manifest_ = read_manifest(toml, dir, model->runtime_->registry, model->runtime_->device_type, diagnostics);
  if (diagnostics.failed()) return nullptr;
  const Manifest& m = model->manifest_;
  try {
    std::optional<Weights> weights;
    if (!m.weights_file.empty()) weights = Weights::open(m.weights_file, m.weights_sha256);
    WeightReader reader(weights ? &*weights : nullptr, m.weights_seed, diagnostics, m.weights_place);
    ModelLoader(*model, reader, diagnostics).load();
    model->length_ = make_length(m, model->vocabulary(false), diagnostics);
    if (model->has_encoder())
      model->encoder_identity_ = std::make_shared<const EncoderIdentity>(
          encoder_identity(m, model->runtime_->registry, model->runtime_->device_type));
  } catch (const Stopped&) {
    return nullptr;
  } catch (const Error& e) {
    diagnostics.error(ak::weights_do_not_fit, m.weights_place, e.what(), {}, ATTNKIT_AREA_WEIGHTS);
  }
  if (diagnostics.failed()) return nullptr;
  return model;
}

}  // namespace attnkit
