// Sources of many sessions read in one call, against each session by itself.
#include <nlohmann/json.hpp>

#include "tests/core/speech/speech_model.hpp"

namespace attnkit::test {
namespace {

std::vector<int32_t> words(size_t n, size_t seed) {
  std::vector<int32_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(3 + (i * i + 5 * i + seed) % 8);
  return ids;
}

// Rows side by side, whose padding is an id that no vocabulary has.
struct Padded {
  std::vector<int32_t> ids, lengths;
  int64_t length = 0;
  explicit Padded(const std::vector<std::vector<int32_t>>& rows) {
    for (const auto& row : rows) length = std::max(length, static_cast<int64_t>(row.size()));
    for (const auto& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
      ids.resize(ids.size() + static_cast<size_t>(length) - row.size(), -1);
      lengths.push_back(static_cast<int32_t>(row.size()));
    }
  }
  SourceBatch view() const { return Ids{ids.data(), length, std::ssize(lengths), length, lengths.data()}; }
};

struct Pair {
  Session alone, together;
  explicit Pair(const std::shared_ptr<const Model>& model) : alone(model, 1), together(model, 1) {}
  void expect_same(const std::string& what) {
    EXPECT_EQ(alone.save(), together.save()) << what;
    if (alone.source_length() == 0) return;
    EXPECT_EQ(write({&alone}, {4}, 1), write({&together}, {4}, 1)) << what;
    EXPECT_EQ(alone.save(), together.save()) << what;
  }
};

class Together {
 public:
  Together(const std::shared_ptr<const Model>& model, size_t n) : model_(model) {
    for (size_t i = 0; i < n; ++i) add();
  }
  void add() { pairs.push_back(std::make_unique<Pair>(model_)); }
  std::vector<Session*> sessions() const {
    std::vector<Session*> all;
    for (const auto& pair : pairs) all.push_back(&pair->together);
    return all;
  }
  void read(const std::vector<std::vector<int32_t>>& rows, const std::vector<uint32_t>& last) {
    for (size_t i = 0; i < rows.size(); ++i) pairs[i]->alone.read(ids_of(rows[i]), last[i] != 0);
    Session::read(sessions(), Padded(rows).view(), last);
  }
  void expect_same(const std::string& what) {
    for (size_t i = 0; i < pairs.size(); ++i) pairs[i]->expect_same(what + ", session " + std::to_string(i));
  }

  std::vector<std::unique_ptr<Pair>> pairs;

