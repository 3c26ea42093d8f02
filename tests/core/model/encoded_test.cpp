#include "core/model/encoded.hpp"

#include <cmath>

#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> sources = {3, 4, 5, 6, 7, 2, 9, 8, 2, 0, 0, 0}, targets = {1, 8, 9, 4, 1, 5, 0, 0};
const int32_t source_lengths[] = {6, 3}, target_lengths[] = {4, 2};

Ids pair_of(const std::vector<int32_t>& ids, const int32_t* lengths) {
  Ids pair = ids_of(ids, 2);
  pair.lens = lengths;
  return pair;
}

size_t size_for(const Model& model) { return targets.size() * static_cast<size_t>(model.outputs()); }

std::vector<float> forward(const Model& model) {
  std::vector<float> out(size_for(model), NAN);
  model.forward(pair_of(sources, source_lengths), pair_of(targets, target_lengths), out.data());
  return out;
}

std::vector<float> decode(const Model& model, const Encoded& encoded) {
  std::vector<float> out(size_for(model), NAN);
  const Ids target = pair_of(targets, target_lengths);
  model.check_decode(encoded, target);
  model.decode(encoded, target, out.data());
  return out;
}

std::shared_ptr<const Model> load_carriers() {
  TinyModel tiny;
  tiny.attention = "default = \"fake_carrier\"\n";
  const TempFolder folder;
  write_tiny(folder, tiny);
  Diagnostics diagnostics;
  const auto carriers = std::make_shared<Runtime>(std::vector<std::string>{ATTNKIT_CARRIER_PLUGIN}, 1, 1);
  auto model = Model::load(carriers, tiny.manifest(), folder.path(), diagnostics);
  EXPECT_TRUE(model) << all_messages(diagnostics);
  return model;
}

// Two models over one weights file; what the second decodes of the first one's encoding, or the error.
class Shared {
 public:
  explicit Shared(const TinyModel& tiny) {
    write_tiny(folder_, tiny);
    first_ = made(tiny.manifest());
  }
  std::shared_ptr<const Model> made(const std::string& manifest) const {
    Diagnostics diagnostics;
    auto model = Model::load(runtime_, manifest, folder_.path(), diagnostics);
    EXPECT_TRUE(model) << all_messages(diagnostics);
    return model;
  }
  std::string refusal(const std::string& manifest) const {
    try {
      decode(*made(manifest), *first_->encode(pair_of(sources, source_lengths)));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ATTN_INVALID);
      return e.what();
    }
    return "";
  }
  const Model& first() const { return *first_; }
  const TempFolder& folder() const { return folder_; }

 private:
  TempFolder folder_;
  std::shared_ptr<Runtime> runtime_ = runtime();
  std::shared_ptr<const Model> first_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

TEST(Encoded, DecodesBitwiseAsForward) {
  const auto model = load({});
  const auto encoded = model->encode(pair_of(sources, source_lengths));
  EXPECT_EQ(decode(*model, *encoded), forward(*model));
  EXPECT_EQ(decode(*model, *encoded), forward(*model)) << "again";
}

TEST(Encoded, CarriesSequencesToTheDecoderAndKeepsItsOwn) {
  const auto model = load_carriers();
  const std::vector<float> expected = forward(*model);
  const auto encoded = model->encode(pair_of(sources, source_lengths));
  EXPECT_EQ(encoded->aux.at("carried").data, (std::vector<float>{2, 2})) << "two layers";
  EXPECT_EQ(decode(*model, *encoded), expected);
  EXPECT_EQ(encoded->aux.at("carried").data, (std::vector<float>{2, 2}));
  EXPECT_EQ(decode(*model, *encoded), expected);
}

