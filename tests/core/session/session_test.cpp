#include "core/session/session.hpp"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/api/describe.hpp"
#include "core/base/decoding/scores.hpp"
#include "core/session/simultaneous.hpp"
#include "tests/core/session/stream_model.hpp"

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

double rms_ratio(const std::vector<float>& found, const std::vector<float>& wanted) {
  double error = 0, scale = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(found.at(i) - wanted[i], 2);
    scale += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / scale);
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
    EXPECT_LE(rms_ratio(streamed, whole), 5e-6) << "chunks of " << chunk;
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
  const auto session = open(model), same = open(model), alone = open(model);
  for (const auto& s : {session.get(), same.get(), alone.get()}) write(*s, target, 0, 3);
  const auto copy = session->clone();
  const std::vector<int32_t> other = {9, 5, 6, 8};
  EXPECT_EQ(write(*session, other, 0, 2), write(*same, other, 0, 2));
  EXPECT_EQ(write(*copy, target, 3, 7), write(*alone, target, 3, 7));
  EXPECT_EQ(write(*session, other, 2, 4), write(*same, other, 2, 4));
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

// Every choice of parents for three rows: neighbours with one parent, all of one parent, cycles; rows of different
// lengths, so that a copy may be shorter than what was in its slot.
TEST_P(SessionOf, ReorderedRowsContinueTheirParents) {
  const auto model = load(tiny_with(GetParam()));
  const std::vector<int32_t> second = {4, 5, 0, 0, 6, 7, 8, 9, 5, 0, 0, 0}, second_lens = {2, 4, 1}, third = {7, 8, 9};
  const auto single_row = [&](size_t row) {
    auto session = open(model);
    Session* const self = session.get();
    write(*session, {1}, 0, 1);
    Session::write({&self, 1}, {second.data() + 4 * row, 4, 1, 4, second_lens.data() + row}, nullptr);
    return session;
  };
  for (uint32_t choice = 0; choice < 27; ++choice) {
    const std::vector<uint32_t> parents = {choice / 9, choice / 3 % 3, choice % 3};
    SCOPED_TRACE(testing::PrintToString(parents));
    {
      const auto rows = open(model, 3);
      Session* const one = rows.get();
      const std::vector<int32_t> begin = {1, 1, 1};
      Session::write({&one, 1}, {begin.data(), 1, 3, 1, nullptr}, nullptr);
      Session::write({&one, 1}, {second.data(), 4, 3, 4, second_lens.data()}, nullptr);
      rows->reorder(parents);
      for (const bool again : {false, true}) {
        if (again) Session::write({&one, 1}, {third.data(), 1, 3, 1, nullptr}, nullptr);
        for (int r = 0; r < 3; ++r) {
          const auto single = single_row(parents[r]);
          if (again) write(*single, third, r, r + 1);
          ASSERT_EQ(rows->position(r), single->position(0));
          for (int64_t v = 0; v < model->outputs(); ++v) ASSERT_EQ(rows->last(r)[v], single->last(0)[v]) << "row " << r;
        }
      }
    }
    expect_empty_slots(*model);
  }
  EXPECT_THROW(open(model, 3)->reorder({0, 1, 3}), Error);
}

// The last token that fits is written, alone and as part of a chunk; one more is refused and changes nothing.
TEST_P(SessionOf, TakesExactlyMaxLengthTokens) {
  TinyModel tiny = tiny_with(GetParam());
  tiny.max_length = 7;
  const auto model = load(tiny);
  for (const size_t chunk : {size_t{1}, size_t{4}, target.size() - 1, target.size()}) {
    const auto session = open(model);
    size_t written = 0;
    for (; written + chunk <= target.size(); written += chunk) write(*session, target, written, written + chunk);
    if (written < target.size()) {
      EXPECT_THROW(write(*session, std::vector<int32_t>(chunk, 3), 0, chunk), Error) << "a chunk beyond the end";
      write(*session, target, written, target.size());
    }
    EXPECT_EQ(session->position(0), tiny.max_length);
    const std::vector<float> last(session->last(0), session->last(0) + model->outputs());
    EXPECT_THROW(write(*session, {3}, 0, 1), Error);
    EXPECT_THROW(write(*session, {3, 4}, 0, 2), Error);
    EXPECT_EQ(session->position(0), tiny.max_length);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), session->last(0)));
  }
  // Plans are made for bounds rounded up, which are not to pass the end either.
  const auto begun = open(model);
  write(*begun, target, 0, 2);
  write(*begun, target, 2, target.size());
  EXPECT_EQ(begun->position(0), tiny.max_length);
  const auto rows = open(model, 2);
  Session* const one = rows.get();
  const std::vector<int32_t> ids(2 * target.size(), 3), unequal = {7, 6}, more = {0, 1}, many = {1, 1};
  Session::write({&one, 1}, {ids.data(), 7, 2, 7, unequal.data()}, nullptr);
  EXPECT_THROW(Session::write({&one, 1}, {ids.data(), 1, 2, 1, many.data()}, nullptr), Error)
      << "the first row is full";
  Session::write({&one, 1}, {ids.data(), 1, 2, 1, more.data()}, nullptr);
  EXPECT_EQ(rows->position(1), tiny.max_length);
}

