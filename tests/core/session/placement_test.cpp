// Every mechanism in every role that takes a source that grows.
#include <set>

#include "tests/core/session/stream_model.hpp"

namespace attnkit::test {
namespace {

const std::vector<int32_t> source = {3, 4, 5, 6, 7, 9, 8, 4, 10, 3, 2}, target = {1, 8, 9, 4, 3, 3, 7};

// A model with the mechanism in one role, softmax elsewhere.
StreamModel placed(const std::string& mechanism, const std::string& role, bool causal, bool replay = false) {
  StreamModel m;
  // rope_linear and latte say themselves which option lets them into decoder.cross.
  const bool option = role == "decoder.cross" && (mechanism == "rope_linear" || mechanism == "latte");
  m.attention = "default = \"softmax\"\n\"" + role + "\" = { use = \"" + mechanism + "\"" +
                (option ? ", cross = true" : "") + " }\n";
  m.causal = causal;
  m.stream = replay ? "[stream]\nreplay = true\n" : "[stream]\n";
  return m;
}

struct Kind {
  const char* name;
  bool causal, replay;
};

class Growing : public testing::TestWithParam<Kind> {
 protected:
  // f(model) for every mechanism in every role that this kind of model allows; how many.
  template <class F>
  std::set<std::string> each_placement(F&& f) const {
    std::set<std::string> accepted;
    const Registry registry({ATTNKIT_PLUGIN_FOLDER});
    for (const std::string& name : registry.names(1))
      for (const std::string role : {"encoder.self", "decoder.self", "decoder.cross"}) {
        SCOPED_TRACE(name + " in " + role);
        std::string said;
        const auto model = try_load(placed(name, role, GetParam().causal, GetParam().replay), &said);
        if (!model) {
          EXPECT_NE(std::string::npos, said.find("AK203 " + role + " cannot be \"" + name + "\"")) << said;
          continue;
        }
        accepted.insert(name + " " + role);
        f(model);
      }
    return accepted;
  }
};

TEST_P(Growing, AnyChunkingEqualsTheWholeSource) {
  const auto accepted = each_placement([&](const std::shared_ptr<const Model>& model) {
    const std::vector<float> whole = forward(*model, source, target);
    Session plain(model, 1);
    plain.read(ids_of(source));
    const std::vector<float> at_once = write({&plain}, target, 7);
    EXPECT_LE(relative_error(at_once, whole), 5e-6);
    for (const size_t chunk : {size_t{1}, size_t{2}, size_t{5}}) {
      Session one(model, 1), two(model, 1);
      read_in_chunks(one, source, chunk);
      read_in_chunks(two, source, chunk);
      const std::vector<float> streamed = write({&one}, target, 7);
      EXPECT_LE(relative_error(streamed, whole), 5e-6) << "chunks of " << chunk;
      EXPECT_EQ(streamed, write({&two}, target, 7)) << "chunks of " << chunk;
      if (!GetParam().causal) {
        EXPECT_EQ(streamed, at_once) << "chunks of " << chunk;
      }
    }
  });
  for (const char* name : {"softmax", "relu", "linear", "leap", "performer"})
    for (const char* role : {" encoder.self", " decoder.self", " decoder.cross"})
      EXPECT_TRUE(accepted.contains(name + std::string(role))) << name << role;
  EXPECT_EQ(GetParam().replay, accepted.contains("cosformer decoder.cross"));
  EXPECT_EQ(GetParam().replay, accepted.contains("luna decoder.cross"));
  EXPECT_EQ(!GetParam().causal, accepted.contains("cosformer encoder.self"));
}

TEST_P(Growing, TokensWrittenBetweenReadsSeeTheSourceSoFar) {
  // With one decoder layer its own states depend on the tokens alone, so each token is as if decoded from a prefix.
  each_placement([&](const std::shared_ptr<const Model>& two_layers) {
    StreamModel small = placed("softmax", "decoder.self", GetParam().causal, GetParam().replay);
    for (const BlockChoice& block : two_layers->manifest().blocks)
      if (block.mechanism != "softmax")
        small = placed(block.mechanism, role_name(block.role), GetParam().causal, GetParam().replay);
    small.decoder_layers = 1;
    const auto model = load(small);
    Session session(model, 1);
    size_t known = 0;
    for (size_t t = 0; t < target.size(); ++t) {
      const size_t more = std::min(source.size(), known + 1 + t % 3);
      if (more > known) read(session, source, known, more, more == source.size());
      known = more;
      const std::vector<float> row = write({&session}, {target[t]}, 1);
      const std::vector<float> all = forward(*model, {source.begin(), source.begin() + static_cast<int64_t>(known)},
                                             {target.begin(), target.begin() + static_cast<int64_t>(t) + 1});
      EXPECT_LE(relative_error(row, {all.end() - model->outputs(), all.end()}), 5e-6) << "token " << t;
    }
  });
}

TEST_P(Growing, SessionsAtManyPositionsOfTheirSourcesAreBitwiseEachAlone) {
  each_placement([&](const std::shared_ptr<const Model>& model) {
    std::vector<std::unique_ptr<Session>> alone, together;
    std::vector<Session*> pointers;
    for (size_t i = 0; i < 4; ++i) {
      for (auto* list : {&alone, &together}) {
        list->push_back(std::make_unique<Session>(model, i == 2 ? 3 : 1));
        for (size_t n = 0; n < 2 * i + 1; n += 2) read(*list->back(), source, n, n + 2, false);
      }
      pointers.push_back(together.back().get());
    }
    std::vector<float> expected;
    for (const int step : {0, 1}) {
      expected.clear();
      for (size_t i = 0; i < 4; ++i) {
        const std::vector<int32_t> ids = i == 2 ? std::vector<int32_t>{4, 5, 6} : std::vector<int32_t>{7 + step};
        for (const float x : write({alone[i].get()}, ids, 1)) expected.push_back(x);
      }
      EXPECT_EQ(expected, write(pointers, {7 + step, 7 + step, 4, 5, 6, 7 + step}, 1));
      if (step == 0)
        for (auto* list : {&alone, &together}) read(*(*list)[1], source, 4, 9, true);
    }
  });
}

TEST_P(Growing, CloneAndReorderGoOnFromTheMiddleOfASource) {
  each_placement([&](const std::shared_ptr<const Model>& model) {
    Session session(model, 3);
    read(session, source, 0, 4, false);
    write({&session}, {1, 1, 1}, 1);
    write({&session}, {4, 5, 6}, 1);
    const auto copy = session.clone();
    for (Session* s : {&session, copy.get()}) s->reorder({2, 0, 2});
    read(session, source, 4, 5, false);
    read(session, source, 5, source.size(), true);
    const std::vector<float> one = write({&session}, {7, 8, 7}, 1);
    read(*copy, source, 4, 5, false);
    read(*copy, source, 5, source.size(), true);
    EXPECT_EQ(one, write({copy.get()}, {7, 8, 7}, 1));
    const size_t width = one.size() / 3;
    EXPECT_TRUE(std::equal(one.begin(), one.begin() + width, one.begin() + 2 * width)) << "two children of one row";
  });
}

TEST_P(Growing, SlotsAreCleanWhenTheyComeBack) {
  each_placement([&](const std::shared_ptr<const Model>& model) {
    std::vector<float> first;
    for (int i = 0; i < 3; ++i) {
      Session session(model, 1);
      read_in_chunks(session, source, 3);
      const std::vector<float> logits = write({&session}, target, 7);
      if (i == 0) first = logits;
      EXPECT_EQ(first, logits);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Encoders, Growing,
                         testing::Values(Kind{"Causal", true, false}, Kind{"CausalReplay", true, true},
                                         Kind{"Bidirectional", false, false}, Kind{"BidirectionalReplay", false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace attnkit::test
