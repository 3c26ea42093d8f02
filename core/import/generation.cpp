// The settings of transformers' generate() in a manifest's terms, and notes of those that it cannot say.
#include "core/import/huggingface.hpp"

namespace attnkit::core {
namespace {

using nlohmann::json;

constexpr double max_tokens = 1048576;  // of a manifest's lengths

// Settings that change nothing: of those that a manifest may have, and of others.
constexpr const char* neutral_settings = R"([
  ["num_beams", 1], ["length_penalty", 1], ["early_stopping", false], ["max_length", 20], ["max_new_tokens", null],
  ["min_length", 0], ["repetition_penalty", 1], ["no_repeat_ngram_size", 0], ["do_sample", false], ["temperature", 1],
  ["top_k", 50], ["top_p", 1], ["bad_words_ids", null], ["suppress_tokens", null], ["begin_suppress_tokens", null],
  ["forced_bos_token_id", null], ["forced_eos_token_id", null]])";
constexpr std::pair<const char*, double> neutral_others[] = {{"min_new_tokens", 0},
                                                             {"encoder_no_repeat_ngram_size", 0},
                                                             {"encoder_repetition_penalty", 1},
                                                             {"num_beam_groups", 1},
                                                             {"diversity_penalty", 0},
                                                             {"typical_p", 1},
                                                             {"min_p", 0},
                                                             {"epsilon_cutoff", 0},
                                                             {"eta_cutoff", 0},
                                                             {"penalty_alpha", 0},
                                                             {"guidance_scale", 1},
                                                             {"num_return_sequences", 1}};
constexpr const char* other_settings[] = {"sequence_bias",
                                          "exponential_decay_length_penalty",
                                          "watermarking_config",
                                          "stop_strings",
                                          "force_words_ids",
                                          "constraints",
                                          "top_h",
                                          "dola_layers",
                                          "max_time",
                                          "renormalize_logits",
                                          "token_healing"};

// Settings of config.json, which transformers does not look at where there is a generation_config.json.
void note_beside(Draft& draft, const JsonValue& config, const JsonValue& generation) {
  std::vector<std::string> settings;
  for (const json& neutral : json::parse(neutral_settings)) {
    const std::string key = neutral[0];
    if (const JsonValue own = config[key]; own && own.json() != neutral[1])
      if (const JsonValue counts = generation[key]; !counts || counts.json() != own.json())
        settings.push_back(fmt::format("{} = {}", key, own.json().dump().substr(0, 60)));
  }
  if (!settings.empty())
    draft.note(fmt::format("{} says {} of how texts are written, which counts for nothing beside {}", config.path(),
                           fmt::join(settings, ", "), generation.path()));
}

class Generation {
 public:
  Generation(Draft& draft, const JsonValue& settings, const TokensById& tokens)
      : draft_(draft), settings_(settings), tokens_(tokens) {}

  // start: what begins a target; end: one token that ends it, or several.
  void add(const JsonValue& start, const JsonValue& end) {
    for (const auto& [key, ours] : {std::pair("forced_decoder_ids", "forced"),
                                    {"suppress_tokens", "suppress"},
                                    {"begin_suppress_tokens", "suppress_first"}})
      if (const JsonValue own = settings_[key]; own && !draft_.said("decode", ours)) draft_.note_unsaid(own, key);
    note_forced();
    take("num_beams", "beams", 1, 1, 64);
    take("length_penalty", "length_penalty", 1, 0, 10);
    const JsonValue early = settings_["early_stopping"];
    draft_.add_text("decode", "early_stop", early && early.is_text() ? "never" : early.truth(false) ? "full" : "guess");
    add_lengths(end);
    take("repetition_penalty", "repetition_penalty", 1, 0.01, 100);
    take("no_repeat_ngram_size", "no_repeat", 0, 1, max_tokens);
    add_sampling();
    note_others();
    // A decoder alone goes on from what its tokenizer puts before a text.
    if (start && has_encoder_) draft_.add_text("model.decoder", "begin", token_of(start));
    if (const JsonValue forced = settings_["forced_bos_token_id"]; forced && has_encoder_)
      draft_.add_list("decode", "forced", {in_list(forced)});
    else if (forced)
      draft_.note_unsaid(forced, "forced_bos_token_id");
    add_suppressed(settings_["bad_words_ids"]);
    if (end) add_ends(end);
  }

 private:
  // Of a model whose architecture says what it is forced to write: whatever else its files force.
  void note_forced() {
    const std::string* const ours = draft_.said("decode", "forced");
    if (!ours) return;
    const auto is_ours = [&](const std::string& token) { return ours->find(toml_of(token)) != std::string::npos; };
    const auto is_id_of_ours = [&](const JsonValue& id) {
      const auto found = tokens_.find(id.integer());
      return found != tokens_.end() && is_ours(found->second);
    };
    for (const char* key : {"language", "task"})
      if (const JsonValue own = settings_[key]; own && !(own.is_text() && is_ours("<|" + own.text() + "|>")))
        draft_.note_unsaid(own, key);
    if (const JsonValue pairs = settings_["forced_decoder_ids"])
      for (const JsonValue& pair : pairs.items())
        if (const std::vector<JsonValue> both = pair.items(); both.size() == 2 && both[1] && !is_id_of_ours(both[1]))
          return draft_.note_unsaid(pairs, "forced_decoder_ids");
  }

