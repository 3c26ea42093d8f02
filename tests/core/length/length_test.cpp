// Predicted target lengths: the table, the network, and that every way to run a model is told the same.
#include "core/length/length.hpp"

#include <nlohmann/json.hpp>

#include "core/api/describe.hpp"
#include "tests/core/length/length_model.hpp"

namespace attnkit::test {
namespace {

using Json = nlohmann::json;

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 9, 8, 4, 10, 3, 2}, target = {1, 8, 9, 4, 3, 3, 7};

double session_length(const std::shared_ptr<const Model>& model, const std::vector<int32_t>& ids) {
  Session session(model, 1);
  session.read(ids_of(ids));
  return session.target_total().value_or(-1);
}

std::vector<std::vector<double>> encoder_rows(const Model& model, const std::vector<int32_t>& ids) {
  const WorkspacePool::Lease ws = model.lease();
  Aux aux;
  const SourcePart part{ids.data(), nullptr, static_cast<int64_t>(ids.size())};
  const float* hidden = model.encoder().run(*ws, std::span(&part, 1), {}, aux);
  std::vector<std::vector<double>> rows;
  for (size_t i = 0; i < ids.size(); ++i) rows.emplace_back(hidden + i * width, hidden + (i + 1) * width);
  return rows;
}

TEST(Length, TheTableSumsMeans) {
  const LengthFolder folder;
  const auto model = folder.load(cosformers(by_table));
  EXPECT_DOUBLE_EQ(session_length(model, {3, 3, 4, 5, 6, 2}), (2.25 + 2.25 + 0 + 1 + 0.5 + 1) / 1.1);
  EXPECT_DOUBLE_EQ(session_length(model, {3, 9, 0, 2}), (2.25 + 0.95 + 0.95 + 1) / 1.1) << "unknown tokens: the mean";
  EXPECT_EQ(session_length(model, {4, 4}), 1) << "no target is shorter";
  EXPECT_EQ(session_length(model, std::vector<int32_t>(30, 3)), 40) << "nor longer than max_length";
  const auto dampened = folder.load(cosformers(by_table + "dampening = 0.5\n"));
  EXPECT_DOUBLE_EQ(session_length(dampened, {3, 5, 2}), (2.25 + 1 + 1) / 0.5);
}

TEST(Length, TheNetworkIsItsDefinition) {
  const LengthFolder folder;
  const auto model = folder.load(cosformers(by_network));
  std::mt19937 random(5);
  double lowest = 1e9, highest = 0;
  int compared = 0;
  for (size_t n = 1; n <= 30; ++n) {
    std::vector<int32_t> ids(n);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocabulary);
    double sum = 0, nearest = 1;
    for (const double d : DoubleNetwork().durations(encoder_rows(*model, ids))) {
      nearest = std::min(nearest, std::abs(d - std::floor(d) - 0.5));
      sum += std::max(0.0, std::nearbyint(d));
    }
    if (nearest < 1e-3) continue;  // f32 may round the other way
    ++compared;
    EXPECT_EQ(session_length(model, ids), std::clamp(sum, 1.0, 40.0)) << n << " tokens";
    lowest = std::min(lowest, sum);
    highest = std::max(highest, sum);
  }
  EXPECT_GT(compared, 20);
  EXPECT_GT(highest, lowest + 5) << "lengths that tell right from wrong";
}

