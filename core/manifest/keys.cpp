#include "core/manifest/keys.hpp"

#include <fmt/format.h>

#include <array>

#include "core/manifest/codes.hpp"

namespace attnkit {
namespace {

using T = KeyType;

constexpr std::array keys{
    KeyRule{"", "schema", T::text, true, "", 0, 0, "", "the format of the file: `attnkit.model/1`"},
    KeyRule{"", "model", T::table, true, "", 0, 0, "", "the transformer around the attention blocks"},
    KeyRule{"", "weights", T::table, true, "", 0, 0, "", "where the weights are"},
    KeyRule{"", "attention", T::table, true, "", 0, 0, "", "which mechanism sits in which block"},
    KeyRule{"", "length", T::table, false, "", 0, 0, "",
            "who tells mechanisms that need it the target's length while decoding; without it they do not know it"},
    KeyRule{"", "decode", T::table, false, "", 0, 0, "", "how text is generated"},
    KeyRule{
        "", "stream", T::table, false, "", 0, 0, "",
        "simultaneous decoding: sessions may be read and written by turns; for models with an encoder and a decoder"},
    KeyRule{"", "search", T::table, false, "", 0, 0, "",
            "what `attnkit search` tries and how it judges; changes nothing else"},

    KeyRule{"model", "name", T::text, true, "", 0, 0, "", "what reports call the model"},
    KeyRule{"model", "kind", T::choice, true, "", 0, 0, "encoder|decoder|encoder-decoder", "which stacks it has"},
    KeyRule{"model", "d_model", T::integer, true, "", 1, 65536, "", "width of the model; a multiple of `heads`"},
    KeyRule{"model", "heads", T::integer, true, "", 1, 1024, "", "attention heads of every block"},
    KeyRule{"model", "ffn", T::integer, true, "", 1, 1048576, "", "inner width of the feed-forward layers"},
    KeyRule{"model", "norm", T::choice, false, "pre", 0, 0, "pre|post", "layer norm before or after each sublayer"},
    KeyRule{"model", "activation", T::choice, false, "relu", 0, 0, "relu|gelu", "of the feed-forward layers"},
    KeyRule{"model", "positions", T::choice, false, "sinusoidal", 0, 0, "sinusoidal|learned|none",
            "what is added to the embeddings"},
    KeyRule{"model", "embed_scale", T::boolean, false, "false", 0, 0, "", "embeddings times sqrt(d_model)"},
    KeyRule{"model", "tie_embeddings", T::boolean, false, "false", 0, 0, "",
            "the output layer is the decoder's embedding; needs a decoder"},
    KeyRule{"model", "head_norm", T::boolean, false, "false", 0, 0, "",
            "each head's output divided by its root mean square"},
    KeyRule{"model", "adapters", T::boolean, false, "false", 0, 0, "",
            "per mechanism and block a learned scale and shift of q and k and a gain of the output"},
    KeyRule{"model", "max_length", T::integer, false, "512", 1, 1048576, "",
            "longest source and target, in tokens; of speech rows of the encoder"},
    KeyRule{"model", "encoder", T::table, false, "", 0, 0, "", "the encoder's stack"},
    KeyRule{"model", "decoder", T::table, false, "", 0, 0, "", "the decoder's stack"},
    KeyRule{"model", "head", T::table, false, "", 0, 0, "", "what the model gives out"},

    KeyRule{"model.encoder", "layers", T::integer, true, "", 1, 1024, "", "number of layers"},
    KeyRule{"model.encoder", "vocab", T::text, false, "", 0, 0, "",
            "vocabulary file, relative to the manifest; required where the source is text"},
    KeyRule{"model.encoder", "lowercase", T::boolean, false, "false", 0, 0, "",
            "lower-case A to Z of the text before it is split"},
    KeyRule{"model.encoder", "causal", T::boolean, false, "false", 0, 0, "",
            "a unidirectional encoder: positions see only themselves and what stands before them"},
    KeyRule{"model.encoder", "features", T::table, false, "", 0, 0, "",
            "what frames of speech hold; with `frontend`, in place of `vocab`"},
    KeyRule{"model.encoder", "frontend", T::table, false, "", 0, 0, "",
            "what makes rows of the encoder of frames; with `features`"},

    KeyRule{"model.encoder.features", "type", T::choice, true, "", 0, 0, "fbank",
            "`fbank`: logarithms of mel energies"},
    KeyRule{"model.encoder.features", "sample_rate", T::integer, false, "16000", 1000, 384000, "", "samples a second"},
    KeyRule{"model.encoder.features", "bins", T::integer, false, "80", 1, 512, "", "numbers of a frame"},
    KeyRule{"model.encoder.features", "window_ms", T::number, false, "25", 0.1, 1000, "",
            "how much a frame sees, in milliseconds"},
    KeyRule{"model.encoder.features", "shift_ms", T::number, false, "10", 0.1, 1000, "",
            "from one frame to the next, in milliseconds; at most `window_ms`"},

    KeyRule{"model.encoder.frontend", "type", T::choice, true, "", 0, 0, "conv",
            "`conv`: convolutions that never change a row they made, then a linear layer"},
    KeyRule{"model.encoder.frontend", "layers", T::integer, false, "2", 1, 4, "", "number of convolutions"},
    KeyRule{"model.encoder.frontend", "kernel", T::integer, false, "3", 1, 64, "", "rows that each sees"},
    KeyRule{"model.encoder.frontend", "stride", T::integer, false, "2", 1, 64, "",
            "rows from one of its outputs to the next; at most `kernel`"},
    KeyRule{"model.encoder.frontend", "channels", T::integer, false, "", 1, 65536, "",
            "numbers of its outputs; absent: `d_model`"},

    KeyRule{"model.decoder", "layers", T::integer, true, "", 1, 1024, "", "number of layers"},
    KeyRule{"model.decoder", "vocab", T::text, true, "", 0, 0, "", "vocabulary file, relative to the manifest"},
    KeyRule{"model.decoder", "lowercase", T::boolean, false, "false", 0, 0, "",
            "lower-case A to Z of the text before it is split"},

    KeyRule{"model.head", "type", T::choice, true, "", 0, 0, "lm|classifier",
            "`lm`, also without this table: a score for every token of the vocabulary at every position; `classifier`: "
            "for each class, one score for the whole input, for kind `encoder`"},
    KeyRule{"model.head", "classes", T::integer, false, "", 2, 1048576, "",
            "classifier: how many classes; required there"},
    KeyRule{"model.head", "pool", T::choice, false, "mean", 0, 0, "mean|first",
            "classifier: what it sees of the encoder's output: the mean of the positions, or the first"},
    KeyRule{"model.head", "of", T::text, false, "", 0, 0, "",
            "classifier: pools this sequence in place of the encoder's output, one that its mechanisms carry from "
            "block to block, by its name; rows of zeros at its end, which were left out, do not count"},
    KeyRule{"model.head", "hidden", T::integer, false, "", 1, 1048576, "",
            "classifier: width of a layer with ReLU between pool and classes; absent: none"},

    KeyRule{"weights", "file", T::text, false, "", 0, 0, "",
            "safetensors file, relative to the manifest; this, `seed` or both"},
    KeyRule{"weights", "sha256", T::text, false, "", 0, 0, "",
            "64 hexadecimal digits; with it, no damaged file is accepted"},
    KeyRule{"weights", "seed", T::integer, false, "", 0, 4294967295, "",
            "without `file`, an untrained model: all tensors are initialised by this seed; with it, those of the "
            "mechanisms' own that the file lacks"},

    KeyRule{"attention", "default", T::use, false, "", 0, 0, "", "for blocks that nothing else decides"},
    KeyRule{"attention", "encoder.self", T::use, false, "", 0, 0, "", "for the encoder's self attention"},
    KeyRule{"attention", "decoder.self", T::use, false, "", 0, 0, "", "for the decoder's self attention"},
    KeyRule{"attention", "decoder.cross", T::use, false, "", 0, 0, "", "for the decoder's attention to the encoder"},
    KeyRule{"attention", "params", T::table, false, "", 0, 0, "",
            "per mechanism a table of options, for all blocks that use it"},
    KeyRule{"attention", "override", T::tables, false, "", 0, 0, "", "exceptions by layer; the last that matches wins"},

    KeyRule{"attention.override", "block", T::choice, true, "", 0, 0, "encoder.self|decoder.self|decoder.cross",
            "the role"},
    KeyRule{"attention.override", "layers", T::layers, false, "", 0, 0, "",
            "which layers, counted from 1: `2`, `\"2\"`, `\"2..3\"` or `[1, 3]`; absent: all"},
    KeyRule{"attention.override", "use", T::use, true, "", 0, 0, "", "the mechanism"},
    KeyRule{"attention.override", "params", T::table, false, "", 0, 0, "", "its options"},

    KeyRule{"length", "predict", T::choice, true, "", 0, 0, "ratio|fixed|reference|lut|network",
            "`ratio`: `alpha` times the source's length, of speech in rows of the encoder; `fixed`: `length`; "
            "`reference`: the host gives the true length; `lut`: sums what each source token makes on average; "
            "`network`: a small network looks at the encoder's rows"},
    KeyRule{"length", "alpha", T::number, false, "", 1e-6, 1e6, "", "required for `ratio`, and only there"},
    KeyRule{"length", "length", T::number, false, "", 1, 1e9, "", "required for `fixed`, and only there"},
    KeyRule{"length", "lut", T::text, false, "", 0, 0, "",
            "required for `lut`, and only there: the table, relative to the manifest"},
    KeyRule{"length", "dampening", T::number, false, "1.1", 1e-6, 1e6, "",
            "only for `lut`: the sum is divided by it; a larger one makes shorter targets"},
    KeyRule{"length", "file", T::text, false, "", 0, 0, "",
            "required for `network`, and only there: its safetensors file, relative to the manifest"},
    KeyRule{"length", "sha256", T::text, false, "", 0, 0, "", "only for `network`: 64 hexadecimal digits"},

    KeyRule{"decode", "beams", T::integer, false, "1", 1, 64, "", "rows of the beam search; 1 is greedy"},
    KeyRule{"decode", "length_penalty", T::number, false, "1.0", 0, 10, "",
            "a hypothesis' score is divided by its length to this power"},

    KeyRule{"stream", "policy", T::choice, false, "wait-k", 0, 0, "wait-k|offline",
            "who decides between reading and writing where nobody else does: `wait-k` stays `k` decisions behind the "
            "source, `offline` reads all of it first"},
    KeyRule{"stream", "k", T::integer, false, "3", 1, 1048576, "",
            "`wait-k`: how many times `pre_decision` units are read before the first token is written"},
    KeyRule{
        "stream", "pre_decision", T::integer, false, "1", 1, 1048576, "",
        "`wait-k`: units of the source (what arrives at once: words, tokens, speech) from one decision to the next"},
    KeyRule{"stream", "replay", T::boolean, false, "false", 0, 0, "",
            "mechanisms of decoder.cross whose states a longer source would change are emptied and filled anew at each "
            "read, from all of the source that is there; without it they are refused"},

    KeyRule{"search", "space", T::table, true, "", 0, 0, "", "what may sit where"},
    KeyRule{"search", "strategy", T::choice, false, "grid", 0, 0, "ablation|grid|pareto",
            "`ablation`: the baseline with one block changed at a time; `grid`: every placement; `pareto`: `trials` of "
            "them, for spaces too large for that"},
    KeyRule{"search", "per_layer", T::boolean, false, "false", 0, 0, "",
            "each layer may have a mechanism of its own, not only each role"},
    KeyRule{"search", "metric", T::choice, false, "", 0, 0, "exact|bleu|accuracy|perplexity",
            "what quality is; absent: what suits the kind of model"},
    KeyRule{"search", "data", T::text, false, "", 0, 0, "", "examples to judge by, relative to the manifest"},
    KeyRule{"search", "test", T::text, false, "", 0, 0, "", "examples for the best ones, relative to the manifest"},
    KeyRule{"search", "rank", T::choice, false, "rcp_mem", 0, 0, "rcp|rcp_mem|quality|throughput",
            "what the best placement is best at"},
    KeyRule{"search", "length", T::integer, false, "512", 1, 1048576, "", "length in tokens that the ranking is for"},
    KeyRule{"search", "lengths", T::integers, false, "[64, 512, 4096]", 1, 1048576, "",
            "lengths in tokens at which costs are measured"},
    KeyRule{"search", "baseline", T::use, false, "", 0, 0, "",
            "what all are compared with, in every role; absent: the first entry of each role's space"},
    KeyRule{"search", "trials", T::integer, false, "64", 1, 1000000, "", "`pareto`: how many placements it tries"},
    KeyRule{"search", "seed", T::integer, false, "1", 0, 4294967295, "", "of all random choices"},
    KeyRule{"search", "limits", T::table, false, "", 0, 0, "", "what no placement may exceed"},
    KeyRule{"search", "exponents", T::table, false, "", 0, 0, "", "of the factors of `rcp` and `rcp_mem`"},
    KeyRule{"search", "quality_weight", T::number, false, "1", 0, 100, "",
            "how much a loss of quality counts in `rcp` and `rcp_mem`"},

    KeyRule{"search.space", "encoder.self", T::uses, false, "", 0, 0, "", "for the encoder's self attention"},
    KeyRule{"search.space", "decoder.self", T::uses, false, "", 0, 0, "", "for the decoder's self attention"},
    KeyRule{"search.space", "decoder.cross", T::uses, false, "", 0, 0, "",
            "for the decoder's attention to the encoder"},

    KeyRule{"search.limits", "min_quality_ratio", T::number, false, "", 0, 10, "", "quality over the baseline's"},
    KeyRule{"search.limits", "max_state", T::bytes, false, "", 0, 0, "",
            "state of one row in all blocks of the decoder"},
    KeyRule{"search.limits", "max_latency", T::duration, false, "", 0, 0, "", "of one decoded token"},

    KeyRule{"search.exponents", "throughput", T::number, false, "1", 0, 10, "", "of the throughput's ratio"},
    KeyRule{"search.exponents", "quality", T::number, false, "1", 0, 10, "", "of the quality's ratio"},
    KeyRule{"search.exponents", "memory", T::number, false, "1", 0, 10, "", "of the memory's ratio"},
};

constexpr std::array codes{
    CodeRule{ak::no_toml, "error", "manifest", "the text is no TOML; parsing stops at the first such place"},
    CodeRule{ak::unknown_key, "error", "manifest", "a key that the table does not have"},
    CodeRule{ak::missing_key, "error", "manifest", "a key that the table must have"},
    CodeRule{ak::wrong_type, "error", "manifest", "a value of another type"},
    CodeRule{ak::wrong_value, "error", "manifest", "a value out of bounds, or none of the choices"},
    CodeRule{ak::too_large, "error", "manifest", "more than 64 KiB"},
    CodeRule{ak::too_deep, "error", "manifest", "more than 16 levels of tables and arrays"},
    CodeRule{ak::no_utf8, "error", "manifest", "bytes that are no UTF-8"},
    CodeRule{ak::wrong_schema, "error", "manifest", "a schema other than `attnkit.model/1`"},
    CodeRule{ak::not_applicable, "error", "manifest", "a key that means nothing beside what the others say"},
    CodeRule{ak::widths_do_not_divide, "error", "manifest", "`heads` does not divide `d_model`"},
    CodeRule{ak::bad_weights_file, "error", "weights", "the weights file is missing, or no file"},
    CodeRule{ak::bad_vocabulary, "error", "data", "a vocabulary cannot be read or is malformed"},
    CodeRule{ak::bad_length_table, "error", "data", "a table of lengths cannot be read or is malformed"},
    CodeRule{ak::unknown_mechanism, "error", "plugin", "no plugin of that name in the search path"},
    CodeRule{ak::unusable_mechanism, "error", "plugin", "the plugin was found, but skipped or made for another device"},
    CodeRule{ak::refused, "error", "manifest", "the mechanism refuses the block or its options, in its own words"},
    CodeRule{ak::unknown_option, "error", "manifest", "an option that the mechanism does not have"},
    CodeRule{ak::wrong_option_type, "error", "manifest", "an option of another type"},
    CodeRule{ak::wrong_option_value, "error", "manifest", "an option out of bounds, or none of the choices"},
    CodeRule{ak::option_given_twice, "error", "manifest", "an option given by both `use` and `params` of an override"},
    CodeRule{ak::no_such_block, "error", "manifest", "a block that a model of this kind does not have"},
    CodeRule{ak::wrong_layers, "error", "manifest", "layers that are malformed, or that the stack does not have"},
    CodeRule{ak::never_matches, "error", "manifest", "an override that later ones hide in every layer"},
    CodeRule{ak::no_mechanism, "error", "manifest", "nothing decides which mechanism a block has"},
    CodeRule{ak::unused_entry, "warning", "manifest", "an entry that overrides hide in every layer"},
    CodeRule{ak::listed_twice, "error", "manifest", "an entry that its list has already"},
    CodeRule{ak::faulty_plugin, "error", "plugin", "a plugin threw, failed inside, or broke its contract"},
    CodeRule{ak::weights_do_not_fit, "error", "weights",
             "the weights cannot be read, or a tensor is missing or has another shape or type"},
    CodeRule{ak::left_over_tensor, "error", "weights", "a tensor that belongs to nothing in this model"},
    CodeRule{ak::no_adapters, "warning", "weights", "the weights hold no adapters for a chosen mechanism"},
};

}  // namespace

std::span<const KeyRule> manifest_keys() { return keys; }

std::span<const CodeRule> manifest_codes() { return codes; }

std::vector<const KeyRule*> rules_of(std::string_view table) {
  std::vector<const KeyRule*> rules;
  for (const KeyRule& rule : keys)
    if (rule.table == table) rules.push_back(&rule);
  return rules;
}

std::vector<std::string> choices_of(const KeyRule& rule) {
  std::vector<std::string> out;
  for (std::string_view rest = rule.choices; !rest.empty();) {
    const size_t end = std::min(rest.find('|'), rest.size());
    out.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

std::string type_text(const KeyRule& rule) {
  switch (rule.type) {
    case KeyType::text:
      return "text";
    case KeyType::integer:
      return fmt::format("an integer from {} to {}", rule.min, rule.max);
    case KeyType::number:
      return fmt::format("a number from {} to {}", rule.min, rule.max);
    case KeyType::boolean:
      return "true or false";
    case KeyType::choice:
      return fmt::format("one of \"{}\"", fmt::join(choices_of(rule), "\", \""));
    case KeyType::table:
      return "a table";
    case KeyType::tables:
      return "an array of tables";
    case KeyType::use:
      return "a mechanism's name or { use = name, option = value, ... }";
    case KeyType::uses:
      return "an array of mechanisms' names or { use = name, option = value, ... }";
    case KeyType::integers:
      return fmt::format("an array of integers from {} to {}", rule.min, rule.max);
    case KeyType::bytes:
      return "an integer of bytes or text such as \"64KiB\" (B, KiB, MiB, GiB)";
    case KeyType::duration:
      return "text such as \"5ms\" (us, ms, s)";
    case KeyType::layers:
      break;
  }
  return "an integer, \"first..last\" or an array of integers";
}

}  // namespace attnkit
