// An imported Whisper decodes with its state carried, and the keys of cross attention are made once for a recording:
// counted by a mechanism that sits where they are.
#include <dlfcn.h>

#include <utility>

#include "core/import/import.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

constexpr int64_t layers = 2, frames = 100, rows = 50;  // of tests/import/golden/whisper; a second convolution halves
const std::string checkpoint = ATTNKIT_SOURCE_DIR "/tests/import/golden/whisper";

std::shared_ptr<const Model> whisper(const std::string& blocks) {
  const TempFolder folder;
  const Imported imported = import_folder({checkpoint, folder.path() + "/model.toml", "", ""});
  Diagnostics diagnostics;
  const std::vector<std::string> plugins = {ATTNKIT_FAKE_PLUGINS "/counter", ATTNKIT_PLUGIN_FOLDER};
  std::string toml = imported.toml;
  const std::string attention = "[attention]\n";
  toml.replace(toml.find(attention), attention.size(), attention + blocks);
  auto model = Model::load(std::make_shared<Runtime>(plugins, 2, 1), toml, folder.path(), diagnostics);
  EXPECT_TRUE(model) << all_messages(diagnostics);
  return model;
}

struct Counts {
  int64_t keyed_runs, keys, queries;
  bool operator==(const Counts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << "runs with keys " << c.keyed_runs << ", keys " << c.keys << ", queries " << c.queries;
}

// Since the last call.
Counts counts_of(uint32_t role) {
  void* const library = dlopen(ATTNKIT_FAKE_PLUGINS "/counter/fake_counter.so", RTLD_NOW | RTLD_NOLOAD);
  if (!library) throw std::runtime_error(dlerror());
  auto& own = (*static_cast<int64_t(*)[8][3]>(dlsym(library, "fake_counter_counts")))[role];
  dlclose(library);
  return {std::exchange(own[0], 0), std::exchange(own[1], 0), std::exchange(own[2], 0)};
}

std::vector<float> heard() {
  std::vector<float> made(frames * 80);
  for (size_t i = 0; i < made.size(); ++i) made[i] = std::sin(0.7f * static_cast<float>(i));
  return made;
}

TEST(Whisper, MakesTheKeysOfARecordingOnceAndThoseOfATokenOnce) {
  const auto model = whisper("\"decoder.cross\" = \"fake_counter\"\n\"decoder.self\" = \"fake_counter\"\n");
  const std::vector<float> recording = heard();
  Session session(model, 1);
  counts_of(ATTN_DECODER_CROSS), counts_of(ATTN_DECODER_SELF);
  session.read(SourceBatch::frames(recording.data(), frames, 80));
  EXPECT_EQ(counts_of(ATTN_DECODER_CROSS), (Counts{layers, layers * rows, 0}));
  EXPECT_EQ(counts_of(ATTN_DECODER_SELF), (Counts{0, 0, 0}));
  write({&session}, {5, 6, 7, 8}, 4);  // what a target is forced to begin with, at once
  EXPECT_EQ(counts_of(ATTN_DECODER_CROSS), (Counts{0, 0, layers * 4}));
  EXPECT_EQ(counts_of(ATTN_DECODER_SELF), (Counts{layers, layers * 4, layers * 4}));
  for (int token = 0; token < 10; ++token) write({&session}, {100 + token}, 1);
  EXPECT_EQ(counts_of(ATTN_DECODER_CROSS), (Counts{0, 0, layers * 10}));
  EXPECT_EQ(counts_of(ATTN_DECODER_SELF), (Counts{layers * 10, layers * 10, layers * 10}));
}

TEST(Whisper, BeamsReadTheKeysOfOneRecording) {
  const auto model = whisper("\"decoder.cross\" = \"fake_counter\"\n");
  const std::vector<float> recording = heard();
  Session session(model, 4);
  counts_of(ATTN_DECODER_CROSS);
  session.read(SourceBatch::frames(recording.data(), frames, 80));
  EXPECT_EQ(counts_of(ATTN_DECODER_CROSS), (Counts{layers, layers * rows, 0}));
  write({&session}, {5, 5, 5, 5}, 1);
  EXPECT_EQ(counts_of(ATTN_DECODER_CROSS), (Counts{0, 0, layers * 4}));
}

// The counts are right: the same numbers come out if all is computed at once.
TEST(Whisper, GivesTokenByTokenWhatItGivesAtOnce) {
  const auto model = whisper("\"decoder.cross\" = \"fake_counter\"\n\"decoder.self\" = \"fake_counter\"\n");
  const std::vector<float> recording = heard();
  const SourceBatch source = SourceBatch::frames(recording.data(), frames, 80);
  const std::vector<int32_t> ids = {5, 6, 7, 100, 101, 102};
  std::vector<float> whole(ids.size() * static_cast<size_t>(model->outputs())), steps;
  model->forward(source, ids_of(ids), whole.data());
  Session session(model, 1);
  session.read(source);
  for (const int32_t id : ids)
    for (const float x : write({&session}, {id}, 1)) steps.push_back(x);
  int compared = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    if (!std::isfinite(steps[i])) continue;  // tokens that a session never writes
    ASSERT_NEAR(whole[i], steps[i], 1e-4 * (1 + std::abs(whole[i])));
    ++compared;
  }
  EXPECT_GT(compared, 1000);
}

}  // namespace
}  // namespace attnkit::test