TEST(Encoded, ServesEveryDecoderBehindTheSameEncoder) {
  TinyModel tiny, other;
  tiny.attention = "default = \"relu\"\n";
  other.attention = tiny.attention + "\"decoder.self\" = \"softmax\"\n\"decoder.cross\" = \"softmax\"\n";
  const Shared shared(tiny);
  const auto second = shared.made(other.manifest());
  std::vector<float> out = decode(*second, *shared.first().encode(pair_of(sources, source_lengths)));
  EXPECT_EQ(out, forward(*second));
  EXPECT_NE(out, forward(shared.first()));
}

TEST(Encoded, RefusesAnotherEncoder) {
  TinyModel tiny;
  tiny.attention = "default = \"relu\"\n";
  const Shared shared(tiny);
  const std::string manifest = tiny.manifest();
  EXPECT_EQ(shared.refusal(manifest), "");
  EXPECT_NE(shared.refusal(replaced(manifest, "[attention]", "[attention]\n\"encoder.self\" = \"softmax\""))
                .find("encoder.self.1 is { use = \"relu\""),
            std::string::npos);
  EXPECT_NE(shared.refusal(replaced(manifest, "\"relu\"", "{ use = \"relu\", eps = 0.25 }")).find("eps = 0.25"),
            std::string::npos);
  EXPECT_NE(shared.refusal(replaced(manifest, "max_length = 40", "max_length = 41")).find("max_length is 40 there"),
            std::string::npos);
  EXPECT_NE(shared.refusal(replaced(manifest, "heads = 2", "heads = 4")).find("heads is 2"), std::string::npos);
}

TEST(Encoded, KnowsWeightsByTheirFileOrDigest) {
  TinyModel tiny;
  const Shared shared(tiny);
  const std::string manifest = tiny.manifest();
  const auto now = std::filesystem::last_write_time(shared.folder().path() + "/w.safetensors");
  std::filesystem::last_write_time(shared.folder().path() + "/w.safetensors", now + std::chrono::seconds(1));
  EXPECT_NE(shared.refusal(manifest).find("weights is "), std::string::npos) << "changed since";
  std::filesystem::last_write_time(shared.folder().path() + "/w.safetensors", now);
  EXPECT_NE(shared.refusal(manifest).find("weights is "), std::string::npos) << "a date that was put back";
  std::filesystem::copy(shared.folder().path() + "/w.safetensors", shared.folder().path() + "/copy.safetensors");
  EXPECT_NE(shared.refusal(replaced(manifest, "w.safetensors", "copy.safetensors")).find("weights"), std::string::npos);
}

TEST(Encoded, NeedsBothStacksAndPairs) {
  TinyModel decoder;
  decoder.kind = "decoder";
  decoder.encoder_layers = 0;
  const auto alone = load(decoder), whole = load({});
  EXPECT_THROW(alone->encode(pair_of(sources, source_lengths)), Error);
  const auto encoded = whole->encode(pair_of(sources, source_lengths));
  EXPECT_THROW(alone->check_decode(*encoded, pair_of(targets, target_lengths)), Error);
  EXPECT_THROW(whole->check_decode(*encoded, ids_of(targets)), Error) << "one row for two";
  EXPECT_THROW(whole->check_decode(*encoded, pair_of({1, 99}, nullptr)), Error) << "outside the vocabulary";
}

TEST(Encoded, OfTokensThatThisModelLacksIsRefused) {
  TinyModel tiny;
  tiny.tie = false;
  const Shared shared(tiny);
  std::string many = replaced(tiny.manifest(), "file = \"w.safetensors\"", "seed = 1"), few = many;
  shared.folder().write("few.txt", "<pad>\n<s>\n</s>\n\u2581a\n\u2581b\n\u2581c\n");
  few = replaced(few, "encoder = { layers = 2, vocab = \"vocab.txt\"", "encoder = { layers = 2, vocab = \"few.txt\"");
  const auto encoded = shared.made(many)->encode(pair_of(sources, source_lengths));
  try {
    decode(*shared.made(few), *encoded);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("the source vocabulary of this model has 6"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace attnkit::test
