// Sessions as bytes: what they continue as, and what is refused.
#include "core/base/sha256.hpp"
#include "core/session/blob.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

using Bytes = std::vector<std::byte>;

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 9, 8, 4, 10, 3, 2};

// The same digest as of an honest blob, so that what is behind it is looked at.
void seal(Bytes& blob) {
  const std::span<std::byte> all(blob);
  const Digest digest = sha256(all.first(blob.size() - sizeof(Digest)));
  std::copy(digest.begin(), digest.end(), blob.end() - sizeof(Digest));
}

std::string refusal(const std::shared_ptr<const Model>& model, const Bytes& blob) {
  return refusal_of([&] { Session::load(model, blob); });
}

void expect_refusal(const std::shared_ptr<const Model>& model, const Bytes& blob, const std::string& part) {
  const std::string said = refusal(model, blob);
  EXPECT_NE(std::string::npos, said.find(part)) << "no \"" << part << "\" in: " << said;
}

// The results of a session that goes on: reads, writes, generates.
std::vector<float> continued(Session& session) {
  std::vector<float> all;
  const auto rows = static_cast<size_t>(session.rows());
  const auto step = [&](int32_t id) {
    for (const float x : write({&session}, std::vector<int32_t>(rows, id), 1)) all.push_back(x);
  };
  step(5);
  if (session.model().has_encoder() && !session.source().complete) {
    read(session, source, 5, 6, false);
    step(6);
    read(session, source, 6, source.size(), true);
  }
  step(7);
  for (const int32_t id : session.generate(4)) all.push_back(static_cast<float>(id));
  return all;
}

std::unique_ptr<Session> begun(const std::shared_ptr<const Model>& model, int rows) {
  auto session = std::make_unique<Session>(model, rows);
  if (model->has_encoder()) {
    read(*session, source, 0, 3, false);
    write({session.get()}, std::vector<int32_t>(static_cast<size_t>(rows), 1), 1);
    read(*session, source, 3, 5, false);
  }
  std::vector<int32_t> ids;
  for (int r = 0; r < rows; ++r) ids.push_back(3 + r);
  write({session.get()}, ids, 1);
  return session;
}

class Saved : public testing::TestWithParam<StreamCase> {
 protected:
  const StreamModel& from() const { return GetParam().model; }
};

TEST_P(Saved, ContinuesBitwiseUnderAnotherRuntime) {
  for (const int rows : {1, 3}) {
    const auto session = begun(load(from()), rows);
    const Bytes blob = session->save();
    EXPECT_EQ(blob, session->save());
    const auto elsewhere = Session::load(load(from()), blob);
    EXPECT_EQ(blob, elsewhere->save());
    const std::vector<float> expected = continued(*session);
    EXPECT_EQ(expected, continued(*elsewhere));
    EXPECT_EQ(session->save(), elsewhere->save()) << "counters, lengths and all";
  }
}

TEST_P(Saved, ALoadedSessionLeavesItsSlotsEmpty) {
  const auto model = load(from());
  const Bytes blob = begun(model, 3)->save();
  expect_empty_slots(*model);
  Session::load(model, blob);
  expect_empty_slots(*model);
}

TEST_P(Saved, EveryTruncationAndEveryFlippedByteIsRefused) {
  const auto model = load(from());
  Bytes blob = begun(model, 1)->save();
  for (size_t n = 0; n < blob.size(); ++n) ASSERT_NE("", refusal(model, Bytes(blob.begin(), blob.begin() + n))) << n;
  for (std::byte& b : blob) {
    b ^= std::byte{0x41};
    ASSERT_NE("", refusal(model, blob));
    b ^= std::byte{0x41};
  }
  blob.push_back(std::byte{0});
  EXPECT_NE("", refusal(model, blob));
}

