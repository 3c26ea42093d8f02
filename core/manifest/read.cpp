// Reads a manifest, section after section; [attention] and [search] have files of their own.
#include "core/manifest/read.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/base/text.hpp"
#include "core/import/architecture.hpp"
#include "core/length/length.hpp"
#include "core/manifest/reader.hpp"
#include "core/speech/log_mel.hpp"
#include "core/tokenizer/gguf_vocabulary.hpp"
#include "core/tokenizer/huggingface.hpp"
#include "core/tokenizer/sentencepiece.hpp"
#include "core/tokenizer/vocabulary.hpp"

namespace attnkit::core {
namespace {

constexpr std::string_view schema = "attnkit.model/1", family = "attnkit.model/";

// False: another version of the format, whose other keys may mean anything.
bool check_schema(const Node& tree, Diagnostics& diagnostics) {
  const Entry* given = tree.find("schema");
  if (!given || given->value.kind != Node::Kind::text || given->value.text == schema) return true;
  const bool other_version = given->value.text.starts_with(family);
  diagnostics.add(
      ak::wrong_schema, given->value.place, fmt::format("schema {} is not {}", quote(given->value.text), quote(schema)),
      other_version ? "this version of attnkit reads no other: update attnkit, or convert the manifest" : "");
  return !other_version;
}

template <class Enum>
bool take(const std::optional<int>& chosen, Enum& field) {
  if (chosen) field = static_cast<Enum>(*chosen);
  return chosen.has_value();
}

int int_of(const TableReader& table, const char* key) { return static_cast<int>(table.integer(key).value_or(0)); }

// Returns whether all of it is sound.
bool read_features(const Entry& entry, const Reading& to, SpeechTable& speech) {
  const TableReader table(entry.value, "model.encoder.features", to.diagnostics);
  FbankSpec& spec = speech.features;
  const auto type = table.choice("type");
  const auto rate = table.integer("sample_rate"), bins = table.integer("bins");
  const auto window = table.number("window_ms"), shift = table.number("shift_ms");
  if (!take(type, speech.type) || !rate || !bins || !window || !shift) return false;
  const bool whole = speech.type == Features::log_mel;
  if (whole != table.mentioned("frames")) {
    if (whole)
      to.error(ak::missing_key, entry.value.place, "features of type \"log_mel\" need \"frames\"", "Whisper has 3000");
    else
      to.not_applicable(table.place("frames"), "\"frames\" is for type = \"log_mel\"");
    return false;
  }
  speech.frames = table.integer("frames").value_or(0);
  if (whole && speech.frames == 0) return false;
  spec = {static_cast<int>(*rate), static_cast<int>(*bins), *window, *shift};
  if (*shift > *window) {
    to.error(ak::wrong_value, table.place("shift_ms"),
             fmt::format("\"shift_ms\" is {}, more than window_ms, {}", *shift, *window),
             "samples between two frames would be seen by none");
    return false;
  }
  try {
    whole ? void(LogMel(spec, speech.frames)) : void(Fbank(spec));
    return true;
  } catch (const Error& e) {
    to.error(ak::wrong_value, entry.value.place, e.what());
    return false;
  }
}

bool read_frontend(const Entry& entry, const Reading& to, SpeechTable& speech) {
  const TableReader table(entry.value, "model.encoder.frontend", to.diagnostics);
  const auto type = table.choice("type");
  const auto layers = table.integer("layers"), kernel = table.integer("kernel"), stride = table.integer("stride");
  if (table.mentioned("channels") && !table.given("channels")) return false;
  if (!take(type, speech.frontend) || !layers || !kernel || !stride) return false;
  speech.layers = static_cast<int>(*layers);
  speech.kernel = static_cast<int>(*kernel);
  speech.stride = static_cast<int>(*stride);
  speech.channels = static_cast<int>(table.integer("channels").value_or(to.manifest.d_model));
  const bool centred = speech.frontend == Frontends::centred;
  if (centred && table.mentioned("channels")) {
    to.not_applicable(table.place("channels"), "\"channels\" is for type = \"conv\"");
    return false;
  }
  if (centred && *kernel % 2 == 0) {
    to.error(ak::wrong_value, table.place("kernel"), fmt::format("\"kernel\" is {}, an even number", *kernel),
             "as many rows are seen behind the one in the middle as before it");
    return false;
  }
  if (*kernel >= *stride) return true;
  to.error(ak::wrong_value, table.place("kernel"),
           fmt::format("\"kernel\" is {}, less than stride, {}", *kernel, *stride),
           "rows between two outputs would be seen by none");
  return false;
}

// features and frontend of the encoder: a source that is speech.
void read_speech(const Node& encoder, Reading& to) {
  for (const char* key :
       {"vocab", "lowercase", "tokenizer", "vocab_size", "truncate", "ids", "numbering", "more_tokens", "begin", "end"})
    if (const Entry* entry = encoder.find(key))
      to.not_applicable(entry->place, fmt::format("\"{}\" is for text, and this encoder has features of speech", key),
                        "remove it, or \"features\" and \"frontend\"");
  const Entry *features = encoder.find("features"), *frontend = encoder.find("frontend");
  const auto need = [&](const Entry* entry, const char* key, const char* help) {
    if (!entry)
      to.error(ak::missing_key, encoder.place, fmt::format("an encoder that takes speech needs \"{}\"", key), help);
    return entry && entry->value.kind == Node::Kind::table;
  };
  const bool have_features = need(features, "features", "features = { type = \"fbank\" }");
  if (!need(frontend, "frontend", "frontend = { type = \"conv\" }") || !have_features) return;
  SpeechTable speech;
  const bool sound = read_features(*features, to, speech);
  if (!read_frontend(*frontend, to, speech) || !sound) return;
  if ((speech.type == Features::log_mel) != (speech.frontend == Frontends::centred))
    return to.not_applicable(frontend->place,
                             "features of type \"log_mel\" and a frontend of type \"centred\" go together",
                             "\"fbank\" goes with \"conv\"");
  const int64_t rows = (speech.frames + speech.subsampling() - 1) / speech.subsampling();
  if (to.manifest.max_length > 0 && rows > to.manifest.max_length)
    return to.error(ak::wrong_value, features->place,
                    fmt::format("{} frames make {} rows of the encoder, more than max_length, {}", speech.frames, rows,
                                to.manifest.max_length));
  to.manifest.speech = speech;
}

bool is_sentencepiece(const Stack& stack, Split split) {
  return split == Split::huggingface && (stack.vocab.ends_with(".model") || stack.vocab.ends_with(".spm"));
}

void open_vocabulary(const TableReader& table, const Reading& to, Stack& stack, Split split, const TokenizerUse& use) {
  constexpr const char* helps[] = {"a vocabulary is a UTF-8 file with one token per line, <s> and </s> among them",
                                   "BERT's vocab.txt has one token per line, [CLS] and [SEP] among them",
                                   "docs/importing.md lists what is supported of a tokenizer.json",
                                   "docs/importing.md lists what is supported of a GGUF file's vocabulary"};
  try {
    const Stack& first = to.manifest.encoder;
    const bool same = first.vocab == stack.vocab && first.lowercase == stack.lowercase;
    if (split == Split::longest && same && std::dynamic_pointer_cast<const Vocabulary>(first.tokenizer))
      stack.tokenizer = first.tokenizer;  // one file for both sides is read once
    else if (split == Split::longest)
      stack.tokenizer = std::make_shared<const Vocabulary>(Vocabulary::open(stack.vocab, stack.lowercase));
    else if (split == Split::wordpiece)
      stack.tokenizer = open_wordpiece(stack.vocab, stack.lowercase, use);
    else if (is_sentencepiece(stack, split))
      stack.tokenizer = open_sentencepiece(stack.vocab, use);
    else if (split == Split::huggingface)
      stack.tokenizer = open_tokenizer_json(stack.vocab, use);
    else
      stack.tokenizer = open_gguf_vocabulary(stack.vocab, use);
  } catch (const Error& e) {
    to.error(ak::bad_vocabulary, table.place("vocab"), e.what(), helps[static_cast<size_t>(split)]);
  }
}

// The ids of a SentencePiece file's tokens, where they are not its own.
void read_ids(const TableReader& table, const Reading& to, const Stack& stack, Split split, TokenizerUse& use) {
  for (const char* key : {"ids", "numbering", "more_tokens"})
    if (table.mentioned(key) && !is_sentencepiece(stack, split))
      to.not_applicable(table.place(key), fmt::format("\"{}\" is for SentencePiece's files", key));
  if (const auto ids = table.text("ids")) use.ids = join_path(to.dir, *ids);
  const Entry* more = table.given("more_tokens");
  Numbering numbering = Numbering::own;
  take(table.choice("numbering"), numbering);
  use.fairseq = numbering == Numbering::fairseq;
  if (use.fairseq && table.mentioned("ids"))
    to.not_applicable(table.place("numbering"), "\"numbering\" is for files without \"ids\"");
  for (size_t i = 0; more && i < more->value.items.size(); ++i) use.more.push_back(more->value.items[i].text);
}

// Reads the stack's tokenizer.
void read_tokenizer(const TableReader& table, const Reading& to, Stack& stack) {
  Split split = Split::longest;
  if (!take(table.choice("tokenizer"), split)) return;
  TokenizerUse use;
  use.target = &stack == &to.manifest.decoder;
  const int64_t max_length = to.manifest.max_length;
  const int64_t truncate = use.target ? 0 : table.integer("truncate").value_or(0);
  if (truncate > 0) use.max_ids = static_cast<size_t>(truncate);
  if (truncate > 0 && split == Split::longest)
    to.not_applicable(table.place("truncate"), "\"truncate\" is for tokenizers other than \"longest\"");
  if (truncate > max_length && max_length > 0)
    to.error(ak::wrong_value, table.place("truncate"),
             fmt::format("\"truncate\" is {}, more than max_length, {}", truncate, max_length));
  if (table.mentioned("lowercase") && (split == Split::huggingface || split == Split::gguf))
    to.not_applicable(table.place("lowercase"), "\"lowercase\" is said by the tokenizer's own file");
  stack.vocab_size = int_of(table, "vocab_size");
  use.size = stack.vocab_size;
  if (use.target) {
    stack.max_length = int_of(table, "max_length");
    if (stack.max_length > max_length && max_length > 0)
      to.error(ak::wrong_value, table.place("max_length"),
               fmt::format("\"max_length\" is {}, more than the model's, {}", stack.max_length, max_length));
  }
  use.begin = table.text("begin").value_or("");
  if (use.target) use.end = table.text("end").value_or("");
  use.ends = stack.ends;
  for (const char* key : {"begin", "end", "vocab_size"})
    if (split == Split::longest && table.mentioned(key) && (use.target || key == std::string_view("begin")))
      to.not_applicable(table.place(key), fmt::format("\"{}\" is for tokenizers other than \"longest\"", key));
  read_ids(table, to, stack, split, use);
  open_vocabulary(table, to, stack, split, use);
  if (stack.tokenizer && stack.vocab_size > 0 && stack.vocab_size < stack.tokenizer->size())
    to.error(ak::wrong_value, table.place("vocab_size"),
             fmt::format("\"vocab_size\" is {}, and {} has {} tokens", stack.vocab_size, stack.vocab,
                         stack.tokenizer->size()));
}

// The ids of a list of tokens of the decoder's vocabulary.
std::vector<int32_t> read_tokens(const TableReader& table, const char* key, const Reading& to) {
  const Entry* entry = table.given(key);
  const Tokenizer* vocabulary = to.manifest.decoder.tokenizer.get();
  std::vector<int32_t> ids;
  if (!entry || !vocabulary) return ids;
  for (const Node& item : entry->value.items) {
    int64_t id = item.kind == Node::Kind::integer ? item.integer : -1;
    for (int32_t i = 0; id < 0 && item.kind == Node::Kind::text && i < vocabulary->size(); ++i)
      if (vocabulary->token(i) == item.text) id = i;
    if (id < 0 || id >= vocabulary->size())
      to.error(ak::wrong_value, item.place,
               fmt::format("\"{}\": {} is no token of the decoder's vocabulary", key,
                           item.kind == Node::Kind::text || item.kind == Node::Kind::integer ? value_text(item)
                                                                                             : kind_name(item.kind)));
    else
      ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

void read_stack(const Entry& entry, const char* path, Reading& to, Stack& stack) {
  const TableReader table(entry.value, path, to.diagnostics);
  stack.place = entry.place;
  stack.layers = int_of(table, "layers");
  stack.lowercase = table.boolean("lowercase").value_or(false);
  const bool encoder = &stack == &to.manifest.encoder;
  if (encoder) stack.causal = table.boolean("causal").value_or(false);
  if (encoder) stack.ends = table.boolean("end").value_or(true);
  if (!encoder) stack.zero_begin = table.boolean("zero_begin").value_or(false);
  if (encoder && (table.meant("features") || table.meant("frontend"))) return read_speech(entry.value, to);
  if (encoder && !table.meant("vocab"))
    to.error(ak::missing_key, entry.value.place, "[model.encoder] needs \"vocab\", text",
             "or, where the source is speech, \"features\" and \"frontend\"");
  const auto vocab = table.text("vocab");
  if (!vocab) return;
  stack.vocab = join_path(to.dir, *vocab);
  read_tokenizer(table, to, stack);
  if (encoder || !stack.tokenizer) return;
  to.manifest.more_ends = read_tokens(table, "more_ends", to);
  std::erase(to.manifest.more_ends, stack.tokenizer->end_id());
}

// A stack is there if and only if the kind has it.
void read_stacks(const Node& model, const TableReader& table, Reading& to) {
  struct Side {
    const char *key, *path;
    uint32_t role;
    Stack& stack;
  };
  for (const Side& side : {Side{"encoder", "model.encoder", ATTN_ENCODER_SELF, to.manifest.encoder},
                           Side{"decoder", "model.decoder", ATTN_DECODER_SELF, to.manifest.decoder}}) {
    const bool wanted = !to.kind_known || has_role(to.manifest.kind, side.role);
    const Entry* entry = table.given(side.key);
    if (entry && wanted) read_stack(*entry, side.path, to, side.stack);
    if (entry && !wanted)
      to.not_applicable(entry->place,
                        fmt::format("a model of kind \"{}\" has no {}", kind_name(to.manifest.kind), side.key),
                        "remove it, or choose another kind");
    if (to.kind_known && wanted && !table.mentioned(side.key))
      to.error(ak::missing_key, model.place,
               fmt::format("a model of kind \"{}\" needs \"{}\"", kind_name(to.manifest.kind), side.key),
               fmt::format("{} = {{ layers = 6, vocab = \"vocab.txt\" }}", side.key));
  }
}

// Checks that the keys belong to the type.
void check_head_keys(const TableReader& head, const Entry& entry, const Reading& to) {
  const HeadType type = to.manifest.head;
  struct Owned {
    const char* key;
    bool fits;
    const char* owner;
  };
  const bool classifier = type == HeadType::classifier, embedding = type == HeadType::embedding;
  for (const auto& [key, fits, owner] : {Owned{"classes", classifier, "a classifier"},
                                         {"hidden", classifier, "a classifier"},
                                         {"normalise", embedding, "an embedding"},
                                         {"pooler", embedding, "an embedding"},
                                         {"pool", classifier || embedding, "a classifier or an embedding"},
                                         {"of", classifier || embedding, "a classifier or an embedding"}})
    if (head.mentioned(key) && !fits)
      to.not_applicable(entry.value.find(key)->place, fmt::format("\"{}\" is for {} only", key, owner));
}

// A classifier or an embedding.
void read_pooling(const TableReader& head, const Entry& entry, Reading& to) {
  Manifest& m = to.manifest;
  const bool classifier = m.head == HeadType::classifier;
  if (to.kind_known && m.kind != ModelKind::encoder)
    to.not_applicable(head.place("type"),
                      fmt::format("{} needs kind \"encoder\", not \"{}\"", classifier ? "a classifier" : "an embedding",
                                  kind_name(m.kind)),
                      "use type = \"lm\"");
  if (classifier && !head.mentioned("classes"))
    to.error(ak::missing_key, entry.value.place, "a classifier needs \"classes\"",
             "how many classes there are, at least 2");
  check_head_keys(head, entry, to);
  m.classes = int_of(head, "classes");
  m.head_hidden = int_of(head, "hidden");
  m.normalise = head.boolean("normalise").value_or(false);
  m.pooler = head.boolean("pooler").value_or(false);
  take(head.choice("pool"), m.pool);
  m.pool_of = head.text("of").value_or("");
  m.pool_place = head.place("of");
}

void read_head(const TableReader& table, Reading& to) {
  if (const Entry* entry = table.given("head")) {
    const TableReader head(entry->value, "model.head", to.diagnostics);
    if (!take(head.choice("type"), to.manifest.head)) return;
    if (to.manifest.head != HeadType::lm) return read_pooling(head, *entry, to);
    check_head_keys(head, *entry, to);
  } else if (table.mentioned("head")) {
    return;
  }
  // An encoder alone scores the tokens of its source.
  if (to.manifest.speech && to.is(ModelKind::encoder))
    to.not_applicable(table.place("head"),
                      "an encoder alone that takes speech has no tokens to score: it must be a classifier",
                      "head = { type = \"classifier\", classes = 10 }, or kind = \"encoder-decoder\"");
}

// Checks that the keys of the embedding belong to what is embedded.
void check_embedding_keys(const TableReader& table, const Reading& to) {
  const Manifest& m = to.manifest;
  const bool sinusoidal = m.positions == Positions::sinusoidal;
  if (m.position_offset > 0 && !sinusoidal && m.positions != Positions::learned)
    to.not_applicable(table.place("position_offset"),
                      "\"position_offset\" is for positions = \"sinusoidal\" and \"learned\"");
  if (table.mentioned("sinusoids") && !sinusoidal)
    to.not_applicable(table.place("sinusoids"), "\"sinusoids\" is for positions = \"sinusoidal\"");
  if (m.sinusoids != Sinusoids::interleaved && m.d_model % 2 != 0)
    to.error(ak::wrong_value, table.place("sinusoids"),
             fmt::format("sinusoids = \"{}\" has as many sines as cosines, and d_model is {}",
                         sinusoids_name(m.sinusoids), m.d_model));
  if (m.token_types > 0 && (m.speech || to.is(ModelKind::decoder)))
    to.not_applicable(table.place("token_types"), "\"token_types\" is for encoders of text");
  if (m.embed_norm && m.speech)
    to.not_applicable(table.place("embed_norm"), "\"embed_norm\" is for text, and this encoder takes speech");
}

void read_heads(const TableReader& table, Reading& to) {
  Manifest& m = to.manifest;
  m.kv_heads = table.mentioned("kv_heads") ? int_of(table, "kv_heads") : m.heads;
  m.head_width = int_of(table, "head_width");
  if (m.heads < 1) return;
  if (m.kv_heads > 0 && m.heads % m.kv_heads != 0)
    to.error(ak::widths_do_not_divide, table.place("kv_heads"),
             fmt::format("\"kv_heads\" is {}, which does not divide heads, {}", m.kv_heads, m.heads),
             "every head of keys serves heads / kv_heads heads of queries");
  if (m.kv_heads > 0 && m.heads % m.kv_heads != 0) m.kv_heads = m.heads;  // said once
  if (table.mentioned("head_width")) return;
  m.head_width = m.d_model % m.heads == 0 ? m.d_model / m.heads : 0;
  if (m.d_model % m.heads != 0)
    to.error(ak::widths_do_not_divide, table.place("heads"),
             fmt::format("\"heads\" is {}, which does not divide d_model, {}", m.heads, m.d_model),
             "every head takes d_model / heads channels, or give \"head_width\"");
}

constexpr int max_turned = 4096;

// By how much each pair turns slower, as `key` says.
std::vector<double> read_pairs(const TableReader& table, const char* key, int pairs, Reading& to) {
  const Entry* entry = table.given(key);
  if (!entry) {
    if (!table.mentioned(key))
      to.error(ak::missing_key, table.place(key), fmt::format("scaling = \"longrope\" needs \"{}\"", key));
    return {};
  }
  const KeyRule& rule = table.rule(key);
  std::vector<double> all;
  for (const Node& item : entry->value.items) {
    const bool number = item.kind == Node::Kind::number || item.kind == Node::Kind::integer;
    if (!number || !(item.number >= rule.min && item.number <= rule.max)) {
      to.error(number ? ak::wrong_value : ak::wrong_type, item.place,
               fmt::format("\"{}\" is {}", key, type_text(rule)));
      return {};
    }
    all.push_back(item.number);
  }
  if (all.size() == static_cast<size_t>(pairs)) return all;
  to.error(ak::wrong_value, entry->value.place,
           fmt::format("\"{}\" has {} numbers for {} pairs of channels", key, all.size(), pairs));
  return {};
}

void read_longrope(const TableReader& table, Reading& to) {
  Manifest& m = to.manifest;
  RotaryTable& r = m.rotary;
  r.slower = read_pairs(table, "short_factors", r.width / 2, to);
  r.slower_long = read_pairs(table, "long_factors", r.width / 2, to);
  if (!table.mentioned("original_length"))
    to.error(ak::missing_key, table.place("original_length"), "scaling = \"longrope\" needs \"original_length\"");
  else if (r.original_length < 2)
    to.error(ak::wrong_value, table.place("original_length"),
             fmt::format("\"original_length\" is {}; longrope needs 2 or more", r.original_length));
  if (r.original_length < 2) return;
  if (!table.mentioned("factor")) r.factor = std::max(1.0, 1.0 * m.max_length / r.original_length);
  r.attention_factor =
      table.number("attention_factor").value_or(std::sqrt(1 + std::log(r.factor) / std::log(r.original_length)));
}

void read_rotary(const TableReader& model, Reading& to) {
  Manifest& m = to.manifest;
  RotaryTable& r = m.rotary;
  r.width = m.head_width;
  const Entry* entry = model.given("rotary");
  const bool rotary = m.positions == Positions::rotary;
  if (entry && !rotary) to.not_applicable(model.place("rotary"), "[model.rotary] is for positions = \"rotary\" only");
  if (entry) {
    const TableReader table(entry->value, "model.rotary", to.diagnostics);
    r.base = table.number("base").value_or(r.base);
    if (const auto width = table.integer("width")) r.width = static_cast<int>(*width);
    take(table.choice("layout"), r.layout);
    take(table.choice("scaling"), r.scaling);
    r.factor = table.number("factor").value_or(1);
    r.low_frequency_factor = table.number("low_frequency_factor").value_or(1);
    r.high_frequency_factor = table.number("high_frequency_factor").value_or(4);
    r.original_length = int_of(table, "original_length");
    const bool scaled = r.scaling != RotaryScaling::none, llama3 = r.scaling == RotaryScaling::llama3,
               longrope = r.scaling == RotaryScaling::longrope;
    for (const auto& [key, fits] : {std::pair("factor", scaled),
                                    {"low_frequency_factor", llama3},
                                    {"high_frequency_factor", llama3},
                                    {"original_length", llama3 || longrope},
                                    {"factors", !longrope},
                                    {"short_factors", longrope},
                                    {"long_factors", longrope},
                                    {"attention_factor", longrope}})
      if (table.mentioned(key) && !fits)
        to.not_applicable(table.place(key),
                          fmt::format("\"{}\" is not for scaling = \"{}\"", key, rotary_scaling_name(r.scaling)));
    if (longrope) read_longrope(table, to);
    if (!longrope && table.mentioned("factors")) r.slower = read_pairs(table, "factors", r.width / 2, to);
    if (scaled && !longrope && !table.mentioned("factor"))
      to.error(ak::missing_key, entry->value.place,
               fmt::format("scaling = \"{}\" needs \"factor\"", rotary_scaling_name(r.scaling)));
    if (llama3 && !(r.high_frequency_factor > r.low_frequency_factor))
      to.error(ak::wrong_value, table.place("high_frequency_factor"),
               fmt::format("\"high_frequency_factor\" is {}, not more than low_frequency_factor, {}",
                           r.high_frequency_factor, r.low_frequency_factor));
  }
  if (rotary && r.width > max_turned)
    to.error(ak::wrong_value, model.place("rotary"),
             fmt::format("rotary positions turn {} channels of a head, at most {} are possible", r.width, max_turned));
  if (rotary && m.head_width > 0 && (r.width % 2 != 0 || r.width > m.head_width))
    to.error(ak::wrong_value, model.place("rotary"),
             fmt::format("rotary positions turn {} channels of a head's {}: it must be an even number of them", r.width,
                         m.head_width),
             "give rotary = { width = ... }");
}

void read_bias(const TableReader& table, Reading& to) {
  std::set<std::string>& bias = to.manifest.bias;
  const Entry* entry = table.given("bias");
  const std::vector<std::string> words = table.words("bias");
  if (!entry || entry->value.kind != Node::Kind::array) {
    bias = bias_of(words.empty() ? "all" : words.front());
    return;
  }
  bias.insert(words.begin(), words.end());
  if (to.manifest.gated) return;
  if (bias.contains("gate")) to.not_applicable(entry->value.place, "\"bias\" has \"gate\", of gated = true alone");
  // Of a layer that is not there either is the same; the words for all have it.
  if (bias.contains("in")) bias.insert("gate");
}

void read_head_scale(const TableReader& table, Manifest& m) {
  const Entry* entry = table.given("head_scale");
  if (!entry) return;
  if (entry->value.kind != Node::Kind::boolean)
    m.head_scale = static_cast<float>(entry->value.number);
  else if (entry->value.boolean && m.d_model > 0)
    m.head_scale = 1 / std::sqrt(static_cast<float>(m.d_model));
}

// Which tables are one; each must be there, with as many rows.
void read_ties(const TableReader& table, Reading& to) {
  Manifest& m = to.manifest;
  const Entry* entry = table.given("tie_embeddings");
  if (!entry || (entry->value.kind == Node::Kind::boolean && !entry->value.boolean)) return;
  const Place place = entry->value.place;
  if (entry->value.kind == Node::Kind::boolean) {
    m.tied = {"target", "output"};
    if (to.is(ModelKind::encoder))
      to.not_applicable(place,
                        "\"tie_embeddings\" ties the output layer to the decoder's embedding; an encoder has none",
                        m.head == HeadType::lm ? "tie_embeddings = [\"source\", \"output\"]" : "");
    return;
  }
  const std::vector<std::string> words = table.words("tie_embeddings");
  if (words.size() < 2) return to.error(ak::wrong_value, place, "\"tie_embeddings\" ties two or three of its words");
  m.tied.insert(words.begin(), words.end());
  const auto rows = [](const Stack& stack) {
    return stack.tokenizer ? std::max(stack.tokenizer->size(), stack.vocab_size) : 0;
  };
  for (const auto& [word, is_there, what] :
       {std::tuple("source", !to.is(ModelKind::decoder) && !m.speech, "embeds no source"),
        {"target", !to.is(ModelKind::encoder), "has no decoder"},
        {"output", m.head == HeadType::lm, "scores no tokens"}})
    if (to.kind_known && m.tied.contains(word) && !is_there)
      return to.not_applicable(place, fmt::format("\"tie_embeddings\" has \"{}\", and this model {}", word, what));
  const int source = rows(m.encoder), target = rows(m.decoder);
  const bool both = to.is(ModelKind::encoder_decoder) && m.tied.contains("source");
  if (both && source > 0 && target > 0 && source != target)
    to.error(ak::wrong_value, place,
             fmt::format("\"tie_embeddings\" makes one table of {} tokens of the source and {} of the target", source,
                         target),
             "both sides need the same number of tokens; `vocab_size` adds rows");
}

void read_model(const Node& model, Reading& to) {
  const TableReader table(model, "model", to.diagnostics);
  Manifest& m = to.manifest;
  m.name = table.text("name").value_or("");
  to.kind_known = take(table.choice("kind"), m.kind);
  m.d_model = int_of(table, "d_model");
  m.heads = int_of(table, "heads");
  m.ffn = int_of(table, "ffn");
  m.max_length = int_of(table, "max_length");
  take(table.choice("norm"), m.norm);
  m.final_norm = table.boolean("final_norm").value_or(m.norm == Norm::pre);
  take(table.choice("norm_type"), m.norm_type);
  m.gated = table.boolean("gated").value_or(false);
  read_bias(table, to);
  m.qk_norm = table.boolean("qk_norm").value_or(false);
  take(table.choice("activation"), m.activation);
  take(table.choice("positions"), m.positions);
  take(table.choice("sinusoids"), m.sinusoids);
  m.attention_scale = table.number("attention_scale");
  m.embed_scale = table.boolean("embed_scale").value_or(false);
  m.head_bias = table.boolean("head_bias").value_or(false);
  read_head_scale(table, m);
  m.norm_eps = table.number("norm_eps").value_or(1e-5);
  m.embed_norm = table.boolean("embed_norm").value_or(false);
  m.position_offset = int_of(table, "position_offset");
  m.token_types = int_of(table, "token_types");
  m.head_norm = table.boolean("head_norm").value_or(false);
  m.adapters = table.boolean("adapters").value_or(false);
  read_heads(table, to);
  read_rotary(table, to);
  read_stacks(model, table, to);
  check_embedding_keys(table, to);
  read_head(table, to);
  read_ties(table, to);
  for (const auto& [key, given] : {std::pair("head_bias", m.head_bias), {"head_scale", m.head_scale != 1}})
    if (given && m.head != HeadType::lm)
      to.not_applicable(table.place(key), fmt::format("\"{}\" is for a head that scores tokens", key));
}

// Returns the path of a table's safetensors "file", which must be that of a file; empty: not given.
std::string weights_file(const TableReader& table, const Reading& to) {
  const auto file = table.text("file");
  if (!file) return "";
  const std::string path = join_path(to.dir, *file);
  struct stat status {};
  const bool found = ::stat(path.c_str(), &status) == 0;
  if (!found || !S_ISREG(status.st_mode))
    to.error(ak::bad_weights_file, table.place("file"),
             fmt::format("{}: {}", path, found ? "is no regular file" : "does not exist"),
             "the path is relative to the manifest's folder");
  return path;
}

// Returns lower-case digits; empty: not given, or reported.
std::string sha256_of(const TableReader& table, const Reading& to) {
  auto digest = table.text("sha256");
  if (!digest) return "";
  std::transform(digest->begin(), digest->end(), digest->begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (digest->size() == 64 && digest->find_first_not_of("0123456789abcdef") == std::string::npos) return *digest;
  to.error(ak::wrong_value, table.place("sha256"), "\"sha256\" must be 64 hexadecimal digits", "sha256sum prints them");
  return "";
}

void read_weights(const Node& weights, Reading& to) {
  const TableReader table(weights, "weights", to.diagnostics);
  Manifest& m = to.manifest;
  const bool file = table.mentioned("file");
  m.weights_place = table.place(file ? "file" : "seed");
  m.weights_file = weights_file(table, to);
  if (const auto seed = table.integer("seed")) m.weights_seed = static_cast<uint64_t>(*seed);
  if (!file && !table.mentioned("seed"))
    to.error(ak::missing_key, weights.place, "[weights] needs \"file\", \"seed\" or both",
             "file = \"weights.safetensors\", or seed = 1 for an untrained model");
  if (!file && table.mentioned("sha256"))
    to.not_applicable(table.place("sha256"), "\"sha256\" is of the file, and no \"file\" is given");
  m.weights_sha256 = sha256_of(table, to);
  take(table.choice("type"), m.weights_type);
  if (m.weights_type == WeightType::f16 && to.device_type == 1)
    to.not_applicable(table.place("type"), "type = \"f16\" is for models on a device, and this one is on the CPU",
                      "set \"bf16\" or \"f32\", or device = \"cuda\" at the top");
  take(table.boolean("tf32"), m.tf32);
  take(table.boolean("cache"), m.weights_cache);
  if (m.weights_cache && (!file || !m.weights_sha256.empty()))
    to.not_applicable(table.place("cache"), file ? "\"cache\" maps what \"sha256\" promises to read"
                                                 : "\"cache\" is of the file, and no \"file\" is given");
  if (!m.weights_sha256.empty() && m.weights_file.ends_with(".json"))
    to.not_applicable(table.place("sha256"), "\"sha256\" of an index says nothing of the files that it names");
  const auto names = table.text("names");
  if (!names) return;
  if (!file) to.not_applicable(table.place("names"), "\"names\" is of the file, and no \"file\" is given");
  try {
    m.weights_names = open_architecture(*names, to.dir)
                          .tensors.with({{"d_model", m.d_model},
                                         {"heads", m.heads},
                                         {"kv_heads", m.kv_heads},
                                         {"head_width", m.head_width},
                                         {"ffn", m.ffn}});
  } catch (const Error& e) {
    to.error(ak::bad_names, table.place("names"), e.what(), "docs/importing.md shows such a file");
  }
}

void read_lut(const TableReader& table, Reading& to) {
  Manifest& m = to.manifest;
  const auto file = table.text("lut");
  if (!file) return;
  m.length_file = join_path(to.dir, *file);
  m.length_place = table.place("lut");
  const Tokenizer* vocabulary = m.encoder.tokenizer.get();
  if (!vocabulary) return;  // [model] has reported it
  try {
    read_length_table(m.length_file, *vocabulary);
  } catch (const Error& e) {
    to.error(ak::bad_length_table, m.length_place, e.what(),
             "a table of lengths is a UTF-8 file; a line is a source token, a TAB and how many target tokens it makes "
             "on average");
  }
}

// Checks that the keys belong to the way of predicting.
void check_length_keys(const Node& length, const TableReader& table, const std::string& chosen, const Reading& to) {
  struct Owned {
    const char *key, *owner;
    bool required;
  };
  for (const auto& [key, owner, required] :
       {Owned{"alpha", "ratio", true}, Owned{"length", "fixed", true}, Owned{"lut", "lut", true},
        Owned{"dampening", "lut", false}, Owned{"file", "network", true}, Owned{"sha256", "network", false}}) {
    if (chosen == owner && required && !table.mentioned(key))
      to.error(ak::missing_key, length.place, fmt::format("predict = \"{}\" needs \"{}\"", owner, key));
    if (chosen != owner && table.mentioned(key))
      to.not_applicable(length.find(key)->place, fmt::format("\"{}\" is for predict = \"{}\" only", key, owner));
  }
}

void read_length(const Node& length, Reading& to) {
  const TableReader table(length, "length", to.diagnostics);
  Manifest& m = to.manifest;
  if (to.is(ModelKind::encoder)) to.not_applicable(length.place, "[length] is for models with a decoder");
  const auto chosen = table.choice("predict");
  if (!chosen) return;
  m.predict = static_cast<Predict>(*chosen + 1);
  const std::string name = *table.text("predict");
  const bool no_source = to.is(ModelKind::decoder);
  if (predicts_from_source(m.predict) && no_source)
    to.not_applicable(table.place("predict"),
                      m.predict == Predict::ratio
                          ? "predict = \"ratio\" multiplies the source's length; a decoder alone has no source"
                          : fmt::format("predict = \"{}\" looks at the source; a decoder alone has none", name),
                      "use \"fixed\" or \"reference\"");
  if (m.predict == Predict::lut && m.speech)
    to.not_applicable(table.place("predict"), "predict = \"lut\" sums over the source's tokens; speech has none",
                      "use \"ratio\", \"network\", \"fixed\" or \"reference\"");
  check_length_keys(length, table, name, to);
  m.alpha = table.number("alpha").value_or(0);
  m.fixed_length = table.number("length").value_or(0);
  m.dampening = table.number("dampening").value_or(1);
  if (m.predict == Predict::lut && !no_source) read_lut(table, to);
  if (m.predict == Predict::network && !no_source) {
    m.length_sha256 = sha256_of(table, to);
    m.length_file = weights_file(table, to);
    m.length_place = table.place("file");
  }
}

void read_decode_lengths(const TableReader& table, Reading& to) {
  Manifest& m = to.manifest;
  m.limit = int_of(table, "limit");
  m.min_decode_length = int_of(table, "min_length");
  m.max_decode_length = int_of(table, "max_length");
  m.force_end = table.boolean("force_end").value_or(false);
  if (m.force_end && !table.mentioned("max_length"))
    to.not_applicable(table.place("force_end"),
                      "\"force_end\" is about the last token of \"max_length\", which is not given");
  if (m.max_decode_length > 0 && m.min_decode_length > m.max_decode_length)
    to.error(ak::wrong_value, table.place("min_length"),
             fmt::format("\"min_length\" is {}, more than max_length, {}", m.min_decode_length, m.max_decode_length));
}

void read_sampling(const TableReader& table, Reading& to) {
  Sampling& s = to.manifest.sampling;
  s.repetition_penalty = table.number("repetition_penalty").value_or(1);
  s.no_repeat = int_of(table, "no_repeat");
  s.temperature = table.number("temperature").value_or(0);
  s.top_k = int_of(table, "top_k");
  s.top_p = table.number("top_p").value_or(1);
  for (const char* key : {"top_k", "top_p"})
    if (table.mentioned(key) && s.temperature == 0)
      to.not_applicable(table.place(key),
                        fmt::format("\"{}\" says how tokens are drawn: it needs \"temperature\"", key));
  if (s.temperature > 0 && to.manifest.beams > 1)
    to.not_applicable(table.place("temperature"), "\"temperature\" draws one text, and \"beams\" search for the best");
  if (s.looks_back() && to.manifest.beams > 1 && to.is(ModelKind::decoder))
    to.not_applicable(table.place(s.no_repeat > 0 ? "no_repeat" : "repetition_penalty"),
                      "a beam search looks back at what it wrote itself, and a decoder alone goes on from a text",
                      "remove it, or \"beams\"");
}

void read_decode(const Node& decode, Reading& to) {
  const TableReader table(decode, "decode", to.diagnostics);
  if (to.is(ModelKind::encoder)) to.not_applicable(decode.place, "[decode] is for models with a decoder");
  to.manifest.beams = static_cast<int>(table.integer("beams").value_or(1));
  to.manifest.length_penalty = table.number("length_penalty").value_or(1.0);
  take(table.choice("early_stop"), to.manifest.early_stop);
  read_decode_lengths(table, to);
  read_sampling(table, to);
  for (const char* key : {"forced", "suppress_first"})
    if (table.mentioned(key) && to.is(ModelKind::decoder))
      to.not_applicable(table.place(key), fmt::format("\"{}\" is for models with an encoder: a decoder alone goes on "
                                                      "from a text",
                                                      key));
  to.manifest.forced = read_tokens(table, "forced", to);
  to.manifest.suppressed = read_tokens(table, "suppress", to);
  to.manifest.suppressed_first = read_tokens(table, "suppress_first", to);
}

void read_stream(const Node& stream, Reading& to) {
  const TableReader table(stream, "stream", to.diagnostics);
  if (to.kind_known && !to.is(ModelKind::encoder_decoder))
    return to.not_applicable(stream.place,
                             fmt::format("[stream] is for models with an encoder and a decoder, not for kind \"{}\"",
                                         kind_name(to.manifest.kind)));
  if (to.manifest.speech && to.manifest.speech->type == Features::log_mel)
    return to.not_applicable(stream.place,
                             "[stream] needs frames that come with the speech, and those of \"log_mel\" need "
                             "the whole recording");
  if (!to.manifest.encoder.ends)
    return to.not_applicable(stream.place,
                             "[stream] needs sources that end with a token, which is read last, and [model.encoder] "
                             "has end = false");
  StreamTable& s = to.manifest.stream.emplace();
  take(table.choice("policy"), s.policy);
  s.k = int_of(table, "k");
  s.pre_decision = int_of(table, "pre_decision");
  // A mistake in it is reported once, and not again as the refusals of mechanisms.
  s.replay = table.boolean("replay").value_or(true);
  if (s.policy != StreamPolicy::offline) return;
  for (const char* key : {"k", "pre_decision"})
    if (table.mentioned(key))
      to.not_applicable(stream.find(key)->place, fmt::format("\"{}\" is for policy = \"wait-k\" only", key));
}

}  // namespace

Manifest read_manifest(const std::string& toml, const std::string& dir, const Registry& registry, int32_t device_type,
                       Diagnostics& diagnostics) {
  Manifest manifest;
  Diagnostics syntax;
  const Node tree = parse_toml(toml, syntax);
  for (const Diagnostic& d : syntax.sorted()) diagnostics.add(d.code, d.place, d.message, d.help, d.area);
  if (syntax.failed() || !check_schema(tree, diagnostics)) return manifest;
  const TableReader root(tree, "", diagnostics);
  const bool cuda = root.choice("device").value_or(0) == 1;
  manifest.device_type = device_type != 0 ? device_type : cuda ? 2 : 1;
  Reading reading{dir, registry, manifest.device_type, diagnostics, manifest};
  reading.length_meant = root.meant("length");
  using Section = void (*)(const Node&, Reading&);
  const std::pair<const char*, Section> sections[] = {
      {"model", read_model},   {"weights", read_weights},     {"length", read_length}, {"decode", read_decode},
      {"stream", read_stream}, {"attention", read_attention}, {"search", read_search}};
  for (const auto& [key, read] : sections)
    if (const Entry* entry = root.given(key)) read(entry->value, reading);
  return manifest;
}

}  // namespace attnkit::core
