#include "core/session/session.hpp"

#include <cmath>
#include <thread>

#include "core/api/describe_model.hpp"
#include "tests/core/model/tiny_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 2}, target = {1, 8, 9, 4, 3, 3, 7};

// One mechanism everywhere, with all that it needs.
TinyModel tiny_with(const std::string& mechanism) {
  TinyModel tiny;
  tiny.attention = "default = \"" + mechanism + "\"\n";
  tiny.tail = "[length]\npredict = \"ratio\"\nalpha = 0.9\n";
  if (mechanism == "leap")
    tiny.leap_blocks = {"encoder.self.1", "encoder.self.2",  "decoder.self.1",
                        "decoder.self.2", "decoder.cross.1", "decoder.cross.2"};
  return tiny;
}

std::vector<float> write(Session& session, const std::vector<int32_t>& tokens, size_t begin, size_t end) {
  std::vector<float> logits((end - begin) * static_cast<size_t>(session.model().outputs()), NAN);
  Session* const one = &session;
  const int64_t n = static_cast<int64_t>(end - begin);
  Session::write({&one, 1}, {tokens.data() + begin, n, 1, n, nullptr}, logits.data());
  return logits;
}

std::unique_ptr<Session> open(const std::shared_ptr<const Model>& model, int rows = 1,
                              const std::vector<int32_t>& src = source) {
  auto session = std::make_unique<Session>(model, rows);
  session->read(ids_of(src));
  return session;
}

class SessionOf : public testing::TestWithParam<std::string> {};

TEST_P(SessionOf, AnyChunkingEqualsTheWholeSequence) {
  const auto model = load(tiny_with(GetParam()));
  std::vector<float> whole(target.size() * static_cast<size_t>(model->outputs()));
  model->forward(ids_of(source), ids_of(target), whole.data());
  for (size_t chunk : {size_t{1}, size_t{2}, size_t{3}, target.size()}) {
    const auto session = open(model);
    std::vector<float> streamed;
    for (size_t i = 0; i < target.size(); i += chunk) {
      const std::vector<float> part = write(*session, target, i, std::min(target.size(), i + chunk));
      streamed.insert(streamed.end(), part.begin(), part.end());
    }
    double error = 0, scale = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      error += std::pow(streamed[i] - whole[i], 2);
      scale += std::pow(whole[i], 2);
    }
    EXPECT_LE(std::sqrt(error), 5e-6 * std::sqrt(scale)) << "chunks of " << chunk;
  }
}

TEST_P(SessionOf, ManySessionsInOneWriteAreBitwiseEachAlone) {
  const auto model = load(tiny_with(GetParam()));
  std::vector<std::unique_ptr<Session>> alone, together;
  std::vector<Session*> pointers;
  for (int i = 0; i < 5; ++i) {
    const std::vector<int32_t> src(source.begin(), source.begin() + 2 + i % 4);
    alone.push_back(open(model, 1, src));
    together.push_back(open(model, 1, src));
    for (int t = 0; t < i; ++t) {  // each at a position of its own
      write(*alone[i], target, t, t + 1);
      write(*together[i], target, t, t + 1);
    }
    pointers.push_back(together[i].get());
  }
  const std::vector<int32_t> next = {4, 5, 6, 7, 8};
  std::vector<float> logits(5 * static_cast<size_t>(model->outputs()));
  Session::write(pointers, {next.data(), 1, 5, 1, nullptr}, logits.data());
  for (int i = 0; i < 5; ++i) {
    const std::vector<float> own = write(*alone[i], next, i, i + 1);
    for (size_t v = 0; v < own.size(); ++v) ASSERT_EQ(own[v], logits[i * own.size() + v]) << "session " << i;
  }
}

TEST_P(SessionOf, ACloneContinuesBitwiseAndIndependently) {
  const auto model = load(tiny_with(GetParam()));
  const auto session = open(model);
  write(*session, target, 0, 3);
  const auto copy = session->clone();
  const std::vector<float> a = write(*session, target, 3, 6);
  EXPECT_EQ(a, write(*copy, target, 3, 6));
  const auto fresh = open(model);
  EXPECT_EQ(write(*fresh, target, 0, 1), write(*open(model), target, 0, 1));
}

