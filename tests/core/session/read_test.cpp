// Sources that grow while the target is written.
#include <nlohmann/json.hpp>
#include <thread>

#include "core/api/describe.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

using Json = nlohmann::json;

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 9, 8, 4, 10, 3, 2}, target = {1, 8, 9, 4, 3, 3, 7};

Json described(const Session& session) { return Json::parse(describe_session(session)); }

TEST(GrowingSource, ItsCostIsCounted) {
  const auto counted = [](const StreamModel& from) {
    const auto model = load(from);
    Session session(model, 1);
    read(session, source, 0, 4, false);
    read(session, source, 4, 6, false);
    read(session, source, 6, 11, true);
    const Json j = described(session);
    EXPECT_EQ(3, j["reads"]);
    EXPECT_EQ(11, j["source_length"]);
    EXPECT_EQ(true, j["source_complete"]);
    EXPECT_EQ(0, j["kept_bytes"]) << "a complete source needs nothing kept";
    return std::vector<int64_t>{j["tokens_encoded_again"], j["replays"], j["keys_replayed"]};
  };
  StreamModel m;
  EXPECT_EQ((std::vector<int64_t>{4 + 6, 2, 2 * (4 + 6)}), counted(m)) << "bidirectional: all again, in 2 layers";
  m.causal = true;
  EXPECT_EQ((std::vector<int64_t>{0, 0, 0}), counted(m));
  m.stream = "[stream]\nreplay = true\n";
  EXPECT_EQ((std::vector<int64_t>{0, 0, 0}), counted(m)) << "nothing needs it";
  m.attention += "override = [{ block = \"decoder.cross\", layers = 2, use = \"cosformer\" }]\n";
  EXPECT_EQ((std::vector<int64_t>{0, 2, 4 + 6}), counted(m)) << "one of two layers";
}

TEST(GrowingSource, DescribeTellsWhatIsKept) {
  StreamModel m;
  m.causal = true;
  m.stream = "[stream]\nreplay = true\n";
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n";
  Session session(load(m), 1);
  read(session, source, 0, 4, false);
  const Json j = described(session);
  EXPECT_EQ(4 * 16 * 4, j["kept_bytes"]);
  EXPECT_EQ(false, j["source_complete"]);
  EXPECT_EQ("encoder.self.1", j["blocks"][0]["block"]);
  EXPECT_GT(j["blocks"][0]["state_bytes"], 0);
}

TEST(GrowingSource, PredictedLengthsFollowIt) {
  StreamModel m;
  m.length = "[length]\npredict = \"ratio\"\nalpha = 0.5\n";
  m.stream = "[stream]\nreplay = true\n";
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n";
  const auto model = load(m);
  Session session(model, 1), told(model, 1);
  told.set_length(5);
  for (Session* s : {&session, &told}) {
    read(*s, source, 0, 4, false);
    read(*s, source, 4, source.size(), true);
  }
  EXPECT_EQ(5.5, session.target_total());
  EXPECT_EQ(5, told.target_total());
  EXPECT_LE(relative_error(write({&session}, target, 7), forward(*model, source, target)), 5e-6);
}

