// A model's manifest as checked data, with defaults filled in and one mechanism per block.
#pragma once

#include <attnkit/plugin.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/decoding/sampler.hpp"
#include "core/base/roles.hpp"
#include "core/manifest/diagnostics.hpp"
#include "core/plugin/mechanism.hpp"
#include "core/speech/fbank.hpp"
#include "core/tokenizer/tokenizer.hpp"

namespace attnkit::core {

struct NameMap;

enum class ModelKind { encoder, decoder, encoder_decoder };
enum class Norm { pre, post };
enum class NormType { layer, rms };
enum class Activation { relu, gelu, gelu_tanh, quick_gelu, silu };
// Of dense layers and embeddings; f16 on a device alone; stored: what the file has.
enum class WeightType { f32, bf16, f16, int8, int4, stored };
enum class Positions { sinusoidal, learned, rotary, none };
enum class Sinusoids { interleaved, halves, tensor2tensor };
enum class RotaryLayout { halves, interleaved };
enum class RotaryScaling { none, linear, llama3, longrope };
enum class HeadType { lm, classifier, embedding };
enum class Split { longest, wordpiece, huggingface, gguf };  // how text becomes tokens
enum class Pool { mean, first };
enum class Features { fbank, log_mel };
enum class Frontends { conv, centred };
enum class Numbering { own, fairseq };                               // of a SentencePiece file's tokens
enum class EarlyStop { never, guess, full, shrink };                 // of a beam search
enum class Predict { none, ratio, fixed, reference, lut, network };  // after none: the choices of the key, in order
enum class StreamPolicy { wait_k, offline };

struct Stack {  // encoder or decoder; layers 0: the model has none
  int layers = 0;
  std::string vocab;  // absolute path; empty: none given
  bool lowercase = false;
  std::shared_ptr<const Tokenizer> tokenizer;  // NULL: there is no vocabulary
  int vocab_size = 0;                          // rows of the embedding; 0: the tokenizer's
  bool causal = false;                         // encoder only: a unidirectional encoder
  bool ends = true;                            // encoder only: the token that hosts put behind a source is read
  bool zero_begin = false;                     // decoder only: the first position is embedded as zeros
  int max_length = 0;                          // decoder only: where it is shorter than the model's; 0: it is not
  Place place;
};

struct SearchChoice {  // a mechanism with the options that were given
  std::string label;   // "name" or "name{option = value}"
  std::string toml;    // the value of a key of [attention]
  std::string mechanism;
};

struct BlockChoice {  // one cell of the grid
  uint32_t role = 0;
  int layer = 0;  // from 1
  std::string mechanism;
  std::vector<OptionValue> options;  // in the order of the plugin's schema, defaults filled in
  Place decided;                     // the manifest line that decided it
  SearchChoice given;                // as [search] would have it
  bool replays = false;              // decoder.cross under [stream]: emptied and filled anew whenever the source grew
};

struct StreamTable {  // [stream]: the source may grow while the target is written
  StreamPolicy policy = StreamPolicy::wait_k;
  int k = 3;             // wait-k: decisions' worth of source that are read before the first token is written
  int pre_decision = 1;  // source tokens from one decision to the next
  bool replay = false;   // cross attention may be emptied and filled anew from kept encoder rows
};

struct SpeechTable {  // features and frontend of an encoder that takes speech
  FbankSpec features;
  Features type = Features::fbank;
  int64_t frames = 0;  // log_mel: of every recording
  Frontends frontend = Frontends::conv;
  int layers = 2, kernel = 3, stride = 2, channels = 0;  // of the convolutions
  // Of layer l from 0.
  int stride_of(int l) const { return frontend == Frontends::conv || l + 1 == layers ? stride : 1; }
  int64_t subsampling() const {  // frames that make one row of the encoder
    int64_t n = 1;
    for (int l = 0; l < layers; ++l) n *= stride_of(l);
    return n;
  }
};

struct RotaryTable {  // positions = "rotary": how q and k of self attention are turned
  double base = 10000;
  int width = 0;  // of a head's channels, the first; even
  RotaryLayout layout = RotaryLayout::halves;
  RotaryScaling scaling = RotaryScaling::none;
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  double attention_factor = 1;  // that sines and cosines are multiplied by
  int original_length = 8192;
  // By what each pair turns slower, empty: 1; of longrope in texts up to original_length, and in longer ones.
  std::vector<double> slower, slower_long;
};

struct Manifest {
  std::string name;
  ModelKind kind = ModelKind::encoder_decoder;
  int32_t device_type = 1;  // where it runs: 1, or 2 for CUDA
  int d_model = 0, heads = 0, ffn = 0, max_length = 0;
  int kv_heads = 0, head_width = 0;  // as given, or heads and d_model / heads
  Norm norm = Norm::pre;
  NormType norm_type = NormType::layer;
  std::set<std::string> bias;  // dense layers that have one: q, k, v and o of blocks, in, gate and out behind them
  Activation activation = Activation::relu;
  Positions positions = Positions::sinusoidal;
  Sinusoids sinusoids = Sinusoids::interleaved;
  RotaryTable rotary;
  std::optional<double> attention_scale;  // of q k; nothing: 1 / sqrt(head_width)
  bool gated = false, qk_norm = false, head_bias = false, final_norm = true;
  bool embed_scale = false, head_norm = false, adapters = false, embed_norm = false;
  std::set<std::string> tied;  // of "source", "target" and "output" what is one table
  float head_scale = 1;        // of the scores of tokens
  double norm_eps = 1e-5;
  int position_offset = 0;  // rows of sinusoidal or learned positions before the first
  int token_types = 0;      // of an encoder; text is of the first
  Stack encoder, decoder;
  HeadType head = HeadType::lm;
  int classes = 0, head_hidden = 0;  // head_hidden 0: the classifier is one layer
  bool normalise = false;            // an embedding
  Pool pool = Pool::mean;
  Place pool_place;
  bool pooler = false;                           // an embedding: a layer with tanh behind the pool
  std::string pool_of;                           // the auxiliary sequence that is pooled; empty: the encoder's output
  std::string weights_file;                      // absolute path; empty: none
  std::string weights_sha256;                    // lower-case hex or empty
  std::shared_ptr<const NameMap> weights_names;  // what the file calls its tensors; NULL: what attnkit calls them
  WeightType weights_type = WeightType::f32;
  std::optional<uint64_t> weights_seed;  // initialises the tensors that the file lacks
  bool tf32 = false;                     // on a device f32 weights are multiplied as tf32
  bool weights_cache = false;            // layers that were packed are kept for the next start
  Place weights_place;
  std::vector<BlockChoice> blocks;  // encoder.self 1..n, then per decoder layer self, cross
  Predict predict = Predict::none;
  double alpha = 0, fixed_length = 0, dampening = 1;
  std::string length_file, length_sha256;  // of lut and network, as with weights
  Place length_place;
  int beams = 1;
  double length_penalty = 1.0;
  EarlyStop early_stop = EarlyStop::never;
  // Tokens of a target with what begins it: no end before so many; never more; 0: no limit of its own.
  int min_decode_length = 0, max_decode_length = 0;
  int limit = 0;           // tokens that are written where nobody says how many; 0: that depends on the source
  bool force_end = false;  // the last of max_decode_length
  Sampling sampling;       // temperature: for hosts that draw
  std::vector<int32_t> forced, suppressed;  // ids: that targets begin with; that are never written
  std::vector<int32_t> suppressed_first;    // that are not written first behind the forced ones
  std::vector<int32_t> more_ends;           // that end a target as the vocabulary's end does
  std::optional<SpeechTable> speech;        // nothing: the source is text
  std::optional<StreamTable> stream;
  std::shared_ptr<const nlohmann::ordered_json> search;  // [search] as descriptions have it; NULL: there is none

