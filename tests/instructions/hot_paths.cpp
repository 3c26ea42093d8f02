// Runs ten paths that decide how fast attnkit is, one after another, each as a part of its own for callgrind.
#include <valgrind/callgrind.h>

#include <cstdio>
#include <functional>
#include <string>

#include "tests/support/timed_block.hpp"

namespace {

using attnkit::TimedBlock;
using Path = std::function<void()>;

// Once more than needed: plans, scratch and packed weights are made before anything counts.
void count(const char* name, const Path& path) {
  for (int i = 0; i < 2; ++i) path();
  CALLGRIND_START_INSTRUMENTATION;
  CALLGRIND_ZERO_STATS;
  path();
  CALLGRIND_DUMP_STATS_AT(name);
  CALLGRIND_STOP_INSTRUMENTATION;
}

}  // namespace

// hot_paths MODEL REAL_TEXT_MODEL TEXT, folders of samples/models and a text
int main(int argc, char** argv) try {
  if (argc != 4) return 2;
  const attnkit::Runtime runtime(1);
  const std::string folder = argv[1];
  for (const auto& [name, mechanism, form] : {std::tuple{"softmax, 256 tokens", "softmax", TimedBlock::Form::whole},
                                              {"softmax, one token more", "softmax", TimedBlock::Form::step},
                                              {"relu, 256 tokens", "relu", TimedBlock::Form::whole},
                                              {"relu, one token more", "relu", TimedBlock::Form::step},
                                              {"relu, gradients of 256 tokens", "relu", TimedBlock::Form::backward},
                                              {"cosformer, 256 tokens", "cosformer", TimedBlock::Form::whole},
                                              {"leap, one token more", "leap", TimedBlock::Form::step}}) {
    TimedBlock block(runtime, mechanism, form, 256, 4);
    count(name, [&] { block(); });
  }

  const attnkit::Model model(runtime, folder + "/model.toml");
  std::vector<int32_t> source(64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int32_t>(4 + i % 20);
  std::vector<attnkit::Session> sessions;
  std::vector<attnkit_session*> all;
  for (int i = 0; i < 16; ++i) {
    sessions.emplace_back(model, 1).read(source);
    all.push_back(sessions.back().get());
  }
  std::vector<int32_t> tokens(all.size(), 5);
  attn_tensor written = attnkit::tensor(tokens.data(), {16, 1});
  std::vector<float> scores(all.size() * model.info().outputs);
  const attn_tensor logits = attnkit::tensor(scores.data(), {16, 1, model.info().outputs});
  count("16 sessions write a token", [&] {
    if (attnkit_session_write(all.data(), 16, &written, nullptr, &logits, nullptr) != ATTN_OK) std::abort();
  });
  count("a source of 64 tokens is read", [&] { attnkit::Session(model, 1).read(source); });
  const attnkit::Model real(runtime, std::string(argv[2]) + "/model.toml");
  count("a text is tokenized", [&] { real.tokenize(attnkit::Side::source, argv[3]); });
} catch (const std::exception& e) {
  std::fprintf(stderr, "hot_paths: %s\n", e.what());
  return 1;
}