  void add_lengths(const JsonValue& end) {
    // Of a decoder alone the text that it goes on from does not count; else one token begins the target.
    if (const JsonValue most = settings_["max_new_tokens"]; most && has_encoder_)
      draft_.add("decode", "max_length", std::to_string(most.integer() + 1));
    else if (most)
      take("max_new_tokens", "limit", 0, 1, max_tokens);
    else
      take("max_length", "max_length", 0, 2, max_tokens);
    take("min_length", "min_length", 0, 1, max_tokens);
    const JsonValue forced = settings_["forced_eos_token_id"];
    const bool limited = draft_.said("decode", "max_length");
    if (forced && limited && end &&
        forced.json() == (end.is_array() && end.json().size() > 1 ? end.json().front() : end.json()))
      draft_.add("decode", "force_end", "true");
    else if (forced && (limited || !has_encoder_))
      draft_.note_unsaid(forced, "forced_eos_token_id");
  }

  void add_sampling() {
    const JsonValue sample = settings_["do_sample"];
    if (!sample.truth(false) || number("temperature", 1) == 0) return;
    if (draft_.said("decode", "beams")) return draft_.note_unsaid(sample, "do_sample");
    draft_.add("decode", "temperature", json(number("temperature", 1)).dump());
    if (const double k = number("top_k", 50); k >= 1)
      draft_.add("decode", "top_k", std::to_string(static_cast<int64_t>(k)));
    take("top_p", "top_p", 1, 0, 1);
  }

  void note_others() {
    for (const auto& [key, neutral] : neutral_others)
      if (number(key, neutral) != neutral) draft_.note_unsaid(settings_[key], key);
    for (const char* key : other_settings)
      if (const JsonValue own = settings_[key];
          own && own.json() != false && !(own.json().is_structured() && own.json().empty()))
        draft_.note_unsaid(own, key);
  }

  // Lists of tokens that must not be written one after another; of one alone: never.
  void add_suppressed(const JsonValue& lists) {
    if (!lists) return;
    std::vector<std::string> tokens;
    for (const JsonValue& list : lists.items()) {
      const std::vector<JsonValue> ids = list.items();
      if (ids.size() == 1)
        tokens.push_back(in_list(ids.front()));
      else
        draft_.note(
            fmt::format("{} has {}, which the manifest cannot say of several tokens", list.path(), list.place()));
    }
    draft_.add_list("decode", "suppress", tokens);
  }

  void add_ends(const JsonValue& end) {
    const std::vector<JsonValue> ends = end.is_array() ? end.items() : std::vector{end};
    if (ends.empty()) end.wrong("is empty");
    draft_.add_text("model.decoder", "end", token_of(ends.front()));
    std::vector<std::string> others;
    for (size_t i = 1; i < ends.size(); ++i) others.push_back(in_list(ends[i]));
    draft_.add_list("model.decoder", "more_ends", others);
  }

  double number(const std::string& key, double neutral) const {
    const JsonValue value = settings_[key];
    if (value && !value.json().is_number()) value.wrong("must be a number");
    return value ? value.json().get<double>() : neutral;
  }

  // Adds a number within the bounds of our key, where it is not the one that changes nothing.
  void take(const char* key, const char* ours, double neutral, double least, double most) {
    const double value = number(key, neutral);
    if (value == neutral) return;
    if (value >= least && value <= most)
      draft_.add("decode", ours, settings_[key].json().dump());
    else
      draft_.note_unsaid(settings_[key], key);
  }

  std::string token_of(const JsonValue& id) const {
    const auto found = tokens_.find(id.integer());
    if (found == tokens_.end()) id.wrong(fmt::format("is {}, which is no token of the vocabulary", id.integer()));
    return found->second;
  }

  // A token of a list, which may hold ids.  Of fairseq's numbering those behind the pieces are in no file.
  std::string in_list(const JsonValue& id) const {
    const bool unnamed = draft_.said("model.decoder", "numbering") && !tokens_.contains(id.integer());
    return unnamed ? std::to_string(id.integer()) : toml_of(token_of(id));
  }

  Draft& draft_;
  const JsonValue& settings_;
  const TokensById& tokens_;
  const bool has_encoder_ = draft_.has("model.encoder");
};

}  // namespace

void add_generation(Draft& draft, const fs::path& folder, const JsonValue& config, const TokensById& tokens) {
  const auto own = draft.find_json(folder / "generation_config.json");
  if (own) note_beside(draft, config, *own);
  const JsonValue settings = own.value_or(config);
  // Without one nothing begins a target, and nothing ends it.
  const auto said = [&](const char* key) { return settings[key] ? settings[key] : config[key]; };
  Generation(draft, settings, tokens).add(said("decoder_start_token_id"), said("eos_token_id"));
}

}  // namespace attnkit::core