TEST_P(SessionOf, SlotsAreCleanWhenTheyComeBack) {
  const auto model = load(tiny_with(GetParam()));
  std::vector<float> first;
  for (int i = 0; i < 3; ++i) {
    const auto session = open(model);
    const std::vector<float> logits = write(*session, target, 0, target.size());
    if (i == 0) first = logits;
    EXPECT_EQ(first, logits);
  }
}

TEST_P(SessionOf, ReorderedRowsContinueTheirParents) {
  const auto model = load(tiny_with(GetParam()));
  const auto rows = open(model, 3);
  std::vector<std::unique_ptr<Session>> singles;
  Session* const one = rows.get();
  const std::vector<int32_t> begin = {1, 1, 1}, second = {4, 5, 6}, third = {7, 8, 9};
  for (int r = 0; r < 3; ++r) {
    singles.push_back(open(model));
    write(*singles[r], begin, 0, 1);
    write(*singles[r], second, r, r + 1);
  }
  Session::write({&one, 1}, {begin.data(), 1, 3, 1, nullptr}, nullptr);
  Session::write({&one, 1}, {second.data(), 1, 3, 1, nullptr}, nullptr);
  rows->reorder({2, 0, 2});
  const uint32_t parents[] = {2, 0, 2};
  for (int r = 0; r < 3; ++r)
    for (int64_t v = 0; v < model->outputs(); ++v) ASSERT_EQ(rows->last(r)[v], singles[parents[r]]->last(0)[v]);
  Session::write({&one, 1}, {third.data(), 1, 3, 1, nullptr}, nullptr);
  for (int r = 0; r < 3; ++r) {
    const auto copy = singles[parents[r]]->clone();
    write(*copy, third, r, r + 1);
    for (int64_t v = 0; v < model->outputs(); ++v) ASSERT_EQ(rows->last(r)[v], copy->last(0)[v]) << "row " << r;
  }
  EXPECT_THROW(rows->reorder({0, 1, 3}), Error);
}

TEST_P(SessionOf, BeamSearchFindsNothingWorseThanGreedy) {
  const auto model = load(tiny_with(GetParam()));
  const auto log_probability = [&](const std::vector<int32_t>& ids) {
    std::vector<int32_t> in = {1};
    in.insert(in.end(), ids.begin(), ids.end() - 1);
    const auto session = open(model);
    const std::vector<float> logits = write(*session, in, 0, in.size());
    double total = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const float* row = logits.data() + i * static_cast<size_t>(model->outputs());
      double sum = 0;
      for (int64_t v = 0; v < model->outputs(); ++v) sum += std::exp(static_cast<double>(row[v]));
      total += row[ids[i]] - std::log(sum);
    }
    return total / static_cast<double>(ids.size());
  };
  const std::vector<int32_t> greedy = open(model)->generate(6), wide = open(model, 11)->generate(6);
  ASSERT_FALSE(wide.empty());
  EXPECT_GE(log_probability(wide), log_probability(greedy) - 1e-6);
}

TEST_P(SessionOf, ThreadsDoNotDisturbEachOther) {
  const auto model = load(tiny_with(GetParam()));
  const std::vector<int32_t> expected = open(model)->generate(12);
  std::vector<std::vector<int32_t>> results(8);
  std::vector<std::thread> threads;
  for (auto& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) result = open(model)->generate(12);
    });
  for (auto& t : threads) t.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, SessionOf, testing::Values("softmax", "relu", "cosformer", "leap"),
                         [](const auto& info) { return info.param; });

TEST(Session, DecoderOnlyModelsContinueAPrompt) {
  TinyModel tiny;
  tiny.kind = "decoder";
  tiny.encoder_layers = 0;
  const auto model = load(tiny);
  Session session(model, 1);
  write(session, target, 0, 3);
  const std::vector<int32_t> ids = session.generate(5);
  EXPECT_FALSE(ids.empty());
  EXPECT_LE(ids.size(), 5u);
}