  int max_target() const { return decoder.max_length > 0 ? decoder.max_length : max_length; }
};

// Parses and checks a manifest.  Every problem goes to diagnostics; the result is complete only if
// !diagnostics.failed(). dir: the folder that relative paths start from.  Mechanisms must be in registry for
// device_type, 0: the manifest's; their own refusals (create, plan) are reported at the line that chose them, in their
// own words.
Manifest read_manifest(const std::string& toml, const std::string& dir, const Registry& registry, int32_t device_type,
                       Diagnostics& diagnostics);

// Reads options given as the content of an inline table ("guard = 'add', eps = 1e-6"; NULL: none) against a plugin's
// schema.  Throws Error.
std::vector<OptionValue> read_options(const Plugin& plugin, const char* toml);
// Returns the value of a manifest's key: "\"name\"", or "{ use = \"name\", option = value, ... }".  before: such a text
// of an earlier time; options that it does not know are left out where they have their defaults.
std::string use_text(const Plugin& plugin, const std::vector<OptionValue>& options,
                     const std::string* before = nullptr);

void to_json(nlohmann::ordered_json& json, const SearchChoice& choice);
const char* kind_name(ModelKind kind);  // "encoder-decoder"
const char* positions_name(Positions positions);
const char* sinusoids_name(Sinusoids sinusoids);
// The meaning of "all", "all_but_k", "qkv" and "none", and the word for a set; empty: there is none.
std::set<std::string> bias_of(const std::string& word);
std::string bias_name(const std::set<std::string>& bias);
const char* early_stop_name(EarlyStop stop);
const char* rotary_layout_name(RotaryLayout layout);
const char* rotary_scaling_name(RotaryScaling scaling);
const char* weight_type_name(WeightType type);
const char* activation_name(Activation activation);
// Whether these two are one table.
bool are_tied(const Manifest& manifest, const char* one, const char* other);
bool has_role(ModelKind kind, uint32_t role);
int layers_of(const Manifest& manifest, uint32_t role);
std::string block_path(uint32_t role, int layer);  // "encoder.self.1"
attn_block block_of(const Manifest& manifest, const BlockChoice& choice);
// Does a longer source change the prediction?
bool predicts_from_source(Predict predict);
// Returns the request flags of the block in decoding and whole-sequence runs: which totals are known.  Under [stream]
// the source's length is not, nor what depends on it, except to blocks that are filled anew as it grows.
uint32_t total_flags(const Manifest& manifest, const BlockChoice& choice);

}  // namespace attnkit::core
