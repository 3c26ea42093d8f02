#include "core/manifest/keys.hpp"

#include <fmt/format.h>

#include "core/base/text.hpp"

namespace attnkit::core {
namespace {

using T = KeyType;
constexpr const char* must = nullptr;  // be given

constexpr KeyRule keys[] = {
    {"", "schema", T::text, must, "the format of the file: `attnkit.model/1`"},
    {"", "device", T::choice, "cpu", "cpu|cuda",
     "what it runs on, unless the program that opens it says another (`--device`): `cuda` is the first GPU, with f32, "
     "bf16 or f16 weights, mechanisms that have a variant for it, and without [stream]"},
    {"", "model", T::table, must, "the transformer around the attention blocks"},
    {"", "weights", T::table, must, "where the weights are"},
    {"", "attention", T::table, must, "which mechanism sits in which block"},
    {"", "length", T::table, "",
     "who tells mechanisms that need it the target's length while decoding; without it they do not know it"},
    {"", "decode", T::table, "", "how text is generated"},
    {"", "stream", T::table, "",
     "simultaneous decoding: sessions may be read and written by turns; for models with an encoder and a decoder"},
    {"", "search", T::table, "", "what `attnkit search` tries and how it judges; changes nothing else"},

    {"model", "name", T::text, must, "what reports call the model"},
    {"model", "kind", T::choice, must, "encoder|decoder|encoder-decoder", "which stacks it has"},
    {"model", "d_model", T::integer, must, 1, 65536,
     "width of the model; a multiple of `heads`, unless `head_width` is given"},
    {"model", "heads", T::integer, must, 1, 1024, "attention heads of every block"},
    {"model", "kv_heads", T::integer, "", 1, 1024,
     "heads of keys and values, each for `heads` / `kv_heads` heads of queries; absent: `heads`"},
    {"model", "head_width", T::integer, "", 1, 65536, "channels of a head; absent: `d_model` / `heads`"},
    {"model", "ffn", T::integer, must, 1, 1048576, "inner width of the feed-forward layers"},
    {"model", "gated", T::boolean, "false",
     "feed-forward layers out(f(gate x) * in x) in place of out(f(in x)), f the activation"},
    {"model", "bias", T::set, "all", "all|all_but_k|qkv|none;q|k|v|o|in|gate|out",
     "which dense layers around attention (`o`: behind it) and of the feed-forward layers (`in`, `gate`, `out`) have a "
     "bias; `qkv`: those that make q, k and v; `all_but_k`: all but those that make k.  What only one mechanism "
     "projects is as `v`"},
    {"model", "norm", T::choice, "pre", "pre|post", "norm before or after each sublayer"},
    {"model", "final_norm", T::boolean, "",
     "a norm behind the last layer of each stack; absent: true where norm = \"pre\""},
    {"model", "norm_type", T::choice, "layer", "layer|rms",
     "`layer`: layer norm; `rms`: divided by the root mean square, without mean and bias"},
    {"model", "norm_eps", T::number, "1e-05", 1e-15, 1, "what every norm adds to the variance or mean square"},
    {"model", "qk_norm", T::boolean, "false", "`rms` norm of each head's q and k in self attention, before positions"},
    {"model", "activation", T::choice, "relu", "relu|gelu|gelu_tanh|quick_gelu|silu",
     "of the feed-forward layers; `gelu` is the exact one, `quick_gelu` x sigmoid(1.702 x)"},
    {"model", "positions", T::choice, "sinusoidal", "sinusoidal|learned|rotary|none",
     "what is added to the embeddings; `rotary` is not added: it turns q and k of self attention"},
    {"model", "sinusoids", T::choice, "interleaved", "interleaved|halves|tensor2tensor",
     "sinusoidal positions, pair i of d_model / 2 turning by 10000^(-2 i / d_model): `interleaved`: channels 2 i and "
     "2 i + 1 are its sine and cosine; `halves`: all sines, then all cosines; `tensor2tensor`: `halves` by "
     "10000^(-i / (d_model / 2 - 1))"},
    {"model", "rotary", T::table, "", "for positions = \"rotary\""},
    {"model", "position_offset", T::integer, "0", 0, 1048576,
     "sinusoidal and learned positions: the row of the first; a table of these has `max_length` rows more than this"},
    {"model", "token_types", T::integer, "0", 0, 1024,
     "rows of a table of token types, for encoders of text; its first row is added to every position"},
    {"model", "embed_norm", T::boolean, "false", "layer norm of the embedded tokens with all that is added to them"},
    {"model", "embed_scale", T::boolean, "false", "embeddings times sqrt(d_model)"},
    {"model", "attention_scale", T::number, "", 1e-6, 1e6,
     "what q k is multiplied by to make a score; absent: 1 / sqrt(`head_width`).  For other mechanisms q is "
     "multiplied by as much"},
    {"model", "tie_embeddings", T::set, "false", "true|false;source|target|output",
     "which of the source's embedding, the target's and the output layer are one table, which files have under the "
     "name "
     "of the target's where that is one of them, else of the source's; true: `target` and `output`"},
    {"model", "head_bias", T::boolean, "false", "the output layer has a bias, tied or not"},
    {"model", "head_scale", T::factor, "false", 1e-6, 1e6,
     "what scores of tokens are multiplied by, before a bias; true: 1 / sqrt(d_model)"},
    {"model", "head_norm", T::boolean, "false", "each head's output divided by its root mean square"},
    {"model", "adapters", T::boolean, "false",
     "per mechanism and block a learned scale and shift of q and k and a gain of the output"},
    {"model", "max_length", T::integer, "512", 1, 1048576,
     "longest source and target, in tokens; of speech rows of the encoder"},
    {"model", "encoder", T::table, "", "the encoder's stack"},
    {"model", "decoder", T::table, "", "the decoder's stack"},
    {"model", "head", T::table, "", "what the model gives out"},

    {"model.rotary", "base", T::number, "10000", 1, 1e12,
     "pair i of `width` / 2 turns by base^(-2 i / width) a position"},
    {"model.rotary", "width", T::integer, "", 2, 65536,
     "how many channels of a head turn, from its first; even; absent: all"},
    {"model.rotary", "layout", T::choice, "halves", "halves|interleaved",
     "pairs: channels i and i + `width` / 2, or 2 i and 2 i + 1"},
    {"model.rotary", "scaling", T::choice, "none", "none|linear|llama3|longrope",
     "for texts longer than in training: `linear`: all turn by 1 / `factor` of that; `llama3`: those do whose turn is "
     "longer than `original_length` / `low_frequency_factor`, none whose turn is shorter than `original_length` / "
     "`high_frequency_factor`, between them by parts; `longrope`: each pair by its own factor"},
    {"model.rotary", "factor", T::number, "1", 1, 1e6,
     "`linear`, `llama3`; `longrope`: for `attention_factor` alone; absent there: `max_length` / `original_length`"},
    {"model.rotary", "low_frequency_factor", T::number, "1", 1e-3, 1e6, "`llama3`"},
    {"model.rotary", "high_frequency_factor", T::number, "4", 1e-3, 1e6, "`llama3`; more than `low_frequency_factor`"},
    {"model.rotary", "original_length", T::integer, "8192", 1, 1048576, "`llama3`, `longrope`: the length in training"},
    {"model.rotary", "factors", T::numbers, "", 1e-3, 1e6,
     "for each of `width` / 2 pairs by how much slower it turns, before `scaling`; not with `longrope`"},
    {"model.rotary", "short_factors", T::numbers, "", 1e-3, 1e6,
     "`longrope`: for each of `width` / 2 pairs by how much slower it turns in a text, or a part of it that a session "
     "writes at once, that ends within `original_length`"},
    {"model.rotary", "long_factors", T::numbers, "", 1e-3, 1e6, "`longrope`: the same where it ends beyond"},
    {"model.rotary", "attention_factor", T::number, "", 1e-3, 1e3,
     "`longrope`: turned q and k are multiplied by it; absent: sqrt(1 + ln(`factor`) / ln(`original_length`))"},

    {"model.encoder", "layers", T::integer, must, 1, 1024, "number of layers"},
    {"model.encoder", "vocab", T::text, "",
     "vocabulary file, relative to the manifest; required where the source is text"},
    {"model.encoder", "tokenizer", T::choice, "longest", "longest|wordpiece|huggingface|gguf",
     "what `vocab` is and how it splits text: `longest`: attnkit's own; `wordpiece`: BERT's vocab.txt; `huggingface`: "
     "a tokenizer.json, or SentencePiece's file where its name ends in .model or .spm; `gguf`: a GGUF file, which "
     "brings its own"},
    {"model.encoder", "ids", T::text, "",
     "SentencePiece: a JSON or YAML file of tokens and their ids, relative to the manifest, where they are not the "
     "file's own"},
    {"model.encoder", "numbering", T::choice, "own", "own|fairseq",
     "SentencePiece: ids where no file lists them: `own`: the file's; `fairseq`: <s>, <pad>, </s>, <unk>, then the "
     "file's from its fourth on"},
    {"model.encoder", "more_tokens", T::texts, "",
     "SentencePiece: tokens behind the file's, or behind those of `ids` or of fairseq's numbering, in order"},
    {"model.encoder", "begin", T::text, "",
     "with any tokenizer but `longest`: the token before every text, such as its language; absent: those that the file "
     "puts there"},
    {"model.encoder", "vocab_size", T::integer, "", 1, 16777216,
     "rows of the embedding in `file`, where it has more than the vocabulary has tokens"},
    {"model.encoder", "truncate", T::integer, "", 2, 1048576,
     "with any tokenizer but `longest`: longer texts are cut to this many tokens, at most `max_length`; absent: they "
     "are refused"},
    {"model.encoder", "lowercase", T::boolean, "false",
     "lower-case A to Z of the text before it is split; `wordpiece`: all letters, and strip accents"},
    {"model.encoder", "causal", T::boolean, "false",
     "a unidirectional encoder: positions see only themselves and what stands before them"},
    {"model.encoder", "end", T::boolean, "true",
     "`false`: sources end with no token; the one that programs put behind them (`</s>`) is not read; not with "
     "[stream]"},
    {"model.encoder", "features", T::table, "", "what frames of speech hold; with `frontend`, in place of `vocab`"},
    {"model.encoder", "frontend", T::table, "", "what makes rows of the encoder of frames; with `features`"},

    {"model.encoder.features", "type", T::choice, must, "fbank|log_mel",
     "`fbank`: logarithms of mel energies, frame by frame, as Kaldi has them; `log_mel`: as Whisper has them, of a "
     "whole "
     "recording, whose loudest number decides what is silence"},
    {"model.encoder.features", "frames", T::integer, "", 1, 1048576,
     "`log_mel`, required there: of every recording; silence follows a shorter one, a longer one is refused"},
    {"model.encoder.features", "sample_rate", T::integer, "16000", 1000, 384000, "samples a second"},
    {"model.encoder.features", "bins", T::integer, "80", 1, 512, "numbers of a frame"},
    {"model.encoder.features", "window_ms", T::number, "25", 0.1, 1000, "how much a frame sees, in milliseconds"},
    {"model.encoder.features", "shift_ms", T::number, "10", 0.1, 1000,
     "from one frame to the next, in milliseconds; at most `window_ms`"},

    {"model.encoder.frontend", "type", T::choice, must, "conv|centred",
     "`conv`: convolutions that never change a row they made, then a linear layer; `centred`: convolutions that see as "
     "much behind a row as before it, and zeros beyond the ends"},
    {"model.encoder.frontend", "layers", T::integer, "2", 1, 4, "number of convolutions"},
    {"model.encoder.frontend", "kernel", T::integer, "3", 1, 64, "rows that each sees; `centred`: odd"},
    {"model.encoder.frontend", "stride", T::integer, "2", 1, 64,
     "rows from one of its outputs to the next; at most `kernel`; `centred`: of the last, the others have 1"},
    {"model.encoder.frontend", "channels", T::integer, "", 1, 65536,
     "`conv`: numbers of its outputs; absent: `d_model`"},

    {"model.decoder", "layers", T::integer, must, 1, 1024, "number of layers"},
    {"model.decoder", "vocab", T::text, must, "vocabulary file, relative to the manifest"},
    {"model.decoder", "tokenizer", T::choice, "longest", "longest|wordpiece|huggingface|gguf",
     "what `vocab` is and how it splits text, as for the encoder"},
    {"model.decoder", "ids", T::text, "", "as for the encoder"},
    {"model.decoder", "numbering", T::choice, "own", "own|fairseq", "as for the encoder"},
    {"model.decoder", "more_tokens", T::texts, "", "as for the encoder"},
    {"model.decoder", "vocab_size", T::integer, "", 1, 16777216,
     "with any tokenizer but `longest`: rows of the embedding, where it has more than the vocabulary has tokens"},
    {"model.decoder", "max_length", T::integer, "", 1, 1048576,
     "longest target, in tokens, where it is shorter than the model's `max_length`"},
    {"model.decoder", "begin", T::text, "",
     "with any tokenizer but `longest`: the token before every target; absent: the one that the file puts before a "
     "text, or none"},
    {"model.decoder", "zero_begin", T::boolean, "false",
     "the first position is embedded as zeros, whichever token stands there"},
    {"model.decoder", "end", T::text, "",
     "with any tokenizer but `longest`: the token that ends every target; required where the file puts none behind a "
     "text"},
    {"model.decoder", "more_ends", T::tokens, "",
     "tokens that end a target as well: a session gives the best score of them all to `end`, and -infinity to these"},
    {"model.decoder", "lowercase", T::boolean, "false", "lower-case A to Z of the text before it is split"},

    {"model.head", "type", T::choice, must, "lm|classifier|embedding",
     "`lm`, also without this table: a score for every token of the vocabulary at every position; `classifier`: for "
     "each class, one score for the whole input; `embedding`: a vector for the whole input; both for kind `encoder`"},
    {"model.head", "classes", T::integer, "", 2, 1048576, "classifier: how many classes; required there"},
    {"model.head", "pool", T::choice, "mean", "mean|first",
     "classifier, embedding: what it sees of the encoder's output: the mean of the positions, or the first"},
    {"model.head", "of", T::text, "",
     "classifier, embedding: pools this sequence in place of the encoder's output, one that its mechanisms carry from "
     "block to "
     "block, by its name; rows of zeros at its end, which were left out, do not count"},
    {"model.head", "pooler", T::boolean, "false",
     "embedding: a dense layer with tanh behind the pool, as BERT has one behind its first row"},
    {"model.head", "normalise", T::boolean, "false", "embedding: divided by its length"},
    {"model.head", "hidden", T::integer, "", 1, 1048576,
     "classifier: width of a layer with ReLU between pool and classes; absent: none"},

    {"weights", "file", T::text, "",
     "safetensors file, or the index of several, relative to the manifest; this, `seed` or both"},
    {"weights", "names", T::text, "",
     "what `file` calls its tensors, where that is not what attnkit calls them: an architecture that ships with "
     "attnkit "
     "(`bert`), or a TOML file, relative to the manifest; its name ends in .toml"},
    {"weights", "sha256", T::text, "",
     "64 hexadecimal digits; with it, no damaged file is accepted, and the file is read whole; without it, it is "
     "mapped "
     "into memory: replace it then by renaming another, never in place"},
    {"weights", "seed", T::integer, "", 0, 4294967295,
     "without `file`, an untrained model: all tensors are initialised by this seed; with it, those of the mechanisms' "
     "own that the file lacks"},
    {"weights", "type", T::choice, "f32", "f32|bf16|f16|int8|int4|stored",
     "of dense layers and embeddings in memory: bf16 keeps 8 bits of each number's precision, half the memory; f16 "
     "keeps 11, on a GPU alone, and ends at 65504; int8 keeps 8 bits with a scale for each output, a quarter, and "
     "rounds the inputs while running, with a scale for each row; int4 keeps 4 bits with a scale for each 32 inputs "
     "of an output, a sixth, and rounds the inputs to 8 bits with a scale for each 32 of them; stored is for each "
     "tensor what is nearest to what the file has: int4 for GGUF's Q4_0, Q4_1 and Q4_K, int8 for Q8_0, Q6_K and I8, "
     "bf16 for BF16"},
    {"weights", "tf32", T::boolean, "false",
     "on a GPU, products of f32 numbers with 10 bits of fraction, which tensor cores do faster; elsewhere without "
     "effect"},
    {"weights", "cache", T::boolean, "false",
     "layers of `file` as they were packed are kept in the user's folder for caches, from where the next start maps "
     "them: it opens in a fraction of the time, and processes share their memory; not with `sha256`"},

    {"attention", "default", T::use, "", "for blocks that nothing else decides"},
    {"attention", "encoder.self", T::use, "", "for the encoder's self attention"},
    {"attention", "decoder.self", T::use, "", "for the decoder's self attention"},
    {"attention", "decoder.cross", T::use, "", "for the decoder's attention to the encoder"},
    {"attention", "params", T::table, "", "per mechanism a table of options, for all blocks that use it"},
    {"attention", "override", T::tables, "", "exceptions by layer; the last that matches wins"},

    {"attention.override", "block", T::choice, must, "encoder.self|decoder.self|decoder.cross", "the role"},
    {"attention.override", "layers", T::layers, "",
     "which layers, counted from 1: `2`, `\"2\"`, `\"2..3\"` or `[1, 3]`; absent: all"},
    {"attention.override", "use", T::use, must, "the mechanism"},
    {"attention.override", "params", T::table, "", "its options"},

    {"length", "predict", T::choice, must, "ratio|fixed|reference|lut|network",
     "`ratio`: `alpha` times the source's length, of speech in rows of the encoder; `fixed`: `length`; `reference`: "
     "the host gives the true length; `lut`: sums what each source token makes on average; `network`: a small network "
     "looks at the encoder's rows"},
    {"length", "alpha", T::number, "", 1e-6, 1e6, "required for `ratio`, and only there"},
    {"length", "length", T::number, "", 1, 1e9, "required for `fixed`, and only there"},
    {"length", "lut", T::text, "", "required for `lut`, and only there: the table, relative to the manifest"},
    {"length", "dampening", T::number, "1.1", 1e-6, 1e6,
     "only for `lut`: the sum is divided by it; a larger one makes shorter targets"},
    {"length", "file", T::text, "",
     "required for `network`, and only there: its safetensors file, relative to the manifest"},
    {"length", "sha256", T::text, "", "only for `network`: 64 hexadecimal digits"},

    {"decode", "beams", T::integer, "1", 1, 64, "rows of the beam search; 1 is greedy"},
    {"decode", "forced", T::tokens, "",
     "what every target begins with, such as its language, behind `begin` of [model.decoder]; models with an encoder"},
    {"decode", "suppress", T::tokens, "", "tokens that are never written"},
    {"decode", "suppress_first", T::tokens, "",
     "tokens that are not written first, behind the forced ones; models with an encoder"},
    {"decode", "length_penalty", T::number, "1.0", 0, 10, "a hypothesis' score is divided by its length to this power"},
    {"decode", "early_stop", T::choice, "never", "never|guess|full|shrink",
     "when a beam search ends: `never`: when nothing that is unfinished could still win; `guess`: when `beams` "
     "hypotheses have ended and the best unfinished one would lose if it ended here; `full`: when `beams` have ended; "
     "`shrink`: the same, and each that ends leaves a row fewer to the others, as in Marian"},
    {"decode", "limit", T::integer, "", 1, 1048576,
     "tokens of an output where nobody says how many; absent: 1.5 times the source and 20, of a decoder alone what "
     "`max_length` leaves; `attnkit stream` and attnkit_session_simulate take 1.5 times the source and 20, whatever "
     "this and `max_length` say"},
    {"decode", "max_length", T::integer, "", 2, 1048576,
     "the same, counted with what begins the target and, of a decoder alone, with the text it goes on from"},
    {"decode", "min_length", T::integer, "", 1, 1048576, "no target ends before it has so many tokens, counted so"},
    {"decode", "force_end", T::boolean, "false",
     "the last token that `max_length` leaves is the one that ends targets"},
    {"decode", "repetition_penalty", T::number, "1.0", 0.01, 100,
     "scores of tokens that the target has are divided by it, those below 0 times it; in a beam search log "
     "probabilities"},
    {"decode", "no_repeat", T::integer, "", 1, 1048576, "no so many tokens in a row are written that the target has"},
    {"decode", "temperature", T::number, "0.0", 0, 1000,
     "`attnkit run` draws tokens at random, with scores divided by it; 0: the best token, always"},
    {"decode", "top_k", T::integer, "", 1, 16777216, "with `temperature`: only of so many of the best"},
    {"decode", "top_p", T::number, "1.0", 0, 1,
     "with `temperature`: only of the best that together have this probability"},

    {"stream", "policy", T::choice, "wait-k", "wait-k|offline",
     "who decides between reading and writing where nobody else does: `wait-k` stays `k` decisions behind the source, "
     "`offline` reads all of it first"},
    {"stream", "k", T::integer, "3", 1, 1048576,
     "`wait-k`: how many times `pre_decision` units are read before the first token is written"},
    {"stream", "pre_decision", T::integer, "1", 1, 1048576,
     "`wait-k`: units of the source (what arrives at once: words, tokens, speech) from one decision to the next"},
    {"stream", "replay", T::boolean, "false",
     "mechanisms of decoder.cross whose states a longer source would change are emptied and filled anew at each read, "
     "from all of the source that is there; without it they are refused"},

    {"search", "space", T::table, must, "what may sit where"},
    {"search", "strategy", T::choice, "grid", "ablation|grid|pareto",
     "`ablation`: the baseline with one block changed at a time; `grid`: every placement; `pareto`: `trials` of them, "
     "for spaces too large for that"},
    {"search", "per_layer", T::boolean, "false", "each layer may have a mechanism of its own, not only each role"},
    {"search", "metric", T::choice, "", "exact|bleu|accuracy|perplexity|cosine",
     "what quality is; absent: what suits the kind of model"},
    {"search", "data", T::text, "", "examples to judge by, relative to the manifest"},
    {"search", "test", T::text, "", "examples for the best ones, relative to the manifest"},
    {"search", "rank", T::choice, "rcp_mem", "rcp|rcp_mem|quality|throughput", "what the best placement is best at"},
    {"search", "length", T::integer, "512", 1, 1048576, "length in tokens that the ranking is for"},
    {"search", "lengths", T::integers, "[64, 512, 4096]", 1, 1048576, "lengths in tokens at which costs are measured"},
    {"search", "baseline", T::use, "",
     "what all are compared with, in every role; absent: the first entry of each role's space"},
    {"search", "trials", T::integer, "64", 1, 1000000, "`pareto`: how many placements it tries"},
    {"search", "seed", T::integer, "1", 0, 4294967295, "of all random choices"},
    {"search", "limits", T::table, "", "what no placement may exceed"},
    {"search", "exponents", T::table, "", "of the factors of `rcp` and `rcp_mem`"},
    {"search", "quality_weight", T::number, "1", 0, 100, "how much a loss of quality counts in `rcp` and `rcp_mem`"},

    {"search.space", "encoder.self", T::uses, "", "for the encoder's self attention"},
    {"search.space", "decoder.self", T::uses, "", "for the decoder's self attention"},
    {"search.space", "decoder.cross", T::uses, "", "for the decoder's attention to the encoder"},

    {"search.limits", "min_quality_ratio", T::number, "", 0, 10, "quality over the baseline's"},
    {"search.limits", "max_state", T::bytes, "", "state of one row in all blocks of the decoder"},
    {"search.limits", "max_latency", T::time, "", "of one decoded token"},

    {"search.exponents", "throughput", T::number, "1", 0, 10, "of the throughput's ratio"},
    {"search.exponents", "quality", T::number, "1", 0, 10, "of the quality's ratio"},
    {"search.exponents", "memory", T::number, "1", 0, 10, "of the memory's ratio"},
};

}  // namespace

std::span<const KeyRule> manifest_keys() { return keys; }

std::vector<const KeyRule*> rules_of(std::string_view table) {
  std::vector<const KeyRule*> rules;
  for (const KeyRule& rule : keys)
    if (rule.table == table) rules.push_back(&rule);
  return rules;
}

std::vector<std::string> choices_of(const KeyRule& rule) {
  const std::string all = rule.choices;
  return split(all.substr(0, all.find(';')), '|');
}

std::vector<std::string> members_of(const KeyRule& rule) { return split(split(rule.choices, ';').back(), '|'); }

std::string type_text(const KeyRule& rule) {
  constexpr const char* texts[] = {
      "text",
      "an integer",
      "a number",
      "true or false",
      "true, false or a number",
      "one of",
      "one of",
      "a table",
      "an array of tables",
      "a mechanism's name or { use = name, option = value, ... }",
      "an array of mechanisms' names or { use = name, option = value, ... }",
      "an integer, \"first..last\" or an array of integers",
      "an array of integers",
      "an array of numbers",
      "an array of tokens, or of their ids",
      "an array of texts",
      "an integer of bytes or text such as \"64KiB\" (B, KiB, MiB, GiB)",
      "text such as \"5ms\" (us, ms, s)",
  };
  const char* text = texts[static_cast<size_t>(rule.type)];
  const bool truths = rule.choices[0] == 't' && choices_of(rule).front() == "true";
  const std::string choices =
      truths ? "true, false" : fmt::format("{} \"{}\"", text, fmt::join(choices_of(rule), "\", \""));
  if (rule.type == KeyType::choice) return choices;
  if (rule.type == KeyType::set)
    return fmt::format("{}, or an array of \"{}\"", choices, fmt::join(members_of(rule), "\", \""));
  return rule.min < rule.max ? fmt::format("{} from {} to {}", text, rule.min, rule.max) : text;
}

}  // namespace attnkit::core
