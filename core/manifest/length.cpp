// [length]: who tells mechanisms the target's length, and the files that takes.
#include <array>

#include "core/base/error.hpp"
#include "core/base/file.hpp"
#include "core/length/length.hpp"
#include "core/model/vocabulary.hpp"
#include "core/manifest/codes.hpp"
#include "core/manifest/parts.hpp"
#include "core/manifest/reader.hpp"

namespace attnkit {
namespace {

struct Owned {  // a key that goes with one way of predicting
  const char *key, *owner;
  bool required;
};
constexpr std::array owned{Owned{"alpha", "ratio", true},  Owned{"length", "fixed", true},
                           Owned{"lut", "lut", true},      Owned{"dampening", "lut", false},
                           Owned{"file", "network", true}, Owned{"sha256", "network", false}};

void check_keys(const Node& length, const TableReader& reader, const std::string& chosen, ManifestCheck& check) {
  for (const auto& [key, owner, required] : owned) {
    if (chosen == owner && required && !reader.mentioned(key))
      check.diagnostics.error(ak::missing_key, length.place, fmt::format("predict = \"{}\" needs \"{}\"", owner, key));
    if (chosen != owner && reader.mentioned(key))
      check.diagnostics.error(ak::not_applicable, length.find(key)->place,
                              fmt::format("\"{}\" is for predict = \"{}\" only", key, owner), "remove it");
  }
}

void check_table(const TableReader& reader, ManifestCheck& check) {
  Manifest& m = check.manifest;
  const auto file = reader.text("lut");
  if (!file) return;
  m.length_file = join_path(check.dir, *file);
  m.length_place = reader.place("lut");
  std::optional<Vocabulary> vocabulary;
  try {
    if (!m.encoder.vocab.empty()) vocabulary = Vocabulary::open(m.encoder.vocab, m.encoder.lowercase);
  } catch (const Error&) {
    // [model] has reported it.
  }
  if (!vocabulary) return;
  try {
    read_length_table(m.length_file, *vocabulary);
  } catch (const Error& e) {
    check.diagnostics.error(ak::bad_length_table, m.length_place, e.what(),
                            "a table of lengths is a UTF-8 file; a line is a source token, a TAB and how many target "
                            "tokens it makes on average",
                            ATTNKIT_AREA_DATA);
  }
}

void check_network(const TableReader& reader, ManifestCheck& check) {
  Manifest& m = check.manifest;
  m.length_sha256 = check_sha256(reader, check);
  if (!reader.text("file")) return;
  m.length_place = reader.place("file");
  m.length_file = check_weights_file(reader, check);
}

}  // namespace

void check_length(const Node& length, ManifestCheck& check) {
  const TableReader reader(length, "length", check.diagnostics);
  Manifest& m = check.manifest;
  if (check.kind_known && m.kind == ModelKind::encoder)
    check.diagnostics.error(ak::not_applicable, length.place, "[length] is for models with a decoder", "remove it");
  const auto chosen = reader.choice("predict");
  if (!chosen) return;
  m.predict = static_cast<Predict>(*chosen + 1);
  const std::string name = *reader.text("predict");
  const bool alone = check.kind_known && m.kind == ModelKind::decoder;
  if (predicts_from_source(m.predict) && alone)
    check.diagnostics.error(ak::not_applicable, reader.place("predict"),
                            m.predict == Predict::ratio
                                ? "predict = \"ratio\" multiplies the source's length; a decoder alone has no source"
                                : fmt::format("predict = \"{}\" looks at the source; a decoder alone has none", name),
                            "use \"fixed\" or \"reference\"");
  if (m.predict == Predict::lut && m.speech)
    check.diagnostics.error(ak::not_applicable, reader.place("predict"),
                            "predict = \"lut\" sums over the source's tokens; speech has none",
                            "use \"ratio\", \"network\", \"fixed\" or \"reference\"");
  check_keys(length, reader, name, check);
  m.alpha = reader.number("alpha").value_or(0);
  m.fixed_length = reader.number("length").value_or(0);
  m.dampening = reader.number("dampening").value_or(1);
  if (m.predict == Predict::lut && !alone) check_table(reader, check);
  if (m.predict == Predict::network && !alone) check_network(reader, check);
}

}  // namespace attnkit