TEST(GrowingSource, RefusalsChangeNothing) {
  for (const bool causal : {false, true}) {
    StreamModel m;
    m.causal = causal;
    const auto model = load(m);
    Session session(model, 1), other(model, 1), same(model, 1);
    read(other, source, 0, 4, false);
    EXPECT_NE("", refusal_of([&] { write({&session}, {1}, 1); })) << "nothing read";
    for (Session* s : {&session, &same}) read(*s, source, 0, 4, false);
    const auto refused = [&](const std::vector<int32_t>& ids, const std::string& part) {
      const std::string said = refusal_of([&] { session.read(ids_of(ids), false); });
      EXPECT_NE(std::string::npos, said.find(part)) << said;
    };
    refused({}, "at least one id");
    refused({3, 11}, "position 1: id 11 is outside the vocabulary of 11");
    refused({3, -1}, "id -1 is outside");
    refused(std::vector<int32_t>(37, 3), "37 tokens after 4 are more than max_length 40");
    for (Session* s : {&session, &same}) read(*s, source, 4, 6, true);
    refused({3}, "the source is complete, 6 tokens were read");
    EXPECT_EQ(write({&same}, target, 7), write({&session}, target, 7));
    for (Session* s : {&session, &same}) write({s}, {2}, 1);
    EXPECT_NE(std::string::npos, refusal_of([&] { write({&session}, {3}, 1); }).find("after </s>"));
    EXPECT_NE(std::string::npos, refusal_of([&] { write({&session, &other}, {3, 3}, 1); }).find("after </s>"));
    for (const std::vector<int32_t>& ids : {std::vector{3, 2, 3}, {2, 3, 3}})
      EXPECT_NE(std::string::npos, refusal_of([&] { write({&other}, ids, 3); }).find("after </s>"));
    EXPECT_EQ(0, other.position(0));
    EXPECT_EQ(8, session.position(0));
    write({&other}, {3, 2}, 2);
  }
}

TEST(GrowingSource, ATargetMayBeginWithWhatEndsOne) {
  for (const char* begins : {"begin = \"</s>\"", "begin = \"<s>\", more_ends = [\"<s>\"]"}) {
    StreamModel m;
    m.decoder_vocab =
        "\"" ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/bytes.json\", tokenizer = \"huggingface\", ";
    m.decoder_vocab += begins;
    const auto model = load(m);
    const int32_t begin = model->vocabulary(true)->begin_id(), end = model->vocabulary(true)->end_id();
    Session session(model, 1), other(model, 1);
    for (Session* s : {&session, &other}) read(*s, source, 0, source.size(), true);
    EXPECT_NE(std::string::npos, refusal_of([&] { write({&session}, {begin, end, 9}, 3); }).find("after </s>"));
    EXPECT_EQ("", refusal_of([&] { write({&session}, {begin, 9, 10}, 3); })) << begins;
    EXPECT_NE(std::string::npos, refusal_of([&] { write({&session}, {begin, 9}, 2); }).find("after </s>"));
    EXPECT_EQ("", refusal_of([&] { write({&session}, {9, end}, 2); }));
    EXPECT_EQ("", refusal_of([&] { other.generate(3); })) << begins;
  }
}

