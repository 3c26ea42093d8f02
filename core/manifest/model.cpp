#include <sys/stat.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"
#include "core/model/vocabulary.hpp"

namespace attnkit {
namespace {

template <class Enum>
void take(const std::optional<int>& chosen, Enum& field) {
  if (chosen) field = static_cast<Enum>(*chosen);
}

int size_of(const TableReader& reader, const char* key) { return static_cast<int>(reader.integer(key).value_or(0)); }

void check_stack(const Entry& entry, const char* path, ManifestCheck& check, Stack& stack) {
  const TableReader reader(entry.value, path, check.diagnostics);
  stack.place = entry.place;
  stack.layers = size_of(reader, "layers");
  stack.lowercase = reader.boolean("lowercase").value_or(false);
  if (reader.given("causal")) stack.causal = *reader.boolean("causal");
  const bool encoder = &stack == &check.manifest.encoder;
  if (encoder && (reader.meant("features") || reader.meant("frontend"))) return check_speech(entry.value, check);
  if (encoder && !reader.meant("vocab"))
    check.diagnostics.error(ak::missing_key, entry.value.place, "[model.encoder] needs \"vocab\", text",
                            "or, where the source is speech, \"features\" and \"frontend\"");
  const auto vocab = reader.text("vocab");
  if (!vocab) return;
  stack.vocab = join_path(check.dir, *vocab);
  try {
    Vocabulary::open(stack.vocab, stack.lowercase);
  } catch (const Error& e) {
    check.diagnostics.error(ak::bad_vocabulary, reader.place("vocab"), e.what(),
                            "a vocabulary is a UTF-8 file with one token per line, <s> and </s> among them",
                            ATTNKIT_AREA_DATA);
  }
}

// A stack is there if and only if the kind has it.
void check_stacks(const Node& model, const TableReader& reader, ManifestCheck& check) {
  struct Side {
    const char *key, *path;
    uint32_t role;
    Stack& stack;
  };
  for (const Side& side : {Side{"encoder", "model.encoder", ATTN_ENCODER_SELF, check.manifest.encoder},
                           Side{"decoder", "model.decoder", ATTN_DECODER_SELF, check.manifest.decoder}}) {
    const bool wanted = !check.kind_known || has_role(check.manifest.kind, side.role);
    const Entry* entry = reader.given(side.key);
    if (entry && wanted) check_stack(*entry, side.path, check, side.stack);
    if (entry && !wanted)
      check.diagnostics.error(ak::not_applicable, entry->place,
                              fmt::format("a model of kind \"{}\" has no {}", kind_text(check.manifest.kind), side.key),
                              "remove it, or choose another kind");
    if (check.kind_known && wanted && !reader.mentioned(side.key))
      check.diagnostics.error(
          ak::missing_key, model.place,
          fmt::format("a model of kind \"{}\" needs \"{}\"", kind_text(check.manifest.kind), side.key),
          fmt::format("{} = {{ layers = 6, vocab = \"vocab.txt\" }}", side.key));
  }
}

void check_classifier(const TableReader& head, const Entry& entry, ManifestCheck& check) {
  if (check.kind_known && check.manifest.kind != ModelKind::encoder)
    check.diagnostics.error(
        ak::not_applicable, head.place("type"),
        fmt::format("a classifier needs kind \"encoder\", not \"{}\"", kind_text(check.manifest.kind)),
        "use type = \"lm\"");
  if (!head.mentioned("classes"))
    check.diagnostics.error(ak::missing_key, entry.value.place, "a classifier needs \"classes\"",
                            "how many classes there are, at least 2");
  check.manifest.classes = size_of(head, "classes");
  check.manifest.head_hidden = size_of(head, "hidden");
  take(head.choice("pool"), check.manifest.pool);
  check.manifest.pool_of = head.text("of").value_or("");
  check.manifest.pool_place = head.place("of");
}

// An encoder alone scores the tokens of its source.
void check_lm(const TableReader& reader, ManifestCheck& check) {
  if (check.manifest.speech && check.kind_known && check.manifest.kind == ModelKind::encoder)
    check.diagnostics.error(ak::not_applicable, reader.place("head"),
                            "an encoder alone that takes speech has no tokens to score: it must be a classifier",
                            "head = { type = \"classifier\", classes = 10 }, or kind = \"encoder-decoder\"");
}

void check_head(const TableReader& reader, ManifestCheck& check) {
  const Entry* entry = reader.given("head");
  if (!reader.mentioned("head")) check_lm(reader, check);
  if (!entry) return;
  const TableReader head(entry->value, "model.head", check.diagnostics);
  const auto type = head.choice("type");
  if (!type) return;
  check.manifest.head = static_cast<HeadType>(*type);
  if (check.manifest.head == HeadType::classifier) return check_classifier(head, *entry, check);
  check_lm(reader, check);
  for (const char* key : {"classes", "pool", "of", "hidden"})
    if (head.mentioned(key))
      check.diagnostics.error(ak::not_applicable, entry->value.find(key)->place,
                              fmt::format("\"{}\" is for a classifier only", key), "remove it");
}

}  // namespace

const char* kind_text(ModelKind kind) {
  return kind == ModelKind::encoder ? "encoder" : kind == ModelKind::decoder ? "decoder" : "encoder-decoder";
}

void check_model(const Node& model, ManifestCheck& check) {
  const TableReader reader(model, "model", check.diagnostics);
  Manifest& m = check.manifest;
  m.name = reader.text("name").value_or("");
  const auto kind = reader.choice("kind");
  take(kind, m.kind);
  check.kind_known = kind.has_value();
  m.d_model = size_of(reader, "d_model");
  m.heads = size_of(reader, "heads");
  m.ffn = size_of(reader, "ffn");
  m.max_length = size_of(reader, "max_length");
  take(reader.choice("norm"), m.norm);
  take(reader.choice("activation"), m.activation);
  take(reader.choice("positions"), m.positions);
  m.embed_scale = reader.boolean("embed_scale").value_or(false);
  m.tie_embeddings = reader.boolean("tie_embeddings").value_or(false);
  m.head_norm = reader.boolean("head_norm").value_or(false);
  m.adapters = reader.boolean("adapters").value_or(false);
  if (m.heads > 0 && m.d_model % m.heads != 0)
    check.diagnostics.error(ak::widths_do_not_divide, reader.place("heads"),
                            fmt::format("\"heads\" is {}, which does not divide d_model, {}", m.heads, m.d_model),
                            "every head takes d_model / heads channels");
  if (m.tie_embeddings && check.kind_known && m.kind == ModelKind::encoder)
    check.diagnostics.error(ak::not_applicable, reader.place("tie_embeddings"),
                            "\"tie_embeddings\" ties the output layer to the decoder's embedding; an encoder has none",
                            "remove it");
  check_stacks(model, reader, check);
  check_head(reader, check);
}

std::string check_weights_file(const TableReader& reader, ManifestCheck& check) {
  const auto file = reader.text("file");
  if (!file) return "";
  const std::string path = join_path(check.dir, *file);
  struct stat status {};
  const bool found = ::stat(path.c_str(), &status) == 0;
  if (!found || !S_ISREG(status.st_mode))
    check.diagnostics.error(ak::bad_weights_file, reader.place("file"),
                            fmt::format("{}: {}", path, found ? "is no regular file" : "does not exist"),
                            "the path is relative to the manifest's folder", ATTNKIT_AREA_WEIGHTS);
  return path;
}

std::string check_sha256(const TableReader& reader, ManifestCheck& check) {
  auto digest = reader.text("sha256");
  if (!digest) return "";
  std::transform(digest->begin(), digest->end(), digest->begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c); });
  if (digest->size() == 64 && digest->find_first_not_of("0123456789abcdef") == std::string::npos) return *digest;
  check.diagnostics.error(ak::wrong_value, reader.place("sha256"), "\"sha256\" must be 64 hexadecimal digits",
                          "sha256sum prints them");
  return "";
}