 private:
  std::shared_ptr<const Model> model_;
};

class SourcesOf : public testing::TestWithParam<std::string> {};

TEST_P(SourcesOf, AnyMixOfLengthsIsBitwiseEachAlone) {
  StreamModel m;
  m.stream = "";
  m.attention = "default = \"softmax\"\n\"encoder.self\" = \"" + GetParam() + "\"\n";
  m.length = "[length]\npredict = \"ratio\"\nalpha = 0.9\n";
  const auto model = load(m);
  ASSERT_TRUE(model);
  Together t(model, 40);
  std::vector<std::vector<int32_t>> rows;
  for (size_t i = 0; i < 40; ++i) rows.push_back(words(i < 30 ? 40 - i % 3 : 1 + (7 * i) % 39, i));
  t.read(rows, std::vector<uint32_t>(40, 1));
  t.expect_same(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Encoders, SourcesOf,
                         testing::Values("bigbird", "cosformer", "efficient", "latte", "leap", "linear", "linformer",
                                         "local", "luna", "nystromformer", "performer", "reformer", "relative_bias",
                                         "relu", "rope_linear", "s4d", "skyformer", "softmax"));

TEST(SourcesTogether, GrowEachAtItsOwnPace) {
  const char* const replay = "[stream]\nreplay = true\n";
  for (const auto& [attention, stream, causal] :
       {std::tuple("default = \"softmax\"\n", "[stream]\n", true),
        {"default = \"relu\"\n", "[stream]\n", true},
        {"default = \"leap\"\n", "[stream]\n", false},
        {"default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n", replay, true},
        {"default = \"softmax\"\noverride = [{ block = \"decoder.cross\", layers = 2, use = \"cosformer\" }]\n", replay,
         true},
        {"default = \"luna\"\n\"decoder.self\" = \"local\"\n", replay, false}}) {
    StreamModel m;
    m.attention = attention;
    m.stream = stream;
    m.causal = causal;
    Together t(load(m), 3);
    t.read({words(1, 0), words(9, 1), words(4, 2)}, {0, 0, 0});
    t.expect_same(attention);
    t.add();  // one that joins later
    t.read({words(30, 3), words(1, 4), words(2, 5), words(8, 6)}, {0, 1, 0, 1});
    t.expect_same(attention);
    t.pairs.erase(t.pairs.begin() + 1);
    t.pairs.pop_back();
    t.read({words(9, 7), words(3, 8)}, {1, 1});
    t.expect_same(attention);
  }
}

TEST(SourcesTogether, OfSpeechWhoseRowsEndAnywhere) {
  const std::vector<float> samples = speech(3000);
  for (const auto* models : {&causal_models, &bidirectional_models})
    for (const SpeechModel& from : *models) {
      const auto model = load(from);
      Pair a(model), b(model), c(model);
      const std::vector<Session*> all = {&a.together, &b.together, &c.together};
      const auto read = [&](std::vector<int32_t> lengths, std::vector<uint32_t> last) {
        const SourceBatch rows = SourceBatch::samples(samples.data(), 1000, 3, lengths.data());
        for (size_t i = 0; i < 3; ++i) {
          Session& alone = (i == 0 ? a : i == 1 ? b : c).alone;
          alone.read(rows.row(static_cast<int64_t>(i)), last[i] != 0);
        }
        Session::read(all, rows, last);
      };
      read({1, 999, 700}, {0, 0, 0});
      for (Pair* p : {&a, &b, &c}) EXPECT_EQ(p->alone.save(), p->together.save()) << from.attention;
      read({1000, 3, 300}, {0, 1, 0});
      for (Pair* p : {&a, &b, &c}) p->expect_same(from.attention);
    }
}

TEST(SourcesTogether, ARefusalNamesTheOneAtFaultAndChangesNone) {
  StreamModel m;
  const auto model = load(m), other = load(m);
  Together t(model, 3);
  t.pairs[2]->alone.read(ids_of(words(5, 1)), true);
  t.pairs[2]->together.read(ids_of(words(5, 1)), true);
  const std::vector<Session*> all = t.sessions(), two = {all[0], all[1]};
  Session stranger(other, 1);
  const auto refused = [&](const std::vector<Session*>& sessions, const std::vector<std::vector<int32_t>>& rows,
                           const std::string& part, std::vector<int32_t> lengths = {}) {
    Padded padded(rows);
    if (!lengths.empty()) padded.lengths = lengths;
    const std::vector<uint32_t> last(sessions.size(), 1);
    const std::string said = refusal_of([&] { Session::read(sessions, padded.view(), last); });
    EXPECT_NE(std::string::npos, said.find(part)) << said;
  };
  refused(two, {{3, 4}, {3, 99}}, "session 1: source: position 1: id 99");
  refused(two, {{3, 4}, {}}, "session 1: the source must be");
  refused(two, {{3, 4}, {3, 4}}, "row 1 has length 3, possible are 0 to 2", {2, 3});
  refused(two, {{3, 4}, {3, 4}}, "row 0 has length -1", {-1, 2});
  refused(two, {{3, 4}}, "1 rows of sources for 2 sessions");
  refused(two, {words(2, 1), words(41, 1)}, "41 tokens are more than max_length 40");
  refused(all, {{3}, {4}, {5}}, "session 2: the source is complete, 5 tokens were read");
  refused({all[0], &stranger}, {{3}, {4}}, "must belong to one model");
  t.expect_same("after refusals");
  t.pairs.pop_back();
  t.read({{3, 4}, {5}}, {0, 1});
  t.expect_same("without the one at fault");
  refused({all[0]}, {words(39, 1)}, "39 tokens after 2 are more than max_length 40");
}

TEST(SourcesTogether, AFailingPluginUndoesFirstReads) {
  StreamModel m;
  m.plugins = {ATTNKIT_BREAKER_PLUGIN, ATTNKIT_PLUGIN_FOLDER};
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"fake_breaker\"\n";
  m.causal = true;
  const auto model = load(m);
  Session first(model, 1), second(model, 1), spared(model, 1), clean(model, 1);
  for (Session* s : {&second, &spared, &clean}) read(*s, words(2, 0), 0, 2, false);
  const Padded rows({words(3, 1), words(1, 2)});
  const std::string said = refusal_of([&] {
    Session::read(std::vector{&first, &second}, rows.view(), std::vector{0u, 0u});
  });
  EXPECT_NE(std::string::npos, said.find("three keys broke it")) << said;
  const std::vector<float> expected = write({&clean}, {1, 4}, 2);
  read(first, words(2, 0), 0, 2, false);
  EXPECT_EQ(expected, write({&first}, {1, 4}, 2)) << "nothing was read";
  EXPECT_EQ(expected, write({&spared}, {1, 4}, 2)) << "another session of the model";
  EXPECT_NE(std::string::npos, refusal_of([&] { write({&second}, {1}, 1); }).find("failed half way"));
}

}  // namespace
}  // namespace attnkit::test
