// attnkit.hpp as an application uses it: the path of a tiny model is the last argument.
#include <gtest/gtest.h>

#include <attnkit/attnkit.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

namespace {

std::string manifest_path;

std::string folder() { return manifest_path.substr(0, manifest_path.rfind('/')); }

std::string manifest_text() {
  std::ifstream file(manifest_path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct AttnkitHpp : testing::Test {
  attnkit::Runtime runtime{1};
  attnkit::Model model{runtime, manifest_path};
};

TEST_F(AttnkitHpp, TranslatesLikeItsParts) {
  const attnkit_model_info info = model.info();
  attnkit::Ids source = model.tokenize(attnkit::Side::source, "one two three");
  source.push_back(info.end_id);
  attnkit::Session session(model);
  session.read(source);
  EXPECT_EQ(model.translate("one two three"), model.detokenize(attnkit::Side::target, session.generate()));
  EXPECT_FALSE(model.translate("one two three", 3, 5).empty());
}

TEST_F(AttnkitHpp, TranslatesManyTextsAsEachAlone) {
  const std::vector<std::string> texts = {"one two three", "", "three one", "two", "one one two three three"};
  for (const uint32_t beams : {1u, 3u})
    for (const size_t batch : {1, 2, 16}) {
      std::vector<std::string> alone;
      for (const std::string& text : texts) alone.push_back(model.translate(text, beams));
      EXPECT_EQ(model.translate_all(texts, beams, 0, batch), alone) << beams << ' ' << batch;
      const auto refused = [&](const std::vector<std::string>& some) -> std::string {
        try {
          model.translate_all(some, beams, 0, batch);
          return "";
        } catch (const attnkit::Error& e) {
          return e.what();
        }
      };
      EXPECT_TRUE(refused({"one", "a zebra", "two"}).starts_with("text 1: ")) << batch;
      std::string words = "one";
      for (int32_t i = 0; i < model.info().max_length; ++i) words += " two";
      EXPECT_TRUE(refused({"one", "two", words}).starts_with("text 2: source: ")) << refused({"one", "two", words});
    }
  EXPECT_THROW(model.translate_all(texts, 1, 0, 0), attnkit::Error);
  EXPECT_TRUE(model.translate_all({}).empty());
}

TEST_F(AttnkitHpp, WritesManySessionsAtOnce) {
  const attnkit_model_info info = model.info();
  std::vector<attnkit::Session> sessions;
  std::vector<attnkit_session*> handles;
  for (const char* text : {"one", "two three four"}) {
    attnkit::Ids source = model.tokenize(attnkit::Side::source, text);
    source.push_back(info.end_id);
    sessions.emplace_back(model, 1).read(source);
    handles.push_back(sessions.back().get());
  }
  const std::vector<attnkit::Ids> tokens = {{info.begin_id, 5}, {info.begin_id}};
  const attnkit::Batch batch(tokens);
  std::vector<float> logits(2 * 2 * static_cast<size_t>(info.outputs), -1);
  attnkit::Session::write(handles, batch, logits.data(), info.outputs);
  EXPECT_EQ(nlohmann::json::parse(sessions[0].describe())["position"], 2);
  EXPECT_EQ(nlohmann::json::parse(sessions[1].describe())["position"], 1);
  EXPECT_EQ(logits.back(), 0);  // past a row's length
}

TEST_F(AttnkitHpp, ReordersAsManyRowsAsThereAre) {
  attnkit::Session session(model, 3);
  attnkit::Ids source = model.tokenize(attnkit::Side::source, "one two");
  source.push_back(model.info().end_id);
  session.read(source);
  attnkit::Session copy = session.clone(), loaded = attnkit::Session::load(model, session.save());
  const std::vector<uint32_t> parents = {2, 0, 0, 1};
  for (attnkit::Session* s : {&session, &copy, &loaded}) {
    EXPECT_THROW(s->reorder(std::span(parents).first(2)), attnkit::Error);
    EXPECT_THROW(s->reorder(parents), attnkit::Error);
    s->reorder(std::span(parents).first(3));
  }
}

TEST_F(AttnkitHpp, ForwardAgreesWithSessions) {
  const attnkit_model_info info = model.info();
  attnkit::Ids source = model.tokenize(attnkit::Side::source, "one two");
  source.push_back(info.end_id);
  const attnkit::Ids target = {info.begin_id, 4, 5};
  std::vector<float> whole(3 * static_cast<size_t>(info.outputs)), stepwise = whole;
  model.forward(attnkit::Batch({&source, 1}), attnkit::Batch({&target, 1}),
                attnkit::tensor(whole.data(), {1, 3, info.outputs}));
  attnkit::Session session(model, 1);
  session.read(source);
  attnkit_session* const handle = session.get();
  attnkit::Session::write({&handle, 1}, attnkit::Batch({&target, 1}), stepwise.data(), info.outputs);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], stepwise[i], 1e-4f);
}

TEST_F(AttnkitHpp, ReadsManifestsFromText) {
  std::string text = manifest_text();
  text.replace(text.find("softmax"), 7, "relu");
  const attnkit::Model other(runtime, text, folder());
  EXPECT_NE(other.describe().find("\"relu\""), std::string::npos);
}

TEST_F(AttnkitHpp, ErrorsCarryDiagnostics) {
  std::string text = manifest_text();
  text.replace(text.find("softmax"), 7, "sofmax");
  text.replace(text.find("heads"), 5, "haeds");
  try {
    attnkit::Model(runtime, text, folder());
    FAIL() << "loaded";
  } catch (const attnkit::Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    ASSERT_EQ(e.diagnostics().size(), 2u);
    EXPECT_TRUE(e.diagnostics()[0].is_error());
    EXPECT_LT(e.diagnostics()[0].line, e.diagnostics()[1].line);
  }
  EXPECT_THROW(attnkit::Model(runtime, folder() + "/missing.toml"), attnkit::Error);
  EXPECT_THROW(model.tokenize(attnkit::Side::source, std::string("o\0ne", 4)), attnkit::Error);
  EXPECT_THROW(model.translate("nonsense"), attnkit::Error);
}

TEST_F(AttnkitHpp, HandlesOutliveTheirParents) {
  std::optional<attnkit::Session> session;
  attnkit::Ids source;
  {
    const attnkit::Runtime own(1);
    const attnkit::Model theirs(own, manifest_path);
    source = theirs.tokenize(attnkit::Side::source, "one");
    source.push_back(theirs.info().end_id);
    session.emplace(theirs);
  }
  session->read(source);
  attnkit::Session moved = std::move(*session);
  EXPECT_FALSE(moved.generate(3).empty());
}

TEST_F(AttnkitHpp, RunsABlock) {
  const attn_block where = {sizeof(attn_block), ATTN_DECODER_SELF, 1, 2, 16, 8, 0, 0};
  const attnkit::Block block(runtime, "leap", where, "factor = 4");
  ASSERT_GE(block.ports().size(), 4u);
  attn_request request{};
  request.struct_size = sizeof request;
  request.flags = ATTN_STREAM;
  request.device_type = 1;
  request.dtype_code = 2;
  request.dtype_bits = 32;
  request.dtype_lanes = 1;
  request.workers = request.batch = request.queries = request.keys = 1;
  EXPECT_GT(block.plan(request).state_bytes, 0u);
  EXPECT_THROW(attnkit::Block(runtime, "leap", where, "factor = 3"), attnkit::Error);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  manifest_path = argv[argc - 1];
  return RUN_ALL_TESTS();
}