// One row alone, and between longer ones: the same bits.
TEST(Length, PaddingAndOtherRowsDoNotMatter) {
  const LengthFolder folder;
  for (const std::string& length : {by_table, by_network}) {
    const auto model = folder.load(cosformers(length));
    const std::vector<int32_t> sources = {3, 4, 5, 2, 9, 9, 6, 4, 8, 3, 5, 2, 7, 2, 10, 10, 10, 10};
    const std::vector<int32_t> targets = {1, 8, 9, 0, 1, 5, 4, 3, 1, 6, 0, 0};
    const int32_t source_lengths[] = {4, 6, 2}, target_lengths[] = {3, 4, 2};
    Ids s = ids_of(sources, 3), t = ids_of(targets, 3);
    s.lens = source_lengths;
    t.lens = target_lengths;
    const size_t row = 4 * static_cast<size_t>(model->outputs());
    std::vector<float> together(3 * row);
    model->forward(s, t, together.data());
    for (size_t b = 0; b < 3; ++b) {
      const std::vector<int32_t> one(sources.begin() + b * 6, sources.begin() + b * 6 + source_lengths[b]),
          wanted(targets.begin() + b * 4, targets.begin() + b * 4 + target_lengths[b]);
      const std::vector<float> alone = forward(*model, one, wanted);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + b * row)) << length << b;
    }
  }
}

TEST(Length, SessionsAreToldWhatForwardIs) {
  const LengthFolder folder;
  for (const std::string& length : {by_table, by_network}) {
    const auto model = folder.load(cosformers(length));
    Session session(model, 1), told(model, 1), other(model, 1);
    session.read(ids_of(source));
    told.set_length(*session.target_total());
    other.set_length(*session.target_total() + 1);
    for (Session* s : {&told, &other}) s->read(ids_of(source));
    const std::vector<float> expected = forward(*model, source, target), out = write({&session}, target, 7);
    EXPECT_LE(relative_error(out, expected), 5e-6);
    EXPECT_EQ(out, write({&told}, target, 7));
    EXPECT_GT(relative_error(write({&other}, target, 7), expected), 1e-3) << "it matters";
  }
}

TEST(Length, EncodedSourcesBringTheirPrediction) {
  const LengthFolder folder;
  const std::string ratio = "[length]\npredict = \"ratio\"\nalpha = 0.5\n";
  const auto decoded = [&](const Model& model, const Encoded& encoded) {
    std::vector<float> out(target.size() * static_cast<size_t>(model.outputs()));
    model.check_decode(encoded, ids_of(target));
    model.decode(encoded, ids_of(target), out.data());
    return out;
  };
  for (const std::string& length : {by_table, by_network, ratio}) {
    const auto model = folder.load(cosformers(length));
    const auto encoded = model->encode(ids_of(source));
    EXPECT_EQ(encoded->target_lengths, (std::vector<double>{session_length(model, source)}));
    EXPECT_EQ(decoded(*model, *encoded), forward(*model, source, target));
    for (const std::string& other : {by_table, by_network, ratio}) {
      const auto second = folder.load(cosformers(other));
      EXPECT_EQ(decoded(*second, *encoded), forward(*second, source, target)) << length << " read with " << other;
    }
  }
}

TEST(Length, FollowsASourceThatGrows) {
  const LengthFolder folder;
  for (const bool causal : {false, true})
    for (const std::string& length : {by_table, by_network}) {
      StreamModel m;
      m.causal = causal;
      m.length = length;
      m.stream = "[stream]\nreplay = true\n";
      m.attention = "default = \"softmax\"\n\"decoder.cross\" = \"cosformer\"\n";
      const auto model = folder.load(m);
      Session session(model, 1), whole(model, 1);
      whole.read(ids_of(source));
      read(session, source, 0, 4, false);
      Session begun(model, 1);
      read(begun, source, 0, 4, true);
      EXPECT_EQ(session.target_total(), begun.target_total()) << "predicted from what was read";
      EXPECT_NE(session.target_total(), whole.target_total());
      const auto saved = Session::load(model, session.save()), cloned = session.clone();
      for (Session* s : {&session, saved.get(), cloned.get()}) {
        read(*s, source, 4, 6, false);
        read(*s, source, 6, 11, true);
        EXPECT_EQ(s->target_total(), whole.target_total());
        EXPECT_EQ(s->source().predicted_again, length == by_network ? 4 + 6 : 0);
        EXPECT_LE(relative_error(write({s}, target, 7), forward(*model, source, target)), 5e-6);
      }
    }
}