TEST(GrowingSource, AReadThatFailsHalfWayHarmsNoOtherSession) {
  StreamModel m;
  m.plugins = {ATTNKIT_BREAKER_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"fake_breaker\"\n";
  m.causal = true;
  const auto model = load(m);
  Session clean(model, 1), other(model, 1);
  for (Session* s : {&clean, &other}) read(*s, source, 0, 2, false);
  const std::vector<float> expected = write({&clean}, {1, 4}, 2);
  {
    Session broken(model, 1);
    EXPECT_NE(std::string::npos, refusal_of([&] { read(broken, source, 0, 3, false); }).find("three keys broke it"));
    read(broken, source, 0, 2, false);
    EXPECT_EQ(expected, write({&broken}, {1, 4}, 2)) << "a first read that failed leaves nothing";
    EXPECT_NE(std::string::npos, refusal_of([&] { read(broken, source, 2, 5, false); }).find("three keys broke it"));
    const std::string half_way = "an earlier read or write of this session failed half way";
    for (const std::string& said : {refusal_of([&] { read(broken, source, 5, 6, false); }), refusal_of([&] {
                                      write({&other, &broken}, {1, 1}, 1);
                                    }),
                                    refusal_of([&] { broken.clone(); }), refusal_of([&] { broken.save(); }),
                                    refusal_of([&] { broken.reorder({0}); }), refusal_of([&] { broken.generate(3); })})
      EXPECT_NE(std::string::npos, said.find(half_way)) << said;
  }
  EXPECT_EQ(expected, write({&other}, {1, 4}, 2));
  Session next(model, 1);  // in the slots of the broken one
  read(next, source, 0, 2, false);
  EXPECT_EQ(expected, write({&next}, {1, 4}, 2));
}

TEST(GrowingSource, AWriteThatFailsHalfWayHarmsNoLaterSession) {
  StreamModel m;
  m.plugins = {ATTNKIT_BREAKER_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  m.attention =
      "default = \"linear\"\n[[attention.override]]\nblock = \"decoder.self\"\nlayers = 2\nuse = \"fake_breaker\"\n";
  const auto model = load(m);
  const auto fresh = [&] {
    auto session = std::make_unique<Session>(model, 1);
    read(*session, source, 0, source.size(), true);
    return session;
  };
  const std::vector<float> expected = write({fresh().get()}, {1, 4}, 2);
  {
    const auto broken = fresh();
    EXPECT_NE(std::string::npos, refusal_of([&] { write({broken.get()}, {1, 5, 6}, 3); }).find("three keys broke it"));
    EXPECT_NE(std::string::npos, refusal_of([&] { broken->set_length(5); }).find("failed half way"));
  }
  EXPECT_EQ(expected, write({fresh().get()}, {1, 4}, 2)) << "in the slot of the broken one";
}

TEST(GrowingSource, NothingIsGeneratedBehindAnEnd) {
  const auto model = load(StreamModel());
  const int32_t end = model->vocabulary(true)->end_id();
  for (const int rows : {1, 2}) {
    Session session(model, rows);
    read(session, source, 0, source.size(), true);
    std::vector<int32_t> ended;
    for (int r = 0; r < rows; ++r) ended.insert(ended.end(), {1, 4, end});
    write({&session}, ended, 3);
    Session* const one = &session;
    EXPECT_NE(std::string::npos, refusal_of([&] { session.generate(2); }).find("nothing can follow"));
    EXPECT_NE(std::string::npos, refusal_of([&] {
                                   Session::generate({&one, 1}, 2, 0, 64);
                                 }).find("nothing can follow"));
  }
}

TEST(GrowingSource, NeedsStreamInTheManifest) {
  StreamModel m;
  m.stream = "";
  const auto model = load(m);
  Session session(model, 1);
  const std::string said = refusal_of([&] { read(session, source, 0, 4, false); });
  EXPECT_NE(std::string::npos, said.find("add [stream] to the manifest")) << said;
  session.read(ids_of(source));
  EXPECT_LE(relative_error(write({&session}, target, 7), forward(*model, source, target)), 5e-6);
}

TEST(GrowingSource, ThreadsDoNotDisturbEachOther) {
  StreamModel m;
  m.causal = true;
  const auto model = load(m);
  const auto run = [&] {
    Session session(model, 1);
    std::vector<float> last;
    for (size_t i = 0; i < source.size(); ++i) {
      read(session, source, i, i + 1, i + 1 == source.size());
      if (i < target.size()) last = write({&session}, {target[i]}, 1);
    }
    return last;
  };
  const std::vector<float> expected = run();
  std::vector<std::vector<float>> results(6);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) result = run();
    });
  for (auto& t : threads) t.join();
  for (const auto& result : results) EXPECT_EQ(expected, result);
}

TEST(GrowingSource, SequencesOfTheEncoderAreMadeAnew) {
  StreamModel m;
  m.stream = "[stream]\nreplay = true\n";
  m.attention = "default = \"luna\"\n\"decoder.self\" = \"softmax\"\n";
  const auto model = load(m);
  Session streamed(model, 1), plain(model, 1);
  read(streamed, source, 0, 3, false);
  write({&streamed}, {1}, 1);
  read(streamed, source, 3, source.size(), true);
  plain.read(ids_of(source));
  Session again(model, 1);
  read_in_chunks(again, source, 2);
  EXPECT_EQ(write({&plain}, target, 7), write({&again}, target, 7));
}

}  // namespace
}  // namespace attnkit::test