void check_weights(const Node& weights, ManifestCheck& check) {
  const TableReader reader(weights, "weights", check.diagnostics);
  Manifest& m = check.manifest;
  m.weights_place = reader.place("file");
  m.weights_file = check_weights_file(reader, check);
  if (const auto seed = reader.integer("seed")) m.weights_seed = static_cast<uint64_t>(*seed);
  if (!reader.mentioned("file") && !reader.mentioned("seed"))
    check.diagnostics.error(ak::missing_key, weights.place, "[weights] needs \"file\", \"seed\" or both",
                            "file = \"weights.safetensors\", or seed = 1 for an untrained model");
  if (!reader.mentioned("file")) {
    m.weights_place = reader.place("seed");
    if (reader.mentioned("sha256"))
      check.diagnostics.error(ak::not_applicable, reader.place("sha256"),
                              "\"sha256\" is of the file, and no \"file\" is given", "remove it");
  }
  m.weights_sha256 = check_sha256(reader, check);
}

void check_decode(const Node& decode, ManifestCheck& check) {
  const TableReader reader(decode, "decode", check.diagnostics);
  if (check.kind_known && check.manifest.kind == ModelKind::encoder)
    check.diagnostics.error(ak::not_applicable, decode.place, "[decode] is for models with a decoder", "remove it");
  check.manifest.beams = static_cast<int>(reader.integer("beams").value_or(1));
  check.manifest.length_penalty = reader.number("length_penalty").value_or(1.0);
}

}  // namespace attnkit