TEST(Length, CausalEncodersKeepWhatThePredictionNeeds) {
  const LengthFolder folder;
  StreamModel m;
  m.causal = true;
  m.stream = "[stream]\n";
  const auto kept = [&](const std::string& length) {
    m.length = length;
    Session session(folder.load(m), 1);
    read(session, source, 0, 4, false);
    const int64_t before = Json::parse(describe_session(session))["kept_bytes"];
    read(session, source, 4, 11, true);
    EXPECT_EQ(Json::parse(describe_session(session))["kept_bytes"], 0);
    return before;
  };
  EXPECT_EQ(kept("[length]\npredict = \"ratio\"\nalpha = 1\n"), 0);
  EXPECT_EQ(kept(by_table), 4 * 4) << "ids";
  EXPECT_EQ(kept(by_network), 4 * width * 4) << "rows";
}

TEST(Length, SavedSessionsAreOfTheSamePrediction) {
  const LengthFolder folder;
  const auto saved = [&](const std::string& length) { return Session(folder.load(cosformers(length)), 1).save(); };
  const auto refusal = [&](const std::vector<std::byte>& blob, const std::string& length) {
    return refusal_of([&] { Session::load(folder.load(cosformers(length)), blob); });
  };
  const std::string part = "the prediction of lengths is ";
  EXPECT_NE(refusal(saved(by_table), by_table + "dampening = 0.5\n").find(part), std::string::npos);
  const std::vector<std::byte> blob = saved(by_network);
  EXPECT_EQ(refusal(blob, by_network), "");
  std::fstream file(folder.path("length.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);  // length.out.weight is last by name
  file.put('\1');
  file.close();
  EXPECT_NE(refusal(blob, by_network).find(part), std::string::npos);
}

TEST(Length, IsDescribed) {
  const LengthFolder folder;
  Json j = Json::parse(describe_model(*folder.load(cosformers(by_table)), {}))["length"];
  EXPECT_EQ(j["predict"], "lut");
  EXPECT_EQ(j["file"], folder.path("lengths.tsv"));
  EXPECT_EQ(j["dampening"], 1.1);
  EXPECT_EQ(j["tokens"], 5);
  EXPECT_DOUBLE_EQ(j["mean"], 0.95);
  EXPECT_EQ(j["needed_by"], (Json{"decoder.self.1", "decoder.cross.1", "decoder.self.2", "decoder.cross.2"}));
  j = Json::parse(describe_model(*folder.load(cosformers(by_network)), {}))["length"];
  EXPECT_EQ(j["predict"], "network");
  EXPECT_EQ(j["channels"], channels);
  EXPECT_EQ(j["parameters"], 5 * 16 * 3 + 5 * 5 * 3 + 5 + 6 * 5 + 1);
  StreamModel m;
  m.attention = "default = \"softmax\"\n\"decoder.self\" = \"cosformer\"\n";
  j = Json::parse(describe_model(*folder.load(m), {}))["length"];
  EXPECT_EQ(j["length"], 12);
  EXPECT_EQ(j["needed_by"], (Json{"decoder.self.1", "decoder.self.2"}));
  m.length = "";
  m.attention = "default = \"softmax\"\n";
  EXPECT_TRUE(Json::parse(describe_model(*folder.load(m), {}))["length"].is_null());
}

TEST(Length, NetworksThatAreBrokenAreErrors) {
  const LengthFolder folder;
  std::ifstream in(folder.path("length.safetensors"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\x7f");  // length.out.weight is last by name
  folder.write("length.safetensors", bytes);
  Session session(folder.load(cosformers(by_network)), 1);
  const std::string said = refusal_of([&] { session.read(ids_of(source)); });
  EXPECT_NE(said.find("the predicted length of the target is not a number"), std::string::npos) << said;
  session.set_length(5);
  session.read(ids_of(source));
}

}  // namespace
}  // namespace attnkit::test