TEST(Session, GenerateContinuesWhereItStopped) {
  const auto model = load({});
  const std::vector<int32_t> all = open(model)->generate(8);
  const auto session = open(model);
  std::vector<int32_t> parts;
  while (parts.size() < all.size()) {
    const std::vector<int32_t> part =
        session->generate(std::min<int64_t>(3, static_cast<int64_t>(all.size() - parts.size())));
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(parts, all);
}

TEST(Session, StopsAtMaxLength) {
  TinyModel tiny;
  tiny.max_length = 8;
  const auto model = load(tiny);
  const auto session = open(model);
  EXPECT_LE(session->generate(1000).size(), 8u);
  EXPECT_LE(session->position(0), 8);
}

TEST(Session, RefusalsChangeNothing) {
  const auto model = load({});
  Session session(model, 1);
  Session* const one = &session;
  const int32_t bad = 99, good = 3;
  EXPECT_THROW(Session::write({&one, 1}, {&good, 1, 1, 1, nullptr}, nullptr), Error) << "no source yet";
  EXPECT_THROW(session.read(ids_of(std::vector<int32_t>{99})), Error);
  session.read(ids_of(source));
  EXPECT_THROW(session.read(ids_of(source)), Error);
  write(session, target, 0, 2);
  const auto before = session.clone();
  EXPECT_THROW(Session::write({&one, 1}, {&bad, 1, 1, 1, nullptr}, nullptr), Error);
  EXPECT_THROW(write(session, std::vector<int32_t>(41, 3), 0, 41), Error);
  EXPECT_THROW(session.set_length(3), Error);
  EXPECT_EQ(session.position(0), 2);
  EXPECT_EQ(write(session, target, 2, 4), write(*before, target, 2, 4));
}

TEST(Session, IsBusyForASecondCall) {
  const auto model = load({});
  Session session(model, 1);
  const Session::Use use(session);
  EXPECT_THROW(Session::Use again(session), Error);
}

TEST(Session, CountsTokensBeyondTheLengthAndCanForbidThem) {
  TinyModel tiny = tiny_with("cosformer");
  tiny.tail = "[length]\npredict = \"fixed\"\nlength = 3\n";
  const auto model = load(tiny);
  const auto session = open(model);
  write(*session, target, 0, 5);
  EXPECT_EQ(session->beyond_total(), 2);
  tiny.attention = "default = \"softmax\"\n\"decoder.self\" = { use = \"cosformer\", beyond = \"error\" }\n";
  const auto strict = load(tiny);
  const auto refused = open(strict);
  write(*refused, target, 0, 3);
  EXPECT_THROW(write(*refused, target, 3, 4), Error);
  EXPECT_EQ(refused->position(0), 3);
}

TEST(Session, NeedsALengthWhereTheManifestSaysReference) {
  TinyModel tiny = tiny_with("cosformer");
  tiny.tail = "[length]\npredict = \"reference\"\n";
  const auto model = load(tiny);
  const auto session = open(model);
  EXPECT_THROW(write(*session, target, 0, 1), Error);
  session->set_length(7);
  write(*session, target, 0, 1);
}

TEST(Session, NanWeightsAreAnErrorNotALoop) {
  TinyModel tiny;
  const TempFolder folder;
  write_tiny(folder, tiny);
  std::string file;
  {
    std::ifstream in(folder.path() + "/w.safetensors", std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(in), {});
  }
  std::fill(file.end() - 64, file.end(), '\xff');  // the last tensor of the file becomes NaN
  folder.write("w.safetensors", file);
  Diagnostics diagnostics;
  const auto model = Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics);
  ASSERT_TRUE(model) << all_messages(diagnostics);
  EXPECT_THROW(open(model)->generate(5), Error);
  EXPECT_THROW(open(model, 3)->generate(5), Error);
}

TEST(DescribeSession, TellsStateBytes) {
  const auto model = load({});
  const auto session = open(model);
  write(*session, target, 0, 3);
  const std::string json = describe_session(*session);
  for (const char* part : {"\"attnkit.session/1\"", "\"decoder.cross.1\"", "\"position\":3", "\"source_length\":6"})
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
}

}  // namespace
}  // namespace attnkit::test
