// Target lengths that hosts set, and tokens beyond them.
#include <nlohmann/json.hpp>

#include "core/api/describe.hpp"
#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 2}, target = {1, 8, 9, 4, 3, 3, 7};

StreamModel with_cross(const std::string& cross, const std::string& length, const std::string& stream = "") {
  StreamModel m;
  m.attention = "default = \"softmax\"\n\"decoder.cross\" = { use = \"cosformer\", cross = \"" + cross + "\" }\n";
  m.length = length;
  m.stream = stream;
  return m;
}

const std::string fixed = "[length]\npredict = \"fixed\"\nlength = 12\n",
                  reference = "[length]\npredict = \"reference\"\n";

// Keys over max(N, M) hold N, so that another N must not come later.
TEST(SessionLength, ComesBeforeTheSourceWhereKeysDependOnIt) {
  const auto model = load(with_cross("max", fixed));
  EXPECT_EQ(model->measures_by_target(), "decoder.cross.1");
  Session late(model, 1), early(model, 1), same(model, 1);
  late.read(ids_of(source));
  const std::string said = refusal_of([&] { late.set_length(20); });
  EXPECT_EQ(said,
            "decoder.cross.1 has measured the source against the target length 12 already: set the length before the "
            "source is read");
  EXPECT_EQ(late.target_total(), 12) << "nothing changed";
  late.set_length(12);
  same.read(ids_of(source));
  EXPECT_EQ(write({&late}, target, 7), write({&same}, target, 7));
  early.set_length(20);
  early.read(ids_of(source));
  const auto other = load(with_cross("max", "[length]\npredict = \"fixed\"\nlength = 20\n"));
  EXPECT_LE(relative_error(write({&early}, target, 7), forward(*other, source, target)), 5e-6);
}

TEST(SessionLength, MayComeAfterTheSourceWhereKeysDoNot) {
  const auto model = load(with_cross("ratio", fixed));
  EXPECT_EQ(model->measures_by_target(), "");
  Session late(model, 1), early(model, 1);
  late.read(ids_of(source));
  late.set_length(20);
  early.set_length(20);
  early.read(ids_of(source));
  EXPECT_EQ(write({&late}, target, 7), write({&early}, target, 7));
}

TEST(SessionLength, OfAReferenceIsSetBeforeReadingWhereKeysDependOnIt) {
  Session session(load(with_cross("max", reference)), 1);
  const std::string said = refusal_of([&] { session.read(ids_of(source)); });
  EXPECT_NE(said.find("decoder.cross.1 measures the source against the target's length"), std::string::npos) << said;
  session.set_length(7);
  session.read(ids_of(source));
  EXPECT_LE(relative_error(write({&session}, target, 7), forward(session.model(), source, target)), 5e-6);
  Session any(load(with_cross("ratio", reference)), 1);
  any.read(ids_of(source));
  any.set_length(7);
  write({&any}, target, 7);
}

// Blocks that are filled anew at each read follow the prediction of the day.
TEST(SessionLength, IsFollowedByKeysThatAreFilledAnew) {
  const auto model = load(with_cross("max", "[length]\npredict = \"ratio\"\nalpha = 3\n", "[stream]\nreplay = true\n"));
  Session session(model, 1);
  read(session, source, 0, 2, false);
  EXPECT_NE("", refusal_of([&] { session.set_length(9); }));
  read(session, source, 2, 5, true);
  EXPECT_LE(relative_error(write({&session}, target, 7), forward(*model, source, target)), 5e-6);
}

TEST(SessionLength, OnceSetStaysInCopiesWhoseSourceGrows) {
  const auto model =
      load(with_cross("ratio", "[length]\npredict = \"ratio\"\nalpha = 3\n", "[stream]\nreplay = true\n"));
  Session session(model, 1);
  session.set_length(20);
  read(session, source, 0, 2, false);
  const std::shared_ptr<Session> cloned = session.clone(), saved = Session::load(model, session.save());
  for (const auto& copy : {cloned, saved}) {
    read(*copy, source, 2, source.size(), true);
    EXPECT_EQ(copy->target_total(), 20) << "no prediction takes its place";
  }
}

// Every policy counts; "error" allows none.
TEST(SessionLength, TokensBeyondItAreCounted) {
  for (const std::string policy : {"clamp", "saturate", "error"}) {
    StreamModel m;
    m.attention = "default = \"softmax\"\n\"decoder.self\" = { use = \"cosformer\", beyond = \"" + policy + "\" }\n";
    m.length = "[length]\npredict = \"fixed\"\nlength = 3.5\n";
    m.stream = "";
    Session session(load(m), 2);
    session.read(ids_of(source));
    const auto beyond = [&] {
      return nlohmann::json::parse(describe_session(session))["beyond_target_length"].get<int64_t>();
    };
    write({&session}, {1, 8, 9, 1, 8, 9}, 3);
    EXPECT_EQ(beyond(), 0);
    if (policy == "error") {
      const std::string said = refusal_of([&] { write({&session}, {4, 4}, 1); });
      EXPECT_NE(said.find("token 4 is beyond the target length 3.5"), std::string::npos) << said;
      EXPECT_EQ(session.position(1), 3);
      const std::string of_all = refusal_of([&] { forward(*load(m), source, {1, 8, 9, 4}); });
      EXPECT_NE(of_all.find("row 0 has 4 tokens, and a mechanism was told a length of 3.5"), std::string::npos)
          << of_all;
      EXPECT_EQ(refusal_of([&] { forward(*load(m), source, {1, 8, 9}); }), "");
      continue;
    }
    write({&session}, {4, 4}, 1);
    EXPECT_EQ(beyond(), 2) << "one of each row";
    write({&session}, {4, 5, 4, 5}, 2);
    EXPECT_EQ(beyond(), 6);
    EXPECT_EQ(session.clone()->beyond_total(), 6);
    EXPECT_EQ(Session::load(load(m), session.save())->beyond_total(), 6);
  }
}

}  // namespace
}  // namespace attnkit::test
