// Small models that take speech: weights from a seed, 8 kHz, 8 bins, rows of 4 frames.
#pragma once

#include <cmath>
#include <functional>

#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {

using namespace core;

struct SpeechModel {
  std::string attention = "default = \"softmax\"\n";
  bool causal = true;
  std::string stream = "[stream]\n", length = "[length]\npredict = \"fixed\"\nlength = 12\n";
  std::string features = "{ type = \"fbank\", sample_rate = 8000, bins = 8 }",
              frontend = "{ type = \"conv\", channels = 12 }";
  std::string kind = "encoder-decoder", extra_encoder, extra_model;
  int max_length = 40, seed = 1;

  std::string manifest() const {
    std::string m = "schema = \"attnkit.model/1\"\n[model]\nname = \"speech\"\nkind = \"" + kind + "\"\n";
    m += "d_model = 16\nheads = 2\nffn = 24\nmax_length = " + std::to_string(max_length) + "\n";
    m += "encoder = { layers = 2";
    if (causal) m += ", causal = true";
    if (!features.empty()) m += ", features = " + features;
    if (!frontend.empty()) m += ", frontend = " + frontend;
    m += extra_encoder + " }\n";
    if (kind != "encoder") m += "decoder = { layers = 2, vocab = \"vocab.txt\" }\n";
    m += extra_model + "[weights]\nseed = " + std::to_string(seed) + "\n[attention]\n" + attention;
    return m + (kind == "encoder" ? "" : length + stream);
  }
};

// NULL when the manifest is refused; `said` then has the reasons.
inline std::shared_ptr<const Model> try_load(const SpeechModel& from, std::string* said = nullptr) {
  const TempFolder folder;
  write_tiny(folder, TinyModel());
  Diagnostics diagnostics;
  auto model = Model::load(runtime(), from.manifest(), folder.path(), diagnostics);
  if (said) *said = all_messages(diagnostics);
  return model;
}

inline std::shared_ptr<const Model> load(const SpeechModel& from) {
  std::string said;
  auto model = try_load(from, &said);
  EXPECT_TRUE(model) << said;
  return model;
}

// Tones that come and go, and noise.
inline std::vector<float> speech(size_t n, unsigned seed = 5) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> noise(-0.05f, 0.05f);
  std::vector<float> samples(n);
  for (size_t i = 0; i < n; ++i) {
    const float t = static_cast<float>(i) / 8000;
    samples[i] = noise(random) + 0.3f * std::sin(2500 * t * (1 + t)) * std::sin(9 * t) + 0.2f * std::cos(7000 * t);
  }
  return samples;
}

inline SourceBatch samples_of(const std::vector<float>& samples) {
  return SourceBatch::samples(samples.data(), static_cast<int64_t>(samples.size()));
}

inline SourceBatch frames_of(const std::vector<float>& frames, int64_t bins = 8) {
  return SourceBatch::frames(frames.data(), static_cast<int64_t>(frames.size()) / bins, bins);
}

inline std::vector<float> features(const Model& model, const std::vector<float>& samples) {
  const Frontend& frontend = *model.frontend();
  const int64_t n = frontend.frames(SourceKind::samples, static_cast<int64_t>(samples.size()));
  std::vector<float> frames(static_cast<size_t>(n * frontend.table().features.bins));
  frontend.features(samples.data(), static_cast<int64_t>(samples.size()), frames.data());
  return frames;
}

// Reads a source of one row in pieces of `chunk` units.
inline void read_in_chunks(Session& session, const SourceBatch& source, int64_t chunk) {
  for (int64_t i = 0; i < source.length; i += chunk)
    session.read(source.part(i, std::min(source.length, i + chunk)), i + chunk >= source.length);
}

// The logits of a few tokens, one after the other.
inline std::vector<float> written(Session& session) {
  std::vector<float> all;
  for (const int32_t id : {1, 5, 7, 4})
    for (const float x : write({&session}, std::vector<int32_t>(static_cast<size_t>(session.rows()), id), 1))
      all.push_back(x);
  return all;
}

inline constexpr int64_t first_row = 200 + 3 * 80;

inline std::vector<float> forward_speech(const Model& model, const SourceBatch& source,
                                         const std::vector<int32_t>& target) {
  std::vector<float> out(target.size() * static_cast<size_t>(model.outputs()), NAN);
  model.forward(source, ids_of(target, source.batch), out.data());
  return out;
}

inline void expect_refused(const std::function<void()>& f, const std::string& part) {
  const std::string said = refusal_of(f);
  EXPECT_NE(said.find(part), std::string::npos) << "no \"" << part << "\" in: " << said;
}

inline SpeechModel with(const std::string& encoder, const std::string& cross, bool causal) {
  SpeechModel from;
  from.causal = causal;
  from.attention =
      "default = \"softmax\"\n\"encoder.self\" = \"" + encoder + "\"\n\"decoder.cross\" = \"" + cross + "\"\n";
  from.stream = "[stream]\nreplay = true\n";
  return from;
}

inline const std::vector<SpeechModel> causal_models = {
    with("softmax", "softmax", true), with("relu", "linear", true), with("leap", "cosformer", true),
    with("s4d", "relu", true),        with("local", "leap", true),  with("latte", "softmax", true)};
inline const std::vector<SpeechModel> bidirectional_models = {
    with("softmax", "softmax", false), with("cosformer", "linear", false), with("nystromformer", "cosformer", false),
    with("s4d", "efficient", false)};

}  // namespace attnkit::test