TEST_P(SessionOf, ThreadsDoNotDisturbEachOther) {
  const auto model = load(tiny_with(GetParam()));
  const std::vector<int32_t> expected = open(model)->generate(12);
  std::vector<std::array<std::vector<int32_t>, 5>> results(8);
  std::vector<std::thread> threads;
  for (auto& own : results)
    threads.emplace_back([&] {
      for (auto& result : own) result = open(model)->generate(12);
    });
  for (auto& t : threads) t.join();
  for (const auto& own : results)
    for (const auto& result : own) EXPECT_EQ(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, SessionOf, testing::Values("softmax", "relu", "cosformer", "leap"),
                         [](const auto& info) { return info.param; });

// All that checkpoints of language models have: shared heads of keys, wide heads, norms of q and k, gates, no biases.
constexpr const char* language_model = R"(schema = "attnkit.model/1"
[model]
name = "language"
kind = "decoder"
d_model = 20
heads = 6
kv_heads = 2
head_width = 8
ffn = 28
gated = true
bias = "none"
norm_type = "rms"
qk_norm = true
activation = "silu"
positions = "rotary"
rotary = { base = 50.0, width = 6 }
max_length = 40
decoder = { layers = 3, vocab = "vocab.txt" }
[weights]
seed = 3
[attention]
)";

TEST(Session, LanguageModelsGiveTheSameInAnyChunksAndWithAnyMechanism) {
  const TempFolder folder;
  folder.write("vocab.txt", "<pad>\n<s>\n</s>\na\nb\nc\nd\ne\nf\ng\nh\n");
  for (const char* mechanism : {"softmax", "local", "relu", "linear", "latte", "rope_linear"}) {
    Diagnostics diagnostics;
    const auto model = Model::load(runtime(), fmt::format("{}default = \"{}\"\n", language_model, mechanism),
                                   folder.path(), diagnostics);
    ASSERT_FALSE(diagnostics.failed()) << mechanism << ": " << diagnostics.sorted().front().message;
    std::vector<float> whole(target.size() * static_cast<size_t>(model->outputs()));
    model->forward({}, ids_of(target), whole.data());
    for (const size_t chunk : {size_t{1}, size_t{3}, target.size()}) {
      Session session(model, 1);
      std::vector<float> streamed;
      for (size_t i = 0; i < target.size(); i += chunk) {
        const std::vector<float> part = write(session, target, i, std::min(target.size(), i + chunk));
        streamed.insert(streamed.end(), part.begin(), part.end());
      }
      EXPECT_LE(rms_ratio(streamed, whole), 5e-6) << mechanism << " in chunks of " << chunk;
    }
  }
}

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

TEST(Session, WithoutATokenThatBeginsTextsNeedsAPrompt) {
  std::string text = std::string(language_model) + "default = \"softmax\"\n";
  const std::string vocab = "\"vocab.txt\"", golden = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/";
  text.replace(text.find(vocab), vocab.size(), "\"" + golden + "pairs.model\", tokenizer = \"huggingface\"");
  Diagnostics diagnostics;
  const auto model = Model::load(runtime(), text, ".", diagnostics);
  ASSERT_TRUE(model) << all_messages(diagnostics);
  for (const int rows : {1, 2}) {
    Session session(model, rows);
    EXPECT_EQ(refusal_of([&] { session.generate(5); }), "no token begins this model's texts: write a prompt first");
    test::write({&session}, std::vector<int32_t>(static_cast<size_t>(rows), 9), 1);
    EXPECT_FALSE(session.generate(5).empty());
  }
}

