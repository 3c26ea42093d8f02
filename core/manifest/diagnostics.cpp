#include "core/manifest/diagnostics.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace attnkit::core {
namespace {

constexpr uint32_t error = ATTNKIT_ERROR, warning = ATTNKIT_WARNING, manifest = ATTNKIT_AREA_MANIFEST,
                   plugin = ATTNKIT_AREA_PLUGIN, weights = ATTNKIT_AREA_WEIGHTS, data = ATTNKIT_AREA_DATA;

constexpr CodeRule codes[] = {
    {ak::no_toml, error, manifest, "the text is no TOML; parsing stops at the first such place"},
    {ak::unknown_key, error, manifest, "a key that the table does not have"},
    {ak::missing_key, error, manifest, "a key that the table must have"},
    {ak::wrong_type, error, manifest, "a value of another type"},
    {ak::wrong_value, error, manifest, "a value out of bounds, or none of the choices"},
    {ak::too_large, error, manifest, "more than 64 KiB"},
    {ak::too_deep, error, manifest, "more than 16 levels of tables and arrays"},
    {ak::no_utf8, error, manifest, "bytes that are no UTF-8"},
    {ak::wrong_schema, error, manifest, "a schema other than `attnkit.model/1`"},
    {ak::not_applicable, error, manifest, "a key that means nothing beside what the others say"},
    {ak::widths_do_not_divide, error, manifest, "`heads` does not divide `d_model`, or `kv_heads` not `heads`"},
    {ak::bad_weights_file, error, weights, "the weights file is missing, or no file"},
    {ak::bad_vocabulary, error, data, "a vocabulary cannot be read or is malformed"},
    {ak::bad_length_table, error, data, "a table of lengths cannot be read or is malformed"},
    {ak::bad_names, error, weights,
     "a file of tensors' names cannot be read or is malformed, or no such one ships with attnkit"},
    {ak::unknown_mechanism, error, plugin, "no plugin of that name in the search path"},
    {ak::unusable_mechanism, error, plugin, "the plugin was found, but skipped or made for another device"},
    {ak::refused, error, manifest, "the mechanism refuses the block or its options, in its own words"},
    {ak::unknown_option, error, manifest, "an option that the mechanism does not have"},
    {ak::wrong_option_type, error, manifest, "an option of another type"},
    {ak::wrong_option_value, error, manifest, "an option out of bounds, or none of the choices"},
    {ak::option_given_twice, error, manifest, "an option given by both `use` and `params` of an override"},
    {ak::unused_mechanism, warning, plugin,
     "a mechanism that is not there and that no block uses: in `params`, or overridden everywhere"},
    {ak::not_searched, warning, manifest, "`[search]` names a mechanism that is not there"},
    {ak::no_such_block, error, manifest, "a block that a model of this kind does not have"},
    {ak::wrong_layers, error, manifest, "layers that are malformed, or that the stack does not have"},
    {ak::never_matches, error, manifest, "an override that later ones hide in every layer"},
    {ak::no_mechanism, error, manifest, "nothing decides which mechanism a block has"},
    {ak::unused_entry, warning, manifest, "an entry that overrides hide in every layer"},
    {ak::listed_twice, error, manifest, "an entry that its list has already"},
    {ak::lost_positions, warning, manifest, "a mechanism that cannot take the positions which the model has for it"},
    {ak::faulty_plugin, error, plugin, "a plugin threw, failed inside, or broke its contract"},
    {ak::weights_do_not_fit, error, weights,
     "the weights cannot be read, or a tensor is missing or has another shape or type"},
    {ak::left_over_tensor, error, weights, "a tensor that belongs to nothing in this model"},
    {ak::no_adapters, warning, weights, "the weights hold no adapters for a chosen mechanism"},
    {ak::packed_cache, warning, weights,
     "a cache of packed weights is not used, or cannot be written; nothing else changes"},
    {ak::slow_type, warning, weights,
     "a type of weights that this processor has no fast instructions for; what it costs"},
};

}  // namespace

std::span<const CodeRule> manifest_codes() { return codes; }

void Diagnostics::add(int code, Place place, std::string message, std::string help, std::optional<uint32_t> area) {
  const CodeRule& rule = *std::ranges::find(codes, code, &CodeRule::code);
  all_.push_back({rule.severity, area.value_or(rule.area), code, place, std::move(message), std::move(help)});
  errors_ += rule.severity == error;
}

std::vector<Diagnostic> Diagnostics::sorted() const {
  auto result = all_;
  std::stable_sort(result.begin(), result.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.place.line, a.place.column) < std::tie(b.place.line, b.place.column);
  });
  return result;
}

}  // namespace attnkit::core
