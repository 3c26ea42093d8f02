// Models whose layers come from the cache of packed weights, against models that pack them.
#include <fstream>

#include "core/base/file.hpp"
#include "core/base/sha256.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

namespace fs = std::filesystem;

TinyModel wide() {
  TinyModel tiny;
  tiny.d = 256;
  tiny.ffn = 512;
  tiny.vocab = 6000;
  tiny.encoder_layers = tiny.decoder_layers = 1;
  return tiny;
}

class PackedModel : public testing::TestWithParam<std::string> {
 protected:
  PackedModel() {
    if (const char* cache = std::getenv("XDG_CACHE_HOME")) before_ = cache;
    setenv("XDG_CACHE_HOME", cache_.path().c_str(), 1);
    write(wide());
  }
  ~PackedModel() override { before_ ? setenv("XDG_CACHE_HOME", before_->c_str(), 1) : unsetenv("XDG_CACHE_HOME"); }

  void write(const TinyModel& tiny) const {
    write_tiny(folder_, tiny);
    std::string vocab = "<pad>\n<s>\n</s>\n";
    for (int i = 3; i < tiny.vocab; ++i) vocab += std::to_string(i) + "\n";
    folder_.write("vocab.txt", vocab);
  }
  std::string manifest(const std::string& more = "cache = true\n", const TinyModel& tiny = wide()) const {
    std::string text = tiny.manifest();
    const std::string file = "file = \"w.safetensors\"\n";
    return text.replace(text.find(file), file.size(), file + "type = \"" + GetParam() + "\"\n" + more);
  }
  // The logits of a model that is opened now; warnings to *said, but for AK405, which is of the processor.
  std::vector<float> logits(const std::string& toml, std::string* said = nullptr) const {
    Diagnostics diagnostics;
    const auto model = Model::load(std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_PLUGIN_FOLDER}, 2, 1),
                                   toml, folder_.path(), diagnostics);
    if (said) {
      said->clear();
      for (const Diagnostic& d : diagnostics.sorted())
        if (d.code != 405) *said += d.message + "\n";
    }
    EXPECT_TRUE(model) << all_messages(diagnostics);
    std::vector<float> out(4 * static_cast<size_t>(model->outputs()));
    model->forward(ids_of({3, 77, 4999, 2}), ids_of({1, 5, 4000, 9}), out.data());
    digest_ = model->digest();
    std::ifstream maps("/proc/self/maps");
    const std::string mapped{std::istreambuf_iterator(maps), {}};
    is_mapped_ = mapped.find(cache_.path()) != std::string::npos;
    return out;
  }
  std::string packed() const { return cache_.path() + "/attnkit/packed"; }  // what is known of plugins lies beside it
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    if (!fs::exists(packed())) return all;
    for (const auto& entry : fs::recursive_directory_iterator(packed()))
      if (entry.is_regular_file()) all.push_back(entry.path());
    return all;
  }

  const TempFolder cache_, folder_;
  std::optional<std::string> before_;
  mutable std::string digest_;
  mutable bool is_mapped_ = false;
};

TEST_P(PackedModel, HasTheSameBits) {
  const std::vector<float> expected = logits(manifest(""));
  const std::string digest = digest_;
  EXPECT_TRUE(files().empty()) << "cache = false";
  std::string said;
  EXPECT_EQ(expected, logits(manifest(), &said)) << "the start that writes the cache";
  EXPECT_EQ(said, "");
  EXPECT_FALSE(is_mapped_);
  ASSERT_EQ(files().size(), 1u);
  const auto written = fs::last_write_time(files()[0]);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(expected, logits(manifest(), &said));
    EXPECT_TRUE(is_mapped_);
  }
  EXPECT_EQ(said, "");
  EXPECT_EQ(digest, digest_);
  EXPECT_EQ(fs::last_write_time(files()[0]), written) << "it was used";
}

// What adapters scale is another layer for each mechanism that has them.
TEST_P(PackedModel, HasAdapters) {
  TinyModel tiny = wide();
  tiny.adapters = true;
  tiny.adapted = {"softmax", "relu"};
  write(tiny);
  for (const char* mechanism : {"softmax", "relu", "softmax"}) {
    tiny.attention = std::string("default = \"") + mechanism + "\"\n";
    const std::vector<float> expected = logits(manifest("", tiny));
    std::string said;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(expected, logits(manifest("cache = true\n", tiny), &said));
      EXPECT_EQ(said, "");
    }
    EXPECT_TRUE(is_mapped_);
    const std::vector<std::byte> kept = read_file(files().at(0), 1 << 30);
    const std::string_view text(reinterpret_cast<const char*>(kept.data()), kept.size());
    EXPECT_NE(text.find("encoder.self.1.q"), text.npos);
  }
}

TEST_P(PackedModel, NewWeightsAreSeenAndSaidOnce) {
  const std::vector<float> old = logits(manifest());
  TinyModel other = wide();
  other.seed = 8;
  write(other);
  const std::vector<float> expected = logits(manifest(""));
  EXPECT_NE(old, expected);
  std::string said;
  EXPECT_EQ(logits(manifest(), &said), expected);
  EXPECT_NE(said.find("is of other weights"), std::string::npos) << said;
  EXPECT_EQ(logits(manifest(), &said), expected);
  EXPECT_EQ(said, "") << "it was made again";
}

TEST_P(PackedModel, ADamagedFileIsMadeAgainAndSaidOnce) {
  const std::vector<float> expected = logits(manifest());
  ASSERT_EQ(files().size(), 1u);
  fs::resize_file(files()[0], fs::file_size(files()[0]) / 2);
  std::string said;
  EXPECT_EQ(logits(manifest(), &said), expected);
  EXPECT_NE(said.find("is cut off"), std::string::npos) << said;
  EXPECT_NE(said.find("cache of packed weights"), std::string::npos) << said;
  EXPECT_EQ(logits(manifest(), &said), expected);
  EXPECT_EQ(said, "");
}

TEST_P(PackedModel, GoesNotWithADigest) {
  Diagnostics diagnostics;
  const std::string sum = sha256_hex(read_file(folder_.path() + "/w.safetensors", 1 << 30));
  const std::string text = manifest("cache = true\nsha256 = \"" + sum + "\"\n");
  EXPECT_FALSE(Model::load(runtime(), text, folder_.path(), diagnostics));
  EXPECT_NE(all_messages(diagnostics).find("\"cache\" maps what \"sha256\" promises to read"), std::string::npos);
  EXPECT_TRUE(files().empty());
}

TEST_P(PackedModel, WithoutAFolderItOpensAndSaysSo) {
  const std::vector<float> expected = logits(manifest(""));
  EXPECT_TRUE(files().empty()) << "nothing is kept unless the manifest says so";
  std::string said;
  fs::create_directories(fs::path(packed()).parent_path());
  std::ofstream(packed()) << "in the way";
  EXPECT_EQ(logits(manifest(), &said), expected);
  EXPECT_NE(said.find("cache of packed weights"), std::string::npos) << said;
}

INSTANTIATE_TEST_SUITE_P(Types, PackedModel, testing::Values("f32", "bf16", "int8", "int4"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace attnkit::test