TEST(Session, GenerateContinuesWhereItStopped) {
  const auto model = load(TinyModel());
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

// Greedily, with beams and by the scores that hosts choose from; what is read stays the same.
TEST(Session, BeginsAsForcedAndNeverWritesWhatIsSuppressed) {
  TinyModel tiny;
  const auto free = load(tiny);
  const std::vector<int32_t> written = open(free)->generate(8);
  const int32_t never = written[0];
  tiny.tail = "[decode]\nforced = [5, 4]\nsuppress = [" + std::to_string(never) + "]\n";
  const auto model = load(tiny);
  for (const int rows : {1, 3}) {
    const std::vector<int32_t> ids = open(model, rows)->generate(8);
    EXPECT_EQ((std::vector<int32_t>{ids[0], ids[1]}), (std::vector<int32_t>{5, 4})) << rows;
    EXPECT_EQ(std::count(ids.begin(), ids.end(), never), 0) << rows;
  }
  const auto session = open(model), other = open(free);
  const std::vector<int32_t> ids = {1, 5, 4};
  const std::vector<float> scores = write(*session, ids, 0, 3), own = write(*other, ids, 0, 3);
  const int64_t width = model->outputs();
  for (int64_t i = 0; i < 3 * width; ++i) {
    const bool allowed = i / width == 0 ? i % width == 5 : i / width == 1 ? i % width == 4 : i % width != never;
    EXPECT_EQ(scores[static_cast<size_t>(i)], allowed ? own[static_cast<size_t>(i)] : -INFINITY) << i;
  }
}

// Greedily, with beams, drawn and by the scores that hosts choose from: what is written ends where a further end would
// have stood, and in the end that hosts know of.
TEST(Session, EndsWithAnyOfSeveralTokens) {
  TinyModel tiny;
  const auto free = load(tiny);
  const std::vector<int32_t> written = open(free)->generate(8);
  const auto first = std::adjacent_find(written.begin(), written.end(), std::not_equal_to<>());
  ASSERT_TRUE(first != written.end() && written.back() != 2);
  const int32_t further = *std::next(first);
  tiny.extra_decoder = ", more_ends = [2, " + std::to_string(further) + "]";
  const auto model = load(tiny);
  std::vector<int32_t> expected(written.begin(), std::find(written.begin(), written.end(), further));
  expected.push_back(2);
  EXPECT_EQ(open(model)->generate(8), expected);
  Sampler greedy{Sampling{}};
  EXPECT_EQ(open(model)->sample({}, greedy, 8, nullptr), expected);
  const std::vector<int32_t> beams = open(model, 3)->generate(8);
  EXPECT_EQ(std::count(beams.begin(), beams.end(), further), 0);
  const auto session = open(model), other = open(free);
  const std::vector<int32_t> ids = {1, 5};
  const std::vector<float> scores = write(*session, ids, 0, 2), own = write(*other, ids, 0, 2);
  const size_t width = static_cast<size_t>(model->outputs()), again = static_cast<size_t>(further);
  for (size_t i = 0; i < 2 * width; ++i) {
    const float best = std::max(own[i / width * width + 2], own[i / width * width + again]);
    EXPECT_EQ(scores[i], i % width == again ? -INFINITY : i % width == 2 ? best : own[i]) << i;
  }
  tiny.tail = "[decode]\nforced = [" + std::to_string(further) + "]\n";
  const auto forced = load(tiny);
  for (const int rows : {1, 3}) EXPECT_EQ(open(forced, rows)->generate(8), std::vector<int32_t>{2}) << rows;
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
  const auto model = load(TinyModel());
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
  const auto model = load(TinyModel());
  Session session(model, 1);
  Session* const self = &session;
  const Session::Use use({&self, 1});
  EXPECT_THROW(Session::Use({&self, 1}), Error);
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

TEST(Session, ALimitMayBeTheLengthThatNoTokenExceeds) {
  const auto with = [](const std::string& beyond) {
    TinyModel tiny = tiny_with("cosformer");
    tiny.tail = "[length]\npredict = \"fixed\"\nlength = 3\n";
    tiny.attention = "default = \"softmax\"\n\"decoder.self\" = { use = \"cosformer\", beyond = \"" + beyond + "\" }\n";
    return load(tiny);
  };
  const auto strict = with("error");
  const std::vector<int32_t> expected = open(with("clamp"))->generate(3);
  ASSERT_EQ(expected.size(), 3u);
  const Sampler greedy{Sampling{}};
  int drawn = 0;
  EXPECT_EQ(open(strict)->generate(3), expected);
  EXPECT_EQ(open(strict)->sample({}, greedy, 3, nullptr), expected);
  EXPECT_EQ(open(strict)->sample({}, greedy, 0, [&](int32_t) { return ++drawn == 3; }), expected);
  EXPECT_NE(refusal_of([&] { open(strict)->generate(4); }).find("token 4 is beyond the target length 3"),
            std::string::npos);
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

// A row of the head that is not a number makes one score of all so, wherever it stands.
TEST(Session, ANanAmongTheScoresIsTheSameErrorHoweverASessionDecodes) {
  TinyModel tiny;
  tiny.tie = false;
  for (const int at : {0, tiny.vocab / 2, tiny.vocab - 1}) {
    tiny.tail = at > 0 ? "[decode]\nsuppress = [" + std::to_string(at) + "]\n" : "";
    const TempFolder folder;
    write_tiny(folder, tiny);
    std::ifstream in(folder.path() + "/w.safetensors", std::ios::binary);
    std::string file{std::istreambuf_iterator<char>(in), {}};
    uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof header);
    const auto table = nlohmann::json::parse(file.substr(8, header));
    const size_t tensor = 8 + header + table["head.weight"]["data_offsets"][0].get<size_t>();
    std::memset(file.data() + tensor + static_cast<size_t>(at * tiny.d) * sizeof(float), 0xff, sizeof(float));
    folder.write("w.safetensors", file);
    Diagnostics diagnostics;
    const auto model = Model::load(runtime(), tiny.manifest(), folder.path(), diagnostics);
    ASSERT_TRUE(model) << all_messages(diagnostics);
    const std::string said =
        "the model's scores are not numbers (NaN) after 0 tokens: its weights or a mechanism are broken";
    EXPECT_EQ(said, refusal_of([&] { open(model)->generate(5); })) << at;
    const auto session = open(model);
    const std::vector<float> scores = write(*session, {1}, 0, 1);
    EXPECT_FALSE(all_numbers(scores)) << at;
    EXPECT_EQ(said, refusal_of([&] { open(model, 3)->generate(5); })) << at;
    attnkit_stream_options options{};
    options.decide = [](uintptr_t, const attnkit_stream_view* v) { return v->ended ? ATTNKIT_WRITE : ATTNKIT_READ; };
    EXPECT_EQ(said, refusal_of([&] {
                Session session(model, 1);
                simulate(session, {ids_of(source), {}}, options);
              }))
        << at;
  }
}

// Under [stream] nothing follows </s>, in the row that has it and in those that are made of it.
TEST(Session, ReorderedRowsHaveEndedWhereTheirParentsHad) {
  const auto model = load(StreamModel());
  const std::vector<std::vector<uint32_t>> choices = {{1, 0, 0}, {0, 0, 1}, {2, 1, 0}, {1, 1, 2}};
  for (const std::vector<uint32_t>& parents : choices) {
    Session rows(model, 3);
    rows.read(ids_of(source));
    test::write({&rows}, {1, 1, 1}, 1);
    test::write({&rows}, {2, 5, 6}, 1);
    rows.reorder(parents);
    for (int r = 0; r < 3; ++r) {
      const std::vector<int32_t> ids = {7, 7, 7}, lens = {r == 0, r == 1, r == 2};
      Session* const one = &rows;
      const std::string said = refusal_of([&] {
        Session::write({&one, 1}, {ids.data(), 1, 3, 1, lens.data()}, nullptr);
      });
      EXPECT_EQ(parents[r] == 0, said.find("a token after </s>") != std::string::npos) << r << ": " << said;
    }
  }
}

TEST(DescribeSession, TellsStateBytes) {
  const auto model = load(TinyModel());
  const auto session = open(model);
  write(*session, target, 0, 3);
  const std::string json = describe_session(*session);
  for (const char* part : {"\"attnkit.session/1\"", "\"decoder.cross.1\"", "\"position\":3", "\"source_length\":6"})
    EXPECT_NE(json.find(part), std::string::npos) << part << " in " << json;
}

}  // namespace
}  // namespace attnkit::test