TEST_P(Saved, NoByteThatIsSealedAgainCrashes) {
  const auto model = load(from());
  const Bytes blob = begun(model, 2)->save();
  const auto looked_at = blob.size() - sizeof(Digest);
  int refused = 0;
  for (size_t i = 0; i < looked_at; i += 1 + i / 4000)
    for (const auto mask : {std::byte{0x01}, std::byte{0xff}}) {
      Bytes changed = blob;
      changed[i] ^= mask;
      seal(changed);
      try {
        Session::load(model, changed)->save();
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, 1000) << "the frame, the model's identity, sizes";
}

INSTANTIATE_TEST_SUITE_P(Models, Saved, testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SavedSession, NeedsNoStreamTable) {
  StreamModel m;
  m.stream = "";
  const auto model = load(m);
  Session session(model, 2);
  EXPECT_NE("", refusal_of([&] { write({Session::load(model, session.save()).get()}, {1, 1}, 1); })) << "no source";
  session.read(ids_of(source));
  write({&session}, {1, 1}, 1);
  const auto copy = Session::load(load(m), session.save());
  EXPECT_EQ(write({&session}, {4, 5}, 1), write({copy.get()}, {4, 5}, 1));
  EXPECT_EQ(session.generate(6), copy->generate(6));
}

TEST(SavedSession, DecodersAloneAreSavedToo) {
  TinyModel tiny;
  tiny.kind = "decoder";
  tiny.encoder_layers = 0;
  const auto session = begun(load(tiny), 2);
  const auto copy = Session::load(load(tiny), session->save());
  EXPECT_EQ(continued(*session), continued(*copy));
}

TEST(SavedSession, OtherModelsAreRefusedByWhatDiffers) {
  const StreamModel ours;
  const Bytes blob = begun(load(ours), 1)->save();
  const auto differs = [&](auto&& change, const std::string& part) {
    StreamModel other = ours;
    change(other);
    expect_refusal(load(other), blob, part);
  };
  differs([](StreamModel& m) { m.seed = 2; }, "another model: sha256 of the weights is ");
  differs([](StreamModel& m) { m.causal = true; }, "encoder.causal is false there, but true here");
  differs([](StreamModel& m) { m.decoder_layers = 1; }, "decoder.layers is 2 there, but 1 here");
  differs([](StreamModel& m) { m.stream = ""; }, "a source that grows is possible there, but not possible here");
  differs([](StreamModel& m) { m.attention += "\"decoder.cross\" = \"relu\"\n"; },
          "decoder.cross.1 is { use = \"softmax\", scale = 0.0, cache = \"f32\" } there, but { use = \"relu\", ");
  differs([](StreamModel& m) { m.length = "[length]\npredict = \"fixed\"\nlength = 13\n"; },
          "the prediction of lengths is ");
}

TEST(SavedSession, SettingsOfDecodingAndOfTheHeadAreTheModels) {
  const TinyModel ours;
  const Bytes blob = Session(load(ours), 1).save();
  const auto differs = [&](auto&& change) {
    TinyModel other = ours;
    change(other);
    expect_refusal(load(other), blob, "another model: ");
  };
  for (const char* decode : {"min_length = 4\n", "max_length = 9\nforce_end = true\n", "forced = [5]\n"})
    differs([&](TinyModel& m) { m.tail = std::string("[decode]\n") + decode; });
  differs([](TinyModel& m) { m.extra_decoder = ", max_length = 30"; });
  differs([](TinyModel& m) { m.extra_model = "head_scale = 0.5\n"; });
}

TEST(SavedSession, OtherRevisionsOfAPluginAreRefused) {
  const auto model = load(StreamModel());
  Bytes blob = begun(model, 1)->save();
  const std::string name = "the state revision of decoder.cross.2";
  const auto* text = reinterpret_cast<const char*>(blob.data());
  const size_t at = std::string_view(text, blob.size()).find(name) + name.size() + 4;
  blob[at] = std::byte{'9'};
  seal(blob);
  expect_refusal(model, blob, name + " is 9");
}

TEST(SavedSession, WeightsWhoseDigestDiffersInItsLastDigitAreRefused) {
  const auto model = load(StreamModel());
  Bytes blob = begun(model, 1)->save();
  const auto* text = reinterpret_cast<const char*>(blob.data());
  const size_t last = std::string_view(text, blob.size()).find(model->digest()) + model->digest().size() - 1;
  blob[last] ^= std::byte{1};
  seal(blob);
  expect_refusal(model, blob, "another model: sha256 of the weights is ");
}

TEST(SavedSession, ForeignAndNewerBytesAreRefusedByName) {
  const auto model = load(StreamModel());
  const Bytes blob = begun(model, 1)->save();
  expect_refusal(model, {}, "are no saved session");
  Bytes text(100, std::byte{'x'});
  expect_refusal(model, text, "these 100 bytes are no saved session");
  expect_refusal(model, Bytes(blob.begin(), blob.end() - 7), "is truncated");
  Bytes damaged = blob;
  damaged[blob.size() / 2] ^= std::byte{1};
  expect_refusal(model, damaged, "is damaged: its checksum");
  Bytes newer = blob;
  newer[12] = std::byte{2};
  seal(newer);
  expect_refusal(model, newer, "needs a reader of version 2");
  Bytes readable = blob;
  readable[8] = std::byte{2};
  seal(readable);
  EXPECT_EQ("", refusal(model, readable)) << "newer, but this version still understands it";
}

TEST(SavedSession, CountsThatWouldOverflowAreRefused) {
  const auto model = load(StreamModel());
  const Bytes blob = begun(model, 1)->save();
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  // Behind 16 bytes of header: TARG has its count after two flags and a number, SRCE its four after a flag and a
  // length.
  for (const size_t at : {text.find("TARG") + 16 + 16, text.find("SRCE") + 16 + 12, text.find("SRCE") + 16 + 36}) {
    Bytes changed = blob;
    changed[at + 7] = std::byte{0x7f};
    seal(changed);
    expect_refusal(model, changed, "a count that no session reaches");
  }
}

TEST(SavedSession, AnIdThatNoVocabularyHasIsRefused) {
  StreamModel m;  // bidirectional: ids of an open source are kept
  m.attention = "default = \"leap\"\n";
  const auto model = load(m);
  Session session(model, 1);
  read(session, source, 0, 3, false);
  Bytes blob = session.save();
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  const size_t at = text.find({reinterpret_cast<const char*>(source.data()), 3 * sizeof source[0]});
  ASSERT_NE(at, std::string_view::npos);
  blob[at] = std::byte{99};
  seal(blob);
  expect_refusal(model, blob, "id 99");
}

TEST(SavedSession, ScoresOfAnotherNumberOfRowsAreRefused) {
  const auto model = load(StreamModel());
  Bytes blob = begun(model, 1)->save();
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  blob[text.find("LAST") + 16] ^= std::byte{1};  // their number
  seal(blob);
  expect_refusal(model, blob, "logits of another number of rows");
}

TEST(SavedSession, ACompleteSourceOfNoTokensIsRefused) {
  const auto model = load(StreamModel());
  Bytes blob = Session(model, 1).save();
  const std::string_view text(reinterpret_cast<const char*>(blob.data()), blob.size());
  blob[text.find("SRCE") + 16] = std::byte{1};
  seal(blob);
  expect_refusal(model, blob, "a complete source of no tokens");
}

TEST(SavedSession, SectionsOfLaterVersionsAreSkipped) {
  BlobWriter to;
  to.section("NEWS");
  to.text("what nobody knows yet");
  to.section("OLDS");
  to.u32(7);
  to.u32(8);
  const Bytes blob = to.finish();
  BlobReader from(blob);
  from.section("OLDS");
  EXPECT_EQ(7u, from.u32());
  EXPECT_NE("", refusal_of([&] { from.section("NONE"); }));
}

}  // namespace
}  // namespace attnkit::test
