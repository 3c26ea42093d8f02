// Encoding once for several decoders, through attnkit.h.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

const std::string folder = ATTNKIT_MODEL, path = folder + "/model.toml";

// The sample's manifest with one text replaced.
std::string edited(const std::string& from, const std::string& to) {
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

const attnkit::Batch sources(std::vector<attnkit::Ids>{{5, 6, 7, 8, 2}, {9, 2}, {11, 12, 2}}),
    targets(std::vector<attnkit::Ids>{{1, 7, 8}, {1, 9, 10, 11}, {1}});

size_t width(const attnkit::Model& model) { return static_cast<size_t>(model.info().outputs); }

attn_tensor view(std::vector<float>& out, const attnkit::Batch& target) {
  const int64_t cells = target.rows() * target.length;
  return attnkit::tensor(out.data(), {target.rows(), target.length, static_cast<int64_t>(out.size()) / cells});
}

std::vector<float> forward(const attnkit::Model& model) {
  std::vector<float> out(12 * width(model), -7);
  model.forward(sources, targets, view(out, targets));
  return out;
}

std::vector<float> decode(const attnkit::Model& model, const attnkit::Encoded& encoded) {
  std::vector<float> out(12 * width(model), -7);
  model.decode(encoded, targets, view(out, targets));
  return out;
}

std::string refusal(const attnkit::Model& model, const attnkit::Encoded& encoded) {
  try {
    decode(model, encoded);
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    return e.what();
  }
  return "";
}

TEST(Encoded, DecodesBitwiseAsForward) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  const attnkit::Encoded encoded = model.encode(sources);
  EXPECT_EQ(decode(model, encoded), forward(model));
  EXPECT_EQ(decode(model, encoded), forward(model)) << "again";
}

TEST(Encoded, ServesTwoPlacementsAndOutlivesTheModelThatMadeIt) {
  const attnkit::Runtime runtime;
  const attnkit::Model other(runtime, edited("\"decoder.self\" = \"leap\"", "\"decoder.self\" = \"relu\""), folder);
  auto model = std::make_unique<attnkit::Model>(runtime, path);
  const std::vector<float> first = forward(*model);
  const attnkit::Encoded encoded = model->encode(sources);
  model.reset();
  EXPECT_EQ(decode(other, encoded), forward(other));
  EXPECT_NE(decode(other, encoded), first);
}

TEST(Encoded, OfAnotherEncoderIsRefusedWithItsFirstDifference) {
  const attnkit::Runtime runtime;
  const attnkit::Encoded encoded = attnkit::Model(runtime, path).encode(sources);
  const auto refused = [&](const std::string& from, const std::string& to) {
    return refusal(attnkit::Model(runtime, edited(from, to), folder), encoded);
  };
  const std::string mechanism = refused("\"encoder.self\" = \"cosformer\"", "\"encoder.self\" = \"softmax\"");
  EXPECT_NE(mechanism.find("encoder.self.1 is { use = \"cosformer\", "), std::string::npos) << mechanism;
  EXPECT_NE(mechanism.find("\"softmax\""), std::string::npos) << mechanism;
  EXPECT_NE(refused("eps = 0.1, cross", "eps = 0.2, cross").find("eps = 0.2"), std::string::npos);
  EXPECT_NE(refused("max_length = 512", "max_length = 511").find("max_length is 512 there"), std::string::npos);
  EXPECT_NE(refused("sha256", "# sha256").find("weights is"), std::string::npos);
  EXPECT_EQ(refused("[attention]", "[attention]\noverride = []"), "");
}

TEST(Encoded, RefusesWrongArguments) {
  const attnkit::Runtime runtime;
  const attnkit::Model model(runtime, path);
  const attnkit::Encoded encoded = model.encode(sources);
  std::vector<float> out(12 * width(model), -7);
  const attn_tensor s = sources.view(), t = targets.view(), good = view(out, targets);
  const attnkit::Batch one(std::vector<attnkit::Ids>{{1, 5}});
  EXPECT_THROW(model.decode(encoded, one, attnkit::tensor(out.data(), {1, 2, model.info().outputs})), attnkit::Error);
  EXPECT_THROW(model.decode(encoded, targets, attnkit::tensor(out.data(), {3, 4, 1})), attnkit::Error);
  EXPECT_THROW(model.encode(attnkit::Batch(std::vector<attnkit::Ids>{{100000}})), attnkit::Error);
  attnkit_encoded* made = nullptr;
  EXPECT_EQ(attnkit_model_encode(model.get(), nullptr, nullptr, &made, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_encode(nullptr, &s, nullptr, &made, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_encode(model.get(), &s, nullptr, nullptr, nullptr), ATTN_INVALID);
  attn_error err{sizeof err, 0, -1, ""};
  attn_tensor empty = s;
  empty.data = nullptr;
  EXPECT_EQ(attnkit_model_encode(model.get(), &empty, nullptr, &made, &err), ATTN_INVALID);
  EXPECT_NE(std::string(err.message).find("source has no data"), std::string::npos) << err.message;
  EXPECT_EQ(made, nullptr);
  empty.shape[0] = 0;
  EXPECT_EQ(attnkit_model_encode(model.get(), &empty, nullptr, &made, &err), ATTN_OK) << "no rows: " << err.message;
  attnkit_encoded_destroy(made);
  made = nullptr;
  EXPECT_EQ(attnkit_model_decode(model.get(), nullptr, &t, nullptr, &good, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_decode(model.get(), encoded.get(), nullptr, nullptr, &good, nullptr), ATTN_INVALID);
  EXPECT_EQ(attnkit_model_decode(model.get(), encoded.get(), &t, nullptr, nullptr, nullptr), ATTN_INVALID);
  EXPECT_EQ(out, std::vector<float>(out.size(), -7));
  attnkit_encoded_destroy(nullptr);
}

}  // namespace
