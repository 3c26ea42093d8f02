// Small models for sources that grow: weights from a seed, [stream] in the manifest.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {

using namespace core;

struct StreamModel {
  std::string attention = "default = \"softmax\"\n";
  bool causal = false;  // the encoder
  std::string stream = "[stream]\n", length = "[length]\npredict = \"fixed\"\nlength = 12\n";
  std::string decoder_vocab = "\"vocab.txt\"";  // and further keys
  int decoder_layers = 2, seed = 1;
  std::vector<std::string> plugins = {ATTNKIT_PLUGIN_FOLDER};

  std::string manifest() const {
    TinyModel tiny;
    tiny.attention = attention;
    tiny.tail = length + stream;
    tiny.decoder_layers = decoder_layers;
    std::string text = tiny.manifest();
    const auto replace = [&](const std::string& what, const std::string& with) {
      text.replace(text.find(what), what.size(), with);
    };
    replace("file = \"w.safetensors\"", "seed = " + std::to_string(seed));
    text.replace(text.rfind("\"vocab.txt\""), 11, decoder_vocab);
    if (causal) replace("encoder = { layers = 2", "encoder = { causal = true, layers = 2");
    return text;
  }
};

// One of each way in which sessions keep what they read.
struct StreamCase {
  const char* name;
  StreamModel model;
};
inline void PrintTo(const StreamCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<StreamCase> stream_cases() {
  const std::string replay = "[stream]\nreplay = true\n";
  return {
      {"Softmax", {.attention = "default = \"softmax\"\n", .causal = true}},
      {"Relu", {.attention = "default = \"relu\"\n", .causal = true}},
      {"Bidirectional", {.attention = "default = \"leap\"\n"}},
      {"Replayed",
       {.attention = "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n", .causal = true, .stream = replay}},
      {"Carried", {.attention = "default = \"luna\"\n\"decoder.self\" = \"local\"\n", .stream = replay}}};
}

// NULL when the manifest is refused; `said` then has the reasons.
inline std::shared_ptr<const Model> try_load(const StreamModel& from, std::string* said = nullptr) {
  const TempFolder folder;
  write_tiny(folder, TinyModel());
  Diagnostics diagnostics;
  auto model = Model::load(std::make_shared<Runtime>(from.plugins, 2, 1), from.manifest(), folder.path(), diagnostics);
  if (said) *said = all_messages(diagnostics);
  return model;
}

inline std::shared_ptr<const Model> load(const StreamModel& from) {
  std::string said;
  auto model = try_load(from, &said);
  EXPECT_TRUE(model) << said;
  return model;
}

inline std::vector<float> write(std::vector<Session*> sessions, const std::vector<int32_t>& ids, int64_t length) {
  const auto rows = static_cast<int64_t>(ids.size()) / length;
  std::vector<float> logits(ids.size() * static_cast<size_t>(sessions[0]->model().outputs()), NAN);
  Session::write(sessions, {ids.data(), length, rows, length, nullptr}, logits.data());
  return logits;
}

inline void read(Session& session, const std::vector<int32_t>& ids, size_t begin, size_t end, bool last) {
  const auto n = static_cast<int64_t>(end - begin);
  session.read(Ids{ids.data() + begin, n, 1, n, nullptr}, last);
}

inline void read_in_chunks(Session& session, const std::vector<int32_t>& ids, size_t chunk) {
  for (size_t i = 0; i < ids.size(); i += chunk)
    read(session, ids, i, std::min(ids.size(), i + chunk), i + chunk >= ids.size());
}

inline double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  double error = 0, scale = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    scale += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(error) / std::sqrt(scale);
}

inline std::vector<float> forward(const Model& model, const std::vector<int32_t>& src,
                                  const std::vector<int32_t>& tgt) {
  std::vector<float> out(tgt.size() * static_cast<size_t>(model.outputs()));
  model.forward(ids_of(src), ids_of(tgt), out.data());
  return out;
}

// The states of the next slots that sessions would be given, in every arena.
inline void expect_empty_slots(const Model& model, int slots = 8) {
  std::vector<Arena*> arenas = {&model.states(ATTN_DECODER_SELF)};
  if (model.has_encoder()) arenas.push_back(&model.states(ATTN_DECODER_CROSS));
  if (model.encoder().appends()) arenas.push_back(&model.states(ATTN_ENCODER_SELF));
  for (Arena* arena : arenas) {
    std::vector<int32_t> taken;
    for (int i = 0; i < slots; ++i) taken.push_back(arena->acquire());
    for (const int32_t slot : taken) {
      for (size_t block = 0; block < arena->blocks(); ++block) {
        const char* const row = arena->row(block, slot);
        EXPECT_TRUE(std::all_of(row, row + arena->stride(block), [](char c) { return c == 0; }))
            << "slot " << slot << " of block " << block;
      }
      arena->release(slot, std::vector<uint64_t>(arena->blocks()));
    }
  }
}

template <class F>
std::string refusal_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace attnkit::test
